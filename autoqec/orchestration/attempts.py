"""Attempts and rows read together: what each attempt has reached, and what is known of each round by now."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from autoqec.contracts.history import AttemptLine, Begun, Charged, HistoryRow, Nominated, Planned
from autoqec.contracts.round import ForkFrom


@dataclass(frozen=True)
class Attempt:
    """The write-ahead lines of one attempt; what is None was never reached."""

    id: str
    round: int
    planned: Planned | None = None
    nominated: Nominated | None = None
    charged: Charged | None = None


def group(lines: Iterable[AttemptLine]) -> dict[str, Attempt]:
    """Attempts by id, in the order they began."""
    found: dict[str, dict[str, Any]] = {}
    for line in lines:
        reached = found.setdefault(line.round_attempt_id, {"id": line.round_attempt_id, "round": line.round})
        if not isinstance(line, Begun):
            reached[line.kind] = line
    return {name: Attempt(**reached) for name, reached in found.items()}


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

    def is_as(self, other: Standing) -> bool:
        """Whether nothing was added since; rows are compared by identity, for they never change."""
        return self.row is other.row and self.gone == other.gone


def standings(rows: Iterable[HistoryRow]) -> list[Standing]:
    """One a closed attempt, in the order of their first rows."""
    found: dict[str, Standing] = {}
    for row in rows:
        attempt_id = row.refers_to_attempt or row.round_attempt_id
        if attempt_id is None:
            continue
        if row.status == "branch_manually_deleted":
            if attempt_id in found:
                found[attempt_id] = replace(found[attempt_id], gone=True)
        else:
            found[attempt_id] = Standing(attempt_id, row)
    return list(found.values())


def is_finished(row: HistoryRow) -> bool:
    """Whether a row is a round that came to its end: what `--rounds` counts."""
    return row.refers_to_attempt is None and row.status not in ("orphaned_branch", "branch_manually_deleted")


def next_round(attempts: dict[str, Attempt], rows: Iterable[HistoryRow]) -> int:
    """Never a number that was used, finished or not."""
    return max((*(one.round for one in attempts.values()), *(row.round for row in rows)), default=0) + 1


def compose_parents(fork_from: ForkFrom) -> tuple[str, ...]:
    """The branches a round stands on, first parent first; () for the baseline."""
    if fork_from == "baseline":
        return ()
    return (fork_from,) if isinstance(fork_from, str) else fork_from
