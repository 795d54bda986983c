"""The state of the attempts of a run: the only reducer from lines of attempts.jsonl."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from autoqec.contracts.history import AlphaSpent, AttemptLine, Begun, Nominated, Planned


@dataclass(frozen=True)
class Attempt:
    """The write-ahead lines of one attempt; None for a step that was not reached. `at` is its start."""

    id: str
    round: int
    at: datetime | None = None
    planned: Planned | None = None
    nominated: Nominated | None = None
    registered_test: AlphaSpent | None = None


@dataclass(frozen=True)
class AttemptState:
    """The state derived from attempts.jsonl: attempts by id in the order of their start, and all registered tests."""

    attempts: Mapping[str, Attempt] = field(default_factory=dict)
    registered_tests: tuple[AlphaSpent, ...] = ()
    last_round: int = 0


def apply_lines(state: AttemptState, lines: Iterable[AttemptLine]) -> AttemptState:
    """Return the state after further lines; the given state is not changed."""
    attempts, tests, last_round = dict(state.attempts), list(state.registered_tests), state.last_round
    changes: dict[str, dict[str, Any]] = {}
    for line in lines:
        name = line.round_attempt_id
        if name not in attempts:
            attempts[name] = Attempt(name, line.round)
        changed = changes.setdefault(name, {})
        if isinstance(line, Begun):
            changed["at"] = line.at
        elif isinstance(line, Planned):
            changed["planned"] = line
        elif isinstance(line, Nominated):
            changed["nominated"] = line
        else:
            changed["registered_test"] = line
            tests.append(line)
        last_round = max(last_round, attempts[name].round)
    for name, changed in changes.items():
        attempts[name] = replace(attempts[name], **changed)
    return AttemptState(attempts, tuple(tests), last_round)
