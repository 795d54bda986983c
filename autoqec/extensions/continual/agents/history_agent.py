"""HistoryAgent: shows its memory as typed lines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from autoqec.contracts.base import canonical_json
from autoqec.extensions.continual.agents.memory_agent import MemoryAgent, MemoryAgentConfig, last_k
from autoqec.extensions.continual.memory.entries import Entry


class HistoryAgentConfig(MemoryAgentConfig):
    """Config of `HistoryAgent`."""

    type: str = "history_agent"


class HistoryAgent(MemoryAgent[HistoryAgentConfig]):
    """Agent that stores three entries per step (Observation, Action, Feedback); `history_k` counts entries."""

    supported_memories: ClassVar[tuple[str, ...]] = ("history_list", "hybrid")
    default_system_prompt: ClassVar[str] = "You are a helpful assistant. Use prior history when useful."

    def update_memory(self, obs: str, action: str, feedback: dict[str, Any], done: bool) -> None:
        """Store observation, action and feedback as separate entries."""
        for kind, content in (("Observation", obs), ("Action", action), ("Feedback", canonical_json(feedback))):
            self.update_memory_with_entry(Entry(type=kind, content=content))

    def build_user_prompt(self, obs: str, history: Sequence[Entry], k: int | None) -> str:
        """Return the last k entries and the observation, one per line."""
        return "\n".join([*(entry.line() for entry in last_k(history, k)), f"Observation: {obs}"])
