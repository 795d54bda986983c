"""Attempts and rows read together: what each attempt has reached, and what is known of each round by now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime

from autoqec.contracts.history import AttemptLine, Begun, Charged, HistoryRow, Nominated, Planned
from autoqec.contracts.round import ForkFrom


@dataclass(frozen=True)
class Attempt:
    """The write-ahead lines of one attempt; what is None was never reached. at: when it began."""

    id: str
    round: int
    at: datetime | None = None
    planned: Planned | None = None
    nominated: Nominated | None = None
    charged: Charged | None = None


def reached(found: dict[str, Attempt], line: AttemptLine) -> Attempt:
    """Take one line into `found`: attempts by id, in the order they began. Returns the attempt as it now stands."""
    attempt = found.get(line.round_attempt_id) or Attempt(line.round_attempt_id, line.round)
    if isinstance(line, Begun):
        attempt = replace(attempt, at=line.at)
    elif isinstance(line, Planned):
        attempt = replace(attempt, planned=line)
    elif isinstance(line, Nominated):
        attempt = replace(attempt, nominated=line)
    elif isinstance(line, Charged):
        attempt = replace(attempt, charged=line)
    found[attempt.id] = attempt
    return attempt


def group(lines: Iterable[AttemptLine]) -> dict[str, Attempt]:
    """Attempts by id, in the order they began."""
    found: dict[str, Attempt] = {}
    for line in lines:
        reached(found, line)
    return found


@dataclass(frozen=True)
class Standing:
    """One attempt's round as follow-up rows leave it.

    row: the last row that says what the round is. gone: a person deleted its branch.
    """

    attempt_id: str
    row: HistoryRow
    gone: bool = False

    @property
    def branch(self) -> str | None:
        return None if self.gone else self.row.branch


def stand(found: dict[str, Standing], row: HistoryRow) -> Standing | None:
    """Take one row into `found`: one standing a closed attempt, in the order of their first rows. Returns the one that
    the row speaks of; None where it speaks of none."""
    attempt_id = row.refers_to_attempt or row.round_attempt_id
    if attempt_id is None:
        return None
    if row.status != "branch_manually_deleted":
        found[attempt_id] = Standing(attempt_id, row)
    elif attempt_id in found:
        found[attempt_id] = replace(found[attempt_id], gone=True)
    return found.get(attempt_id)


def standings(rows: Iterable[HistoryRow]) -> list[Standing]:
    """One a closed attempt, in the order of their first rows."""
    found: dict[str, Standing] = {}
    for row in rows:
        stand(found, row)
    return list(found.values())


def is_finished(row: HistoryRow) -> bool:
    """Whether a row is a round that came to its end: what `--rounds` counts."""
    return row.refers_to_attempt is None and row.status not in ("orphaned_branch", "branch_manually_deleted")


def compose_parents(fork_from: ForkFrom) -> tuple[str, ...]:
    """The branches a round stands on, first parent first; () for the baseline."""
    if fork_from == "baseline":
        return ()
    return (fork_from,) if isinstance(fork_from, str) else fork_from
