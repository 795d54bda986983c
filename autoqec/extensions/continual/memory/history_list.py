"""HistoryList: the most recent entries in order."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from autoqec.extensions.continual.memory.base import MemoryModule, MemoryModuleConfig
from autoqec.extensions.continual.memory.entries import Entry, type_field


class HistoryListConfig(MemoryModuleConfig):
    """Config of `HistoryList`."""

    type: Literal["history_list"] = type_field("history_list")
    max_length: int | None = Field(default=100, ge=1, description="null: unbounded")


class HistoryList(MemoryModule[HistoryListConfig]):
    """Append-only memory that drops the oldest entries beyond `max_length`."""

    def __init__(self, config: HistoryListConfig | None = None) -> None:
        super().__init__(config or HistoryListConfig())
        self.history_list: list[Entry] = []

    def _update(self, entry: Entry) -> None:
        self.history_list.append(entry)
        if self.config.max_length is not None:
            del self.history_list[: -self.config.max_length]

    def recall(self) -> list[Entry]:
        """Return all entries, oldest first."""
        return list(self.history_list)

    def entries(self) -> list[Entry]:
        """Return all entries, oldest first."""
        return list(self.history_list)

    def clear(self) -> None:
        """Forget all entries."""
        self.history_list.clear()
