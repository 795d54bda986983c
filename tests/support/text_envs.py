"""Text environments for tests of the run loop, which record their calls in a shared log."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from autoqec.extensions.continual.agents.base import Agent, AgentConfig
from autoqec.extensions.continual.environments.base import EnvDataset, EnvDatasetConfig, Environment

Log = list[tuple[Any, ...]]


class SpyEnv(Environment):
    """`steps` steps, each with the next of `feedbacks` (the last one repeats); with None steps it never ends."""

    env_type: ClassVar[str] = "spy"

    def __init__(
        self,
        name: str,
        *,
        steps: int | None = 1,
        feedbacks: Sequence[dict[str, Any]] = ({"correct": True, "target": "t", "message": ""},),
        raise_at: int | None = None,
        before: Callable[[], None] | None = None,
        log: Log | None = None,
    ) -> None:
        self.env_id = name
        self.log: Log = log if log is not None else []
        self._steps, self._feedbacks, self._raise_at, self._before = steps, feedbacks, raise_at, before
        self._at = 0

    def reset(self) -> str:
        self.log.append(("env.reset", self.env_id))
        self._at = 0
        return f"{self.env_id}:0"

    def step(self, action: str) -> tuple[str | None, dict[str, Any], bool, dict[str, Any]]:
        self._at += 1
        self.log.append(("env.step", self.env_id, action))
        if self._before is not None:
            self._before()
        if self._raise_at == self._at:
            raise RuntimeError("the environment broke")
        done = self._at == self._steps
        feedback = self._feedbacks[min(self._at, len(self._feedbacks)) - 1]
        return None if done else f"{self.env_id}:{self._at}", dict(feedback), done, {"at": self._at}


class SpyAgent(Agent[AgentConfig]):
    """Always acts `a` and records every call in the log."""

    def __init__(self, log: Log | None = None) -> None:
        super().__init__(AgentConfig(type="spy"))
        self.log: Log = log if log is not None else []

    def act(self, obs: str) -> str:
        self.log.append(("agent.act", obs))
        return "a"

    def observe(self, obs: str | None, feedback: dict[str, Any], done: bool) -> None:
        self.log.append(("agent.observe", obs, done))

    def reset(self) -> None:
        self.log.append(("agent.reset",))

    def end_episode(self) -> None:
        self.log.append(("agent.end_episode",))


class ListDataset(EnvDataset[EnvDatasetConfig]):
    """A dataset of given environments."""

    def __init__(self, envs: Sequence[Environment]) -> None:
        self._envs = list(envs)
        super().__init__(EnvDatasetConfig())

    def load_dataset(self) -> list[Environment]:
        return self._envs


def meeting(parties: int) -> Callable[[], None]:
    """Return a model call that returns once `parties` threads are inside it, or breaks its barrier."""
    barrier = threading.Barrier(parties, timeout=20)
    return lambda: barrier.wait() and None
