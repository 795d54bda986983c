"""MemoryAgent: recall, prompt, ask, and remember. MemorylessAgent: the same without remembering, to compare with."""

from __future__ import annotations

import contextlib
import copy
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import Field, SerializeAsAny, field_validator

from autoqec.continual.agents.base import Agent, AgentConfig
from autoqec.continual.memory.base import MemoryModuleConfig
from autoqec.continual.memory.entries import Entry, ExperienceEntry
from autoqec.continual.memory.factory import Memory, build_memory, parse_memory_config
from autoqec.continual.memory.history_list import HistoryListConfig
from autoqec.errors import UsageError
from autoqec.llm.base import LanguageModel
from autoqec.llm.config import LMConfig

CallKind = Literal["actions", "reflections"]


class LMAgentConfig(AgentConfig):
    """What every agent that asks a language model has."""

    lm_config: LMConfig | None = Field(default=None, description="null: the model that the agent is given")
    system_prompt: str | None = Field(default=None, description="null: the agent's own")


class MemoryAgentConfig(LMAgentConfig):
    type: str = "memory_agent"
    memory_config: SerializeAsAny[MemoryModuleConfig] = HistoryListConfig()
    history_k: int | None = Field(default=10, ge=0, description="entries shown in the prompt; null: all, 0: none")

    @field_validator("memory_config", mode="before")
    @classmethod
    def _by_type(cls, value: Any) -> MemoryModuleConfig:
        return parse_memory_config(value, location="memory_config")


class MemorylessAgentConfig(LMAgentConfig):
    type: str = "memoryless_agent"


L = TypeVar("L", bound=LMAgentConfig)
M = TypeVar("M", bound=MemoryAgentConfig)


class LMAgent(Agent[L]):
    """An agent whose action is a language model's answer."""

    default_system_prompt: ClassVar[str] = "You are a helpful QA assistant. Use prior history when useful."

    def __init__(self, config: L, lm: LanguageModel, *, logger: logging.Logger | None = None) -> None:
        super().__init__(config, logger=logger)
        self.lm = lm
        self.on_call: Callable[[dict[str, Any]], None] | None = None  # one record a call, for whoever keeps them
        self.reset()

    def reset(self) -> None:
        self._last_action: str | None = None

    def build_system_prompt(self) -> str:
        return self.config.system_prompt or self.default_system_prompt

    def call_model(self, kind: CallKind, system: str, user: str) -> str:
        """One call to the model, reported to `on_call` whether it ends well or not."""
        record: dict[str, Any] = {"kind": kind, "system_prompt": system, "user_prompt": user, "output": None}
        start = time.monotonic()
        try:
            record["output"] = self.lm.call(system, user)
        except Exception as error:
            record["error"] = f"{type(error).__name__}: {error}"
            raise
        finally:
            record["duration_ms"] = round(1000 * (time.monotonic() - start), 3)
            if self.on_call is not None:
                self.on_call(record)
        return str(record["output"])


class MemorylessAgent(LMAgent[MemorylessAgentConfig]):
    """Answers each observation alone: what a memory is worth is measured against it."""

    def act(self, obs: str) -> str:
        return self.call_model("actions", self.build_system_prompt(), f"Q: {obs}")

    def observe(self, obs: str | None, feedback: dict[str, Any], done: bool) -> None:
        """Nothing is kept."""


class MemoryAgent(LMAgent[M]):
    """Shows the last entries of its memory with the observation, and keeps each step as an experience."""

    supported_memories: ClassVar[tuple[str, ...]] = ("history_list", "experience_db", "hybrid")

    def __init__(
        self,
        config: M,
        lm: LanguageModel,
        *,
        memory: Memory | None = None,
        logger: logging.Logger | None = None,
    ) -> None:
        self.memory: Memory = build_memory(config.memory_config) if memory is None else memory
        if self.memory.config.type not in self.supported_memories:
            raise UsageError(
                f"{type(self).__name__} can't write to a memory of type {self.memory.config.type!r}",
                location="memory",
                hint=f"one of {', '.join(self.supported_memories)}",
            )
        super().__init__(config, lm, logger=logger)

    def reset(self) -> None:
        super().reset()
        self._last_obs: str | None = None
        self._trajectory: list[ExperienceEntry] = []
        # While nothing may be learned, an episode still knows its own earlier steps.
        self._episode_entries: list[Entry] = []

    def act(self, obs: str) -> str:
        user = self.build_user_prompt(obs, self.history(), self.config.history_k)
        return self.remember(obs, self.call_model("actions", self.build_system_prompt(), user))

    def remember(self, obs: str, action: str) -> str:
        """Note what `observe` will need; returns the action."""
        self._last_obs, self._last_action = obs, action
        return action

    def observe(self, obs: str | None, feedback: dict[str, Any], done: bool) -> None:
        """The step becomes an experience, under the observation that was acted on. Nothing without an action before."""
        if self._last_action is None or self._last_obs is None:
            return
        acted_on, action = self._last_obs, self._last_action
        self._last_obs = self._last_action = None
        self._trajectory.append(ExperienceEntry(obs=acted_on, action=action, feedback=feedback))
        self.update_memory(acted_on, action, feedback, done)

    def update_memory(self, obs: str, action: str, feedback: dict[str, Any], done: bool) -> None:
        """Extension point. obs: the observation that was acted on."""
        self.update_memory_with_entry(ExperienceEntry(obs=obs, action=action, feedback=feedback))

    def update_memory_with_entry(self, entry: Entry) -> None:
        if self.training:
            self.memory.update(entry)
        else:
            self._episode_entries.append(entry)

    def history(self) -> list[Entry]:
        """What is remembered, oldest first, and in an evaluation episode its own steps."""
        return [*self.memory.recall(), *self._episode_entries]

    def build_user_prompt(self, obs: str, history: Sequence[Entry], k: int | None) -> str:
        return "\n".join([*(entry.line() for entry in last_k(history, k)), f"Q: {obs}"])

    def frozen(self) -> contextlib.AbstractContextManager[None]:
        return self.memory.frozen()

    def copy_memory(self) -> None:
        self.memory = copy.deepcopy(self.memory)


E = TypeVar("E", bound=Entry)


def last_k(entries: Sequence[E], k: int | None) -> list[E]:
    """The last k; all for None. (A slice of `-0:` would be everything.)"""
    return list(entries) if k is None else list(entries[max(len(entries) - k, 0) :])
