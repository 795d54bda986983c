"""Base classes of agents over text: observation in, action out; they learn only in training mode."""

from __future__ import annotations

import contextlib
import copy
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, ClassVar, Generic, Self, TypeVar

from pydantic import Field

from autoqec.contracts.base import Contract

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
