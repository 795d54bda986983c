"""Agents over text, observation in and action out; they learn only in training mode."""

from __future__ import annotations

import contextlib
import copy
import logging
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

from pydantic import Field, SerializeAsAny, field_validator

from autoqec.contracts.base import Contract, canonical_json
from autoqec.errors import UsageError
from autoqec.extensions.continual.memory.base import Entry, ExperienceEntry, MemoryModuleConfig, ReflectionEntry
from autoqec.extensions.continual.memory.modules import HistoryListConfig, Memory, build_memory, parse_memory_config
from autoqec.extensions.language_models.clients.base import LanguageModel
from autoqec.extensions.language_models.clients.config import LMConfig

_NULL_LOGGER = logging.getLogger("autoqec.silent")
_NULL_LOGGER.addHandler(logging.NullHandler())
_NULL_LOGGER.propagate = False


class AgentConfig(Contract):
    """Base of every agent's config; `type` is the name of the agent in the registry."""

    type: str = Field(default="")


C = TypeVar("C", bound=AgentConfig)


class Agent(Generic[C]):
    """Protocol of an agent: an episode is `reset`, then (`act`, `observe`) per step, then `end_episode`.

    `reset` recreates everything that an episode changes, so that clones share only config, model and memory.
    """

    supported_memories: ClassVar[tuple[str, ...]] = ()  # memory types that this agent can write to

    def __init__(self, config: C, *, logger: logging.Logger | None = None) -> None:
        self.config = config
        self.logger = logger or _NULL_LOGGER
        self.training = True

    def act(self, obs: str) -> str:
        """Return the next action."""
        raise NotImplementedError

    def observe(self, obs: str | None, feedback: dict[str, Any], done: bool) -> None:
        """Take in the result of the last action.

        Args:
            obs: The next observation; None at the end of the episode.
            feedback: The environment's feedback on the action.
            done: Whether the episode has ended.
        """
        raise NotImplementedError

    def reset(self) -> None:
        """Forget the episode and keep what was learned."""
        raise NotImplementedError

    def end_episode(self) -> None:
        """Run once after the last step of an episode."""

    def train(self) -> None:
        """Switch to training mode."""
        self.training = True

    def eval(self) -> None:
        """Switch to evaluation mode, in which nothing is learned."""
        self.training = False

    @contextmanager
    def eval_mode(self) -> Iterator[None]:
        """Evaluate within the block; the previous mode is restored afterwards, also after an exception."""
        before = self.training
        self.eval()
        try:
            with self.frozen():
                yield
        finally:
            self.training = before

    def frozen(self) -> contextlib.AbstractContextManager[None]:
        """Raise on writes to shared state within the block."""
        return contextlib.nullcontext()

    def clone_for_episode(self, *, training: bool = False, share_memory: bool = True) -> Self:
        """Return a copy with an episode of its own.

        Args:
            training: Mode of the copy.
            share_memory: Whether the copy uses the same memory. The model is always shared.
        """
        clone = copy.copy(self)
        clone.training = training
        if not share_memory:
            clone.copy_memory()
        clone.reset()
        return clone

    def copy_memory(self) -> None:
        """Replace the memory by a copy of it."""

    def state(self) -> dict[str, Any]:
        """Return the JSON-able state that a checkpoint needs in addition to config and memory."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore the result of `state`."""


def fill_template(template: str, **values: str) -> str:
    """Replace each `{name}` of `values` in `template` once; other braces stay as they are."""
    names = "|".join(map(re.escape, values))
    return re.sub(r"\{(" + names + r")\}", lambda match: values[match[1]], template)


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


CHARS_PER_TOKEN = 4  # an upper bound of our own, because providers count tokens differently

DEFAULT_REFLECTION_PROMPT = (
    "You look back on an episode. Write short dos and don'ts that would help with the next one. "
    "Do not repeat the episode."
)


class ReflectionConfig(Contract):
    """When and how to reflect."""

    enabled: bool = True
    mode: Literal["episode_end", "per_step", "both"] = "episode_end"
    max_tokens: int | None = Field(default=None, ge=1, description="budget of one reflection; null: the model's own")
    system_prompt: str | None = None

    def at(self, moment: Literal["episode_end", "per_step"]) -> bool:
        """Return whether to reflect at this moment."""
        return self.enabled and self.mode in (moment, "both")


class ReflexionAgentConfig(MemoryAgentConfig):
    """Config of `ReflexionAgent`."""

    type: str = "reflexion_agent"
    reflection_config: ReflectionConfig = ReflectionConfig()


class ReflexionAgent(MemoryAgent[ReflexionAgentConfig]):
    """Agent that reflects after steps, after episodes, or both; never in evaluation mode."""

    supported_memories: ClassVar[tuple[str, ...]] = ("history_list", "hybrid")

    def update_memory(self, obs: str, action: str, feedback: dict[str, Any], done: bool) -> None:
        """Reflect on the step if configured, then store it."""
        if self.config.reflection_config.at("per_step"):
            self._reflect(self._trajectory[-1:])
        super().update_memory(obs, action, feedback, done)

    def end_episode(self) -> None:
        """Reflect on the episode if configured."""
        if self._trajectory and self.config.reflection_config.at("episode_end"):
            self._reflect(self._trajectory)

    def build_reflection_prompt(self, trajectory: Sequence[ExperienceEntry]) -> tuple[str, str]:
        """Return system and user prompt for a reflection on the given steps."""
        config = self.config.reflection_config
        system = config.system_prompt or DEFAULT_REFLECTION_PROMPT
        if config.max_tokens is not None:
            system += f" Use at most {config.max_tokens} tokens."
        steps = [f"Step {number}: {step.line()}" for number, step in enumerate(trajectory, start=1)]
        return system, "\n".join([*steps, "What to do, and what not to do, next time:"])

    def _reflect(self, trajectory: Sequence[ExperienceEntry]) -> None:
        """Store a reflection. A failed call loses the reflection, not the run."""
        if not self.training:
            return
        try:
            text = self.call_model("reflections", *self.build_reflection_prompt(trajectory)).strip()
        except Exception as error:
            self.logger.warning("no reflection: %s: %s", type(error).__name__, error)
            return
        if self.config.reflection_config.max_tokens is not None:
            text = text[: CHARS_PER_TOKEN * self.config.reflection_config.max_tokens]
        if text:
            self.update_memory_with_entry(ReflectionEntry(content=text))
