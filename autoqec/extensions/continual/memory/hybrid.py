"""HybridMemory: a cheatsheet, a database of experiences, and a list of notes."""

from __future__ import annotations

from typing import Literal

from autoqec.extensions.continual.memory.base import MemoryModule, MemoryModuleConfig
from autoqec.extensions.continual.memory.cheatsheet import CheatsheetConfig, CheatsheetMemory
from autoqec.extensions.continual.memory.entries import CheatsheetEntry, Entry, ExperienceEntry, type_field
from autoqec.extensions.continual.memory.experience_db import ExperienceDBConfig, ExperienceDBMemory
from autoqec.extensions.continual.memory.history_list import HistoryList, HistoryListConfig


class HybridConfig(MemoryModuleConfig):
    """Config of `HybridMemory`, one block per part."""

    type: Literal["hybrid"] = type_field("hybrid")
    cheatsheet: CheatsheetConfig = CheatsheetConfig()
    experience_db: ExperienceDBConfig = ExperienceDBConfig()
    notes: HistoryListConfig = HistoryListConfig()


class HybridMemory(MemoryModule[HybridConfig]):
    """Memory that routes each entry to the part for its type; all other types go to the notes."""

    def __init__(self, config: HybridConfig | None = None) -> None:
        super().__init__(config or HybridConfig())
        self.cheatsheet = CheatsheetMemory(self.config.cheatsheet)
        self.experiences = ExperienceDBMemory(self.config.experience_db)
        self.notes = HistoryList(self.config.notes)

    def _update(self, entry: Entry) -> None:
        if isinstance(entry, CheatsheetEntry):
            self.cheatsheet.update(entry)
        elif isinstance(entry, ExperienceEntry):
            self.experiences.update(entry)
        else:
            self.notes.update(entry)

    def get_cheatsheet(self) -> str:
        """Return the current cheatsheet."""
        return self.cheatsheet.get_cheatsheet()

    def set_cheatsheet(self, text: str) -> None:
        """Store a new version of the cheatsheet, subject to its config."""
        self.update(self.cheatsheet.make_version(text))

    def retrieve_examples(self, query: str, k: int) -> list[ExperienceEntry]:
        """Return the k experiences most similar to `query`."""
        return self.experiences.search(query, k)

    def recall(self) -> list[Entry]:
        """Return cheatsheet, notes, then experiences."""
        return [*self.cheatsheet.recall(), *self.notes.recall(), *self.experiences.recall()]

    def entries(self) -> list[Entry]:
        """Return all entries of all parts."""
        return [*self.cheatsheet.entries(), *self.notes.entries(), *self.experiences.entries()]

    def clear(self) -> None:
        """Clear all parts."""
        for part in (self.cheatsheet, self.experiences, self.notes):
            part.clear()
