"""A memory: entries in, a view for prompting out, and a file that brings the same memory back."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import Field

from autoqec.continual.memory.entries import Entry, type_field
from autoqec.contracts.base import Contract
from autoqec.errors import ContractError
from autoqec.store import atomic


class MemoryModuleConfig(Contract):
    """Base of every memory's config; `_type` (or `type`) selects the module."""

    type: str = type_field("")

    def dump(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)


Config = TypeVar("Config", bound=MemoryModuleConfig)


class MemoryModule(ABC, Generic[Config]):
    """Storage of one agent. Readers may share it between threads while it is frozen."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self._frozen = 0

    def update(self, entry: Entry) -> None:
        """Insert or merge an entry. ContractError while frozen: nothing learns from validation."""
        if self._frozen:
            raise ContractError(
                "the memory is frozen: validation may read it, never write", location=type(self).__name__
            )
        self._update(entry)

    @abstractmethod
    def _update(self, entry: Entry) -> None: ...

    @abstractmethod
    def recall(self) -> Sequence[Entry]:
        """What a prompt is built from, oldest first; a copy."""

    @abstractmethod
    def entries(self) -> Sequence[Entry]:
        """Everything that is stored, in the order in which updates with it rebuild the memory."""

    @abstractmethod
    def clear(self) -> None:
        """Forget everything; the config stays."""

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Within, `update` raises."""
        self._frozen += 1
        try:
            yield
        finally:
            self._frozen -= 1

    def snapshot(self) -> str:
        """The memory as JSON lines: a header (config, count and hash of what follows), then one entry a line."""
        lines = [json.dumps(entry.dump(), ensure_ascii=False) + "\n" for entry in self.entries()]
        header = SnapshotHeader(config=self.config.dump(), entries=len(lines), sha256=_digest(lines))
        return json.dumps(header.dump(), ensure_ascii=False) + "\n" + "".join(lines)

    def save(self, path: Path | str) -> None:
        """Write the snapshot, whole or not at all."""
        atomic.write_text(path, self.snapshot())


class SnapshotHeader(Contract):
    """First line of a snapshot: it tells a whole file from a torn one, and how to build the module."""

    type: str = type_field("memory")
    config: dict[str, Any]
    entries: int = Field(ge=0)
    sha256: str

    def dump(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)


def read_snapshot(text: str, *, location: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Config and entries of a snapshot, as plain values. ContractError where a byte is missing or changed."""
    # Not splitlines: an entry's text may hold any of the other characters that it takes for line ends.
    lines = [line + "\n" for line in text.removesuffix("\n").split("\n")] if text else []
    hint = "take another checkpoint, or start without one"
    if not lines:
        raise ContractError("the memory snapshot is empty", location=location, hint=hint)
    try:
        header = SnapshotHeader.read(json.loads(lines[0]), location=f"{location}:1")
        entries = [json.loads(line) for line in lines[1:]]
    except ValueError as error:
        raise ContractError(f"the memory snapshot is damaged: {error}", location=location, hint=hint) from error
    if header.type != "memory" or header.entries != len(entries) or header.sha256 != _digest(lines[1:]):
        raise ContractError("the memory snapshot is torn or was edited", location=location, hint=hint)
    return header.config, entries


def _digest(lines: Sequence[str]) -> str:
    return hashlib.sha256("".join(lines).encode()).hexdigest()
