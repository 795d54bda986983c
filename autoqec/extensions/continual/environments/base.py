"""Text environments with `reset` and `step`, and datasets of them."""

from __future__ import annotations

import logging
import random
from abc import ABC, abstractmethod
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from autoqec.contracts.base import Contract
from autoqec.errors import ContractError


class StepResult(Contract):
    """One recorded step. `obs` is the observation after it; None at the end of the episode."""

    obs: str | None
    action: str
    feedback: dict[str, Any]
    done: bool


Step = tuple[str | None, dict[str, Any], bool, dict[str, Any]]


class Environment(ABC):
    """One task. `reset` starts an episode; `step` takes the text of the agent until the episode is done."""

    env_type: ClassVar[str] = "environment"
    env_id: str = ""

    @cached_property
    def rng(self) -> random.Random:
        """The environment's own generator; unlike a global one it is reproducible in parallel validation episodes."""
        return random.Random()

    def seed(self, seed: int) -> None:
        """Seed `rng`; environments with generators of their own override this."""
        self.rng = random.Random(seed)

    @abstractmethod
    def reset(self) -> str:
        """Start an episode and return its first observation."""

    @abstractmethod
    def step(self, action: str) -> Step:
        """Take one action.

        Returns:
            (next observation or None at the end, feedback, done, info).

        Raises:
            ContractError: The episode is done.
        """

    def evaluate(self, action: str) -> dict[str, Any]:
        """Return the feedback that `step` would give, for environments in which it depends on the action alone."""
        raise NotImplementedError(f"{type(self).__name__} evaluates steps, not single actions")


class EnvDatasetConfig(Contract):
    """Base of the configs of datasets; `kind` selects the dataset."""

    kind: str = ""

    def resolved(self, base: Path) -> Self:
        """Return the config with absolute paths; relative ones are relative to `base`."""
        return self


D = TypeVar("D", bound=EnvDatasetConfig)


class EnvDataset(ABC, Generic[D]):
    """Environments, built once. `errors` lists the rows that could not be turned into an environment."""

    def __init__(self, config: D, *, logger: logging.Logger | None = None) -> None:
        self.config = config
        self.logger = logger or logging.getLogger("autoqec.silent")
        self.errors: list[str] = []
        self.dataset: list[Environment] = self.load_dataset()

    @abstractmethod
    def load_dataset(self) -> list[Environment]:
        """Build the environments. UsageError if there are none."""

    def get_dataset(self) -> list[Environment]:
        """Return the environments, the same objects on every call."""
        return self.dataset


def episode_done_error(env: Environment) -> ContractError:
    """Return the error of a step after the end of an episode."""
    return ContractError("the episode is done; call `reset` first", location=env.env_id or type(env).__name__)
