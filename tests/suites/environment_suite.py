"""Conformance checks of text environments; `check` runs them all on one factory."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from autoqec.contracts.base import Contract
from autoqec.errors import ContractError
from autoqec.extensions.continual.environments.base import Environment


class Feedback(Contract):
    """Feedback on an action.

    Attributes:
        correct: Whether the action solves the task.
        target: The expected answer.
        message: Short explanation.
        extra: Figures of the task, such as the letters of a multiple-choice question or the loss of a design.
        score: Partial credit in [0, 1]; None: 1 if correct, else 0.
    """

    correct: bool
    target: str
    message: str
    extra: dict[str, Any] | None = None
    score: float | None = None


def check(make: Callable[[], Environment], actions: list[str]) -> None:
    """Check an environment. make: returns a fresh one. actions: texts of one episode; the last one must end it."""
    env = make()
    assert isinstance(env, Environment) and env.env_id and env.env_type != Environment.env_type
    first = env.reset()
    assert isinstance(first, str) and first
    runs = [_episode(env, actions) for _ in range(2)]
    assert runs[0] == runs[1], "reset must bring the same episode back"
    assert _episode(make(), actions) == runs[0], "an environment is a function of its config"
    with pytest.raises(ContractError, match="done"):
        env.step(actions[-1])
    assert env.reset() == first


def _episode(env: Environment, actions: list[str]) -> list[str]:
    log = [env.reset()]
    for number, action in enumerate(actions, start=1):
        obs, feedback, done, info = env.step(action)
        parsed = Feedback.model_validate(feedback, strict=True)
        assert parsed.score is None or 0.0 <= parsed.score <= 1.0
        assert done is (number == len(actions))
        assert isinstance(obs, str) or (obs is None and done)
        assert isinstance(info, dict)
        log.append(json.dumps([obs, feedback, done, info], allow_nan=False))
    return log
