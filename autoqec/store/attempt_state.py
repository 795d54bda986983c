"""The state of the attempts of a run: the only reducer from lines of attempts.jsonl."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

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
    for line in lines:
        attempt = attempts.get(line.round_attempt_id) or Attempt(line.round_attempt_id, line.round)
        if isinstance(line, Begun):
            attempt = replace(attempt, at=line.at)
        elif isinstance(line, Planned):
            attempt = replace(attempt, planned=line)
        elif isinstance(line, Nominated):
            attempt = replace(attempt, nominated=line)
        else:
            attempt = replace(attempt, registered_test=line)
            tests.append(line)
        attempts[attempt.id] = attempt
        last_round = max(last_round, attempt.round)
    return AttemptState(attempts, tuple(tests), last_round)
