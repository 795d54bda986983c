"""HistoryAgent: the memory as typed lines, for any task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from autoqec.continual.agents.memory_agent import MemoryAgent, MemoryAgentConfig, last_k
from autoqec.continual.memory.entries import Entry
from autoqec.contracts.base import canonical_json


class HistoryAgentConfig(MemoryAgentConfig):
    type: str = "history_agent"


class HistoryAgent(MemoryAgent[HistoryAgentConfig]):
    """Each step becomes three entries: Observation, Action, Feedback. `history_k` counts entries."""

    supported_memories: ClassVar[tuple[str, ...]] = ("history_list", "hybrid")
    default_system_prompt: ClassVar[str] = "You are a helpful assistant. Use prior history when useful."

    def update_memory(self, obs: str, action: str, feedback: dict[str, Any], done: bool) -> None:
        for kind, content in (("Observation", obs), ("Action", action), ("Feedback", canonical_json(feedback))):
            self.update_memory_with_entry(Entry(type=kind, content=content))

    def build_user_prompt(self, obs: str, history: Sequence[Entry], k: int | None) -> str:
        return "\n".join([*(entry.line() for entry in last_k(history, k)), f"Observation: {obs}"])
