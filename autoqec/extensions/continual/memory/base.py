"""Base class of memories: entries, recall for prompts, and snapshots that restore the same memory."""

from __future__ import annotations

import hashlib
import json
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import Field

from autoqec.contracts.base import Contract
from autoqec.errors import ContractError
from autoqec.extensions.continual.memory.entries import Entry, type_field
from autoqec.store import atomic


class MemoryModuleConfig(Contract):
    """Base of every memory's config; `_type` (or `type`) selects the module."""

    type: str = type_field("")

    def dump(self) -> dict[str, Any]:
        """Return the config as JSON-able values."""
        return self.model_dump(mode="json", by_alias=True)


Config = TypeVar("Config", bound=MemoryModuleConfig)


class MemoryModule(ABC, Generic[Config]):
    """Storage of one agent. While it is frozen, threads may read it concurrently."""

    def __init__(self, config: Config) -> None:
        self.config = config
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

    @abstractmethod
    def recall(self) -> Sequence[Entry]:
        """Return a copy of the entries that a prompt is built from, oldest first."""

    @abstractmethod
    def entries(self) -> Sequence[Entry]:
        """Return all stored entries in the order in which updates rebuild the memory."""

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
