"""Base of memories: typed entries, recall for prompts, and snapshots that restore the same memory."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar, cast

from pydantic import AliasChoices, BaseModel, ConfigDict, Field, ValidationError

from autoqec.contracts.base import Contract, canonical_json, first_validation_error
from autoqec.errors import ContractError
from autoqec.store import atomic


def type_field(default: str) -> Any:
    """Return a field `type` that is read from `_type` or `type` and written as `_type`.

    Pydantic treats a field *named* `_type` as a private attribute and ignores its value.
    """
    return Field(default=default, validation_alias=AliasChoices("_type", "type"), serialization_alias="_type")


class Entry(BaseModel):
    """General entry: a type and a text. Fields of unknown types are kept.

    Atomic types: Observation, Action, Feedback, Reflection, Summary, Retrieval.
    """

    model_config = ConfigDict(frozen=True, extra="allow", populate_by_name=True)

    type: str = type_field("")
    content: str = ""

    def dump(self) -> dict[str, Any]:
        """Return the entry as JSON-able values, with `_type` first."""
        return self.model_dump(mode="json", by_alias=True)

    def line(self) -> str:
        """Return the entry as one line of a prompt."""
        return f"{self.type}: {self.content}"


class ExperienceEntry(Entry):
    """One step: the observation acted on, the action and the feedback."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    type: Literal["experience"] = type_field("experience")
    content: Literal[""] = Field(default="", exclude=True)
    obs: str
    action: str
    feedback: dict[str, Any]
    metadata: dict[str, Any] = {}

    def line(self) -> str:
        """Return the step as one line of a prompt."""
        return f"Q: {self.obs} A: {self.action} F: {canonical_json(self.feedback)}"


class ReflectionEntry(Entry):
    """Advice distilled from an episode."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    type: Literal["reflection"] = type_field("reflection")
    content: str

    def line(self) -> str:
        """Return the advice as one line of a prompt."""
        return f"Reflection: {self.content}"


class CheatsheetEntry(Entry):
    """A complete cheatsheet; the latest entry is the current one."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)

    type: Literal["cheatsheet"] = type_field("cheatsheet")
    content: str

    def line(self) -> str:
        """Return the cheatsheet as text of a prompt."""
        return f"Cheatsheet: {self.content}"


ENTRY_TYPES: dict[str, type[Entry]] = {
    "experience": ExperienceEntry,
    "reflection": ReflectionEntry,
    "cheatsheet": CheatsheetEntry,
}


def discriminator(data: Mapping[str, Any], *, location: str) -> str | None:
    """Return the value of `_type` or `type`, or None.

    Raises:
        ContractError: If the two disagree.
    """
    underscored, plain = data.get("_type"), data.get("type")
    if underscored is not None and plain is not None and underscored != plain:
        raise ContractError(
            f"`_type` is {underscored!r} and `type` is {plain!r}", location=location, hint="keep one of them"
        )
    kind = underscored if underscored is not None else plain
    return None if kind is None else str(kind)


def parse_entry(data: Mapping[str, Any], *, location: str = "memory entry") -> Entry:
    """Parse an entry from JSON values; an unknown type becomes a general Entry.

    Raises:
        ContractError: Names the invalid field.
    """
    kind = discriminator(data, location=location)
    if not kind:
        raise ContractError("the entry has no `_type`", location=location)
    try:
        return ENTRY_TYPES.get(kind, Entry).model_validate({**_without_type(data), "_type": kind})
    except ValidationError as error:
        raise ContractError(first_validation_error(error), location=location) from error


def _without_type(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if key not in ("_type", "type")}


class MemoryModuleConfig(Contract):
    """Base of every memory's config; `_type` (or `type`) selects the module."""

    type: str = type_field("")

    def dump(self) -> dict[str, Any]:
        """Return the config as JSON-able values."""
        return self.model_dump(mode="json", by_alias=True)


Config = TypeVar("Config", bound=MemoryModuleConfig)


class MemoryModule(ABC, Generic[Config]):
    """Storage of one agent. While it is frozen, threads may read it concurrently."""

    config_type: ClassVar[type[MemoryModuleConfig]]

    def __init__(self, config: Config | None = None) -> None:
        self.config: Config = config or cast(Config, self.config_type())
        self._frozen = 0

    def update(self, entry: Entry) -> None:
        """Insert or merge an entry.

        Raises:
            ContractError: If the memory is frozen, because validation must not learn.
        """
        if self._frozen:
            raise ContractError(
                "the memory is frozen, so that validation cannot change it", location=type(self).__name__
            )
        self._update(entry)

    @abstractmethod
    def _update(self, entry: Entry) -> None: ...

    def recall(self) -> Sequence[Entry]:
        """Return a copy of the entries that a prompt is built from, oldest first."""
        return self.entries()

    @abstractmethod
    def entries(self) -> Sequence[Entry]:
        """Return a copy of all stored entries, in the order in which updates rebuild the memory."""

    @abstractmethod
    def clear(self) -> None:
        """Forget everything; the config stays."""

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Raise on `update` within the block."""
        self._frozen += 1
        try:
            yield
        finally:
            self._frozen -= 1

    def snapshot(self) -> str:
        """Return the memory as JSON lines: a header with config, count and hash, then one entry per line."""
        lines = [json.dumps(entry.dump(), ensure_ascii=False) + "\n" for entry in self.entries()]
        header = SnapshotHeader(config=self.config.dump(), entries=len(lines), sha256=_digest(lines))
        return json.dumps(header.dump(), ensure_ascii=False) + "\n" + "".join(lines)

    def save(self, path: Path | str) -> None:
        """Write the snapshot atomically."""
        atomic.write_text(path, self.snapshot())


class ListMemory(MemoryModule[Config]):
    """Memory that stores entries of one type and drops the oldest beyond its limit; None: it has no limit."""

    entry_type: ClassVar[type[Entry]] = Entry
    limit_field: ClassVar[str] = "max_length"

    def __init__(self, config: Config | None = None) -> None:
        super().__init__(config)
        self._stored: list[Any] = []

    def _update(self, entry: Entry) -> None:
        if not isinstance(entry, self.entry_type):
            message = f"stores {self.entry_type.__name__}, not {entry.type!r} entries"
            raise ContractError(message, location=self.config.type)
        self._stored.append(entry)
        limit = getattr(self.config, self.limit_field)
        if limit is not None:
            del self._stored[:-limit]

    def entries(self) -> list[Any]:
        """Return all entries, oldest first."""
        return list(self._stored)

    def clear(self) -> None:
        """Forget all entries."""
        self._stored.clear()


class SnapshotHeader(Contract):
    """First line of a snapshot: identifies a complete file and says how to build the module."""

    type: str = type_field("memory")
    config: dict[str, Any]
    entries: int = Field(ge=0)
    sha256: str

    def dump(self) -> dict[str, Any]:
        """Return the header as JSON-able values."""
        return self.model_dump(mode="json", by_alias=True)


def read_snapshot(text: str, *, location: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return config and entries of a snapshot as plain values.

    Raises:
        ContractError: If a byte is missing or changed.
    """
    # Not splitlines: an entry's text may contain other characters that splitlines treats as line ends.
    lines = [line + "\n" for line in text.removesuffix("\n").split("\n")] if text else []
    hint = "use another checkpoint, or start without one"
    if not lines:
        raise ContractError("the memory snapshot is empty", location=location, hint=hint)
    try:
        header = SnapshotHeader.read(json.loads(lines[0]), location=f"{location}:1")
        entries = [json.loads(line) for line in lines[1:]]
    except ValueError as error:
        raise ContractError(f"the memory snapshot is damaged: {error}", location=location, hint=hint) from error
    if header.type != "memory" or header.entries != len(entries) or header.sha256 != _digest(lines[1:]):
        raise ContractError("the memory snapshot is incomplete or was edited", location=location, hint=hint)
    return header.config, entries


def _digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("".join(lines).encode()).hexdigest()
