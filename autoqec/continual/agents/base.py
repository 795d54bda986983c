"""Agents over text: observation in, action out; what they learn goes to a memory, and only while they train."""

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
    """Base of every agent's config; `type` is the registry's name of the agent."""

    type: str = Field(default="")


C = TypeVar("C", bound=AgentConfig)


class Agent(Generic[C]):
    """The minimal protocol. An episode is reset, (act, observe) …, end_episode.

    Whatever an episode changes is made anew by `reset`, so that clones share nothing but config, model and memory.
    """

    supported_memories: ClassVar[tuple[str, ...]] = ()  # memory types that this agent can write to

    def __init__(self, config: C, *, logger: logging.Logger | None = None) -> None:
        self.config = config
        self.logger = logger or _NULL_LOGGER
        self.training = True

    def act(self, obs: str) -> str:
        """The next action."""
        raise NotImplementedError

    def observe(self, obs: str | None, feedback: dict[str, Any], done: bool) -> None:
        """What the last action led to: the next observation (None: terminal) and the environment's judgement."""
        raise NotImplementedError

    def reset(self) -> None:
        """Forget the episode, keep what was learned."""
        raise NotImplementedError

    def end_episode(self) -> None:
        """Called once after the last step of an episode."""

    def train(self) -> None:
        self.training = True

    def eval(self) -> None:
        self.training = False

    @contextmanager
    def eval_mode(self) -> Iterator[None]:
        """Within, nothing is learned; the mode before comes back, also after an exception."""
        before = self.training
        self.eval()
        try:
            with self.frozen():
                yield
        finally:
            self.training = before

    def frozen(self) -> contextlib.AbstractContextManager[None]:
        """Within, a write to what clones share raises."""
        return contextlib.nullcontext()

    def clone_for_episode(self, *, training: bool = False, share_memory: bool = True) -> Self:
        """A twin for an episode of its own. The model is shared; the memory too, unless told."""
        clone = copy.copy(self)
        clone.training = training
        if not share_memory:
            clone.copy_memory()
        clone.reset()
        return clone

    def copy_memory(self) -> None:
        """Replace what is learned by a copy of it."""

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs beside config and memory; JSON-able."""
        return {}

    def load_state(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""


def fill_template(template: str, **values: str) -> str:
    """`template` with each `{name}` of `values` replaced, once; every other brace stays as it is."""
    names = "|".join(map(re.escape, values))
    return re.sub(r"\{(" + names + r")\}", lambda match: values[match[1]], template)
