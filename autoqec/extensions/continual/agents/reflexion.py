"""ReflexionAgent: asks the model what an episode taught and remembers the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field

from autoqec.contracts.base import Contract
from autoqec.extensions.continual.agents.memory_agent import MemoryAgent, MemoryAgentConfig
from autoqec.extensions.continual.memory.entries import ExperienceEntry, ReflectionEntry

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
