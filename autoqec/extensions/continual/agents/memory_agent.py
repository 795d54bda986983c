"""MemoryAgent: recalls, prompts a model and remembers each step. MemorylessAgent: the baseline without memory."""

from __future__ import annotations

import contextlib
import copy
import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Literal, TypeVar

from pydantic import Field, SerializeAsAny, field_validator

from autoqec.errors import UsageError
from autoqec.extensions.continual.agents.base import Agent, AgentConfig
from autoqec.extensions.continual.memory.base import MemoryModuleConfig
from autoqec.extensions.continual.memory.entries import Entry, ExperienceEntry
from autoqec.extensions.continual.memory.factory import Memory, build_memory, parse_memory_config
from autoqec.extensions.continual.memory.history_list import HistoryListConfig
from autoqec.extensions.language_models.clients.base import LanguageModel
from autoqec.extensions.language_models.clients.config import LMConfig

CallKind = Literal["actions", "reflections"]


class LMAgentConfig(AgentConfig):
    """Config shared by all agents that call a language model."""

    lm_config: LMConfig | None = Field(default=None, description="null: the model that the agent is given")
    system_prompt: str | None = Field(default=None, description="null: the agent's own")
    agent_class: str | None = Field(
        default=None,
        description="a subclass of the class of `type`: package.module.Class, or module.Class of a file beside the "
        "config; null: the class itself",
    )


class MemoryAgentConfig(LMAgentConfig):
    """Config of `MemoryAgent`."""

    type: str = "memory_agent"
    memory_config: SerializeAsAny[MemoryModuleConfig] = HistoryListConfig()
    history_k: int | None = Field(default=10, ge=0, description="entries shown in the prompt; null: all, 0: none")

    @field_validator("memory_config", mode="before")
    @classmethod
    def _by_type(cls, value: Any) -> MemoryModuleConfig:
        return parse_memory_config(value, location="memory_config")


class MemorylessAgentConfig(LMAgentConfig):
    """Config of `MemorylessAgent`."""

    type: str = "memoryless_agent"


L = TypeVar("L", bound=LMAgentConfig)
M = TypeVar("M", bound=MemoryAgentConfig)


class LMAgent(Agent[L]):
    """Agent whose action is the answer of a language model."""

    default_system_prompt: ClassVar[str] = "You are a helpful QA assistant. Use prior history when useful."

    def __init__(self, config: L, lm: LanguageModel, *, logger: logging.Logger | None = None) -> None:
        super().__init__(config, logger=logger)
        self.lm = lm
        self.on_call: Callable[[dict[str, Any]], None] | None = None  # receives one record per call
        self.reset()

    def reset(self) -> None:
        """Forget the last action."""
        self._last_action: str | None = None

    def build_system_prompt(self) -> str:
        """Return the configured system prompt, or the agent's default."""
        return self.config.system_prompt or self.default_system_prompt

    def call_model(self, kind: CallKind, system: str, user: str) -> str:
        """Call the model once and report the call to `on_call`, whether it succeeded or not."""
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
    """Agent that answers each observation independently; the baseline for the value of a memory."""

    def act(self, obs: str) -> str:
        """Answer one observation."""
        return self.call_model("actions", self.build_system_prompt(), f"Q: {obs}")

    def observe(self, obs: str | None, feedback: dict[str, Any], done: bool) -> None:
        """Store nothing."""


class MemoryAgent(LMAgent[M]):
    """Agent that shows the last entries of its memory with the observation and stores each step as an experience."""

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
                f"{type(self).__name__} cannot write to a memory of type {self.memory.config.type!r}",
                location="memory",
                hint=f"one of {', '.join(self.supported_memories)}",
            )
        super().__init__(config, lm, logger=logger)

    def reset(self) -> None:
        """Start an episode: forget pending observation and trajectory, keep the memory."""
        super().reset()
        self._last_obs: str | None = None
        self._trajectory: list[ExperienceEntry] = []
        # In evaluation mode an episode still recalls its own earlier steps.
        self._episode_entries: list[Entry] = []

    def act(self, obs: str) -> str:
        """Answer an observation, given what is remembered."""
        user = self.build_user_prompt(obs, self.history(), self.config.history_k)
        return self.remember(obs, self.call_model("actions", self.build_system_prompt(), user))

    def remember(self, obs: str, action: str) -> str:
        """Store what `observe` needs and return the action."""
        self._last_obs, self._last_action = obs, action
        return action

    def observe(self, obs: str | None, feedback: dict[str, Any], done: bool) -> None:
        """Store the step under the observation that was acted on; do nothing without a previous action."""
        if self._last_action is None or self._last_obs is None:
            return
        acted_on, action = self._last_obs, self._last_action
        self._last_obs = self._last_action = None
        self._trajectory.append(ExperienceEntry(obs=acted_on, action=action, feedback=feedback))
        self.update_memory(acted_on, action, feedback, done)

    def update_memory(self, obs: str, action: str, feedback: dict[str, Any], done: bool) -> None:
        """Store one step. Subclasses override this; `obs` is the observation that was acted on."""
        self.update_memory_with_entry(ExperienceEntry(obs=obs, action=action, feedback=feedback))

    def update_memory_with_entry(self, entry: Entry) -> None:
        """Store an entry in the memory, or only for this episode in evaluation mode."""
        if self.training:
            self.memory.update(entry)
        else:
            self._episode_entries.append(entry)

    def history(self) -> list[Entry]:
        """Return remembered entries, oldest first; in evaluation mode followed by the episode's own steps."""
        return [*self.memory.recall(), *self._episode_entries]

    def build_user_prompt(self, obs: str, history: Sequence[Entry], k: int | None) -> str:
        """Return the last k entries and the question, one per line."""
        return "\n".join([*(entry.line() for entry in last_k(history, k)), f"Q: {obs}"])

    def frozen(self) -> contextlib.AbstractContextManager[None]:
        """Raise on writes to the memory within the block."""
        return self.memory.frozen()

    def copy_memory(self) -> None:
        """Replace the memory by a deep copy."""
        self.memory = copy.deepcopy(self.memory)


E = TypeVar("E", bound=Entry)


def last_k(entries: Sequence[E], k: int | None) -> list[E]:
    """Return the last k entries, or all for None. A slice of `-0:` would return all for 0."""
    return list(entries) if k is None else list(entries[max(len(entries) - k, 0) :])
