"""ExperienceDB: stores every step with its feedback and retrieves steps by similarity of the observation."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from autoqec.errors import ContractError
from autoqec.extensions.continual.memory.base import MemoryModule, MemoryModuleConfig
from autoqec.extensions.continual.memory.entries import Entry, ExperienceEntry, type_field
from autoqec.extensions.continual.memory.retrieval import RetrievalService


class ExperienceDBConfig(MemoryModuleConfig):
    """Config of `ExperienceDBMemory`."""

    type: Literal["experience_db"] = type_field("experience_db")
    max_length: int | None = Field(default=None, ge=1, description="null: unbounded; otherwise the oldest are dropped")


class ExperienceDBMemory(MemoryModule[ExperienceDBConfig]):
    """Memory of (obs, action, feedback, metadata); accepts experience entries only."""

    def __init__(self, config: ExperienceDBConfig | None = None) -> None:
        super().__init__(config or ExperienceDBConfig())
        self._experiences: list[ExperienceEntry] = []
        self._index = RetrievalService()

    def _update(self, entry: Entry) -> None:
        if not isinstance(entry, ExperienceEntry):
            raise ContractError(f"stores experiences, not {entry.type!r} entries", location="experience_db")
        self._experiences.append(entry)
        limit = self.config.max_length
        if limit is not None and len(self._experiences) > limit:
            del self._experiences[:-limit]
            self._index.build_index(experience.obs for experience in self._experiences)
        else:
            self._index.add(entry.obs)

    def search(self, query: str, k: int) -> list[ExperienceEntry]:
        """Return the k experiences whose observation is most similar to `query`, best first, ties by age."""
        return [self._experiences[index] for index in self._index.query_top_k(query, k)]

    def recall(self) -> list[ExperienceEntry]:
        """Return all experiences, oldest first."""
        return list(self._experiences)

    def entries(self) -> list[ExperienceEntry]:
        """Return all experiences, oldest first."""
        return list(self._experiences)

    def clear(self) -> None:
        """Forget all experiences and rebuild the index."""
        self._experiences.clear()
        self._index.build_index(())
