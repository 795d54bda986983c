"""The text environment: reset and step; and a dataset of them."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Generic, Self, TypeVar

from pydantic import ValidationError

from autoqec.contracts.base import Contract, first_validation_error
from autoqec.errors import ContractError


class StepResult(Contract):
    """One recorded step. obs: the observation after it, None where the episode ended."""

    obs: str | None
    action: str
    feedback: dict[str, Any]
    done: bool


class Feedback(Contract):
    """What every environment says about an action.

    extra: figures of the task (an mcq's letters, a design's loss). score: partial credit in [0, 1]; without one the
    score is `correct`.
    """

    correct: bool
    target: str
    message: str
    extra: dict[str, Any] | None = None
    score: float | None = None


def check_feedback(feedback: Mapping[str, Any], *, location: str) -> Feedback:
    """The feedback as a value; ContractError names the wrong field."""
    try:
        return Feedback.model_validate(dict(feedback), strict=True)
    except ValidationError as error:
        raise ContractError(first_validation_error(error), location=location) from error


Step = tuple[str | None, dict[str, Any], bool, dict[str, Any]]


class Environment(ABC):
    """One task. `reset` starts an episode; `step` takes the agent's words until the episode is done."""

    env_type: ClassVar[str] = "environment"
    env_id: str = ""

    @abstractmethod
    def reset(self) -> str:
        """The first observation."""

    @abstractmethod
    def step(self, action: str) -> Step:
        """(next observation or None when terminal, feedback, done, info). ContractError once the episode is done."""

    def evaluate(self, action: str) -> dict[str, Any]:
        """The feedback that `step` would give, where it depends on nothing but the action."""
        raise NotImplementedError(f"{type(self).__name__} judges steps, not single actions")


class EnvDatasetConfig(Contract):
    """Base of every dataset's config; `kind` selects the dataset."""

    kind: str = ""

    def resolved(self, base: Path) -> Self:
        """The config with the paths in it absolute; relative ones are relative to `base`."""
        return self


D = TypeVar("D", bound=EnvDatasetConfig)


class EnvDataset(ABC, Generic[D]):
    """Environments, built once. `errors`: rows that could not become one; the others are there."""

    def __init__(self, config: D, *, logger: logging.Logger | None = None) -> None:
        self.config = config
        self.logger = logger or logging.getLogger("autoqec.silent")
        self.errors: list[str] = []
        self.dataset: list[Environment] = self.load_dataset()

    @abstractmethod
    def load_dataset(self) -> list[Environment]:
        """Build the environments from their source. UsageError where there is none to build."""

    def get_dataset(self) -> list[Environment]:
        """The environments, the same objects every time."""
        return self.dataset


def episode_done_error(env: Environment) -> ContractError:
    return ContractError("the episode is done; `reset` starts another", location=env.env_id or type(env).__name__)
