"""The state of a run and of its attempts: the only reducers from rows of history.jsonl and lines of attempts.jsonl.

Logs, Pareto front, fork graph, role views, reports, budgets and `autoqec show` are functions of `RunState`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, cast

from autoqec.contracts.history import AlphaSpent, AttemptLine, Begun, HistoryRow, Nominated, Planned
from autoqec.contracts.pareto import Objectives, ParetoEntry, non_dominated, non_dominated_points, sort_key
from autoqec.contracts.round import parent_branches
from autoqec.contracts.views import RoundRow

ABORTED = "orphaned_branch"  # status of an attempt that recovery closed
DELETED = "branch_manually_deleted"
BASELINE = "baseline"


@dataclass(frozen=True)
class RoundState:
    """The state of one attempt after the rows so far.

    Attributes:
        attempt_id: The attempt.
        row: Its last row that is not a deletion.
        gone: Whether its branch was deleted by the user.
        parents: Attempt ids of the rounds it was forked from, in merge order; the branch name of a parent without a
            row; `baseline` for the baseline commit.
    """

    attempt_id: str
    row: HistoryRow
    gone: bool = False
    parents: tuple[str, ...] = (BASELINE,)

    @property
    def branch(self) -> str | None:
        """The branch; None if it was deleted or never created."""
        return None if self.gone else self.row.branch

    @property
    def status(self) -> str:
        """The status of the round, which a deletion of its branch replaces."""
        return DELETED if self.gone else self.row.status

    @property
    def lost(self) -> bool:
        """Whether recovery closed the attempt without a result."""
        return self.row.status == ABORTED

    @property
    def forkable(self) -> bool:
        """Whether later rounds can fork from it."""
        return self.branch is not None and self.row.status == "ok"

    @property
    def summary(self) -> RoundRow:
        """The round as roles see it."""
        known = {name: getattr(self.row, name) for name in RoundRow.__annotations__ if name != "forkable"}
        return cast("RoundRow", known | {"forkable": self.forkable})

    @property
    def graph_node(self) -> dict[str, Any]:
        """The round as a node of fork_graph.json."""
        row = self.row
        return {
            "id": self.attempt_id,
            "round": row.round,
            "branch": self.branch,
            "commit_sha": row.commit_sha,
            "parents": self.parents,
            "fork_from_canonical": row.fork_from_canonical,
            "compose_mode": row.compose_mode,
            "status": self.status,
            "verify_verdict": row.verify_verdict,
            "delta_ler": row.delta_ler,
            "delta_vs_baseline_holdout": row.delta_vs_baseline_holdout,
            "hypothesis": row.hypothesis,
        }


@dataclass(frozen=True)
class Totals:
    """Totals of a run.

    Attributes:
        finished: Finished rounds, as counted by `--rounds`.
        ended: Finished and restored rounds.
        nominated: Ended rounds that the Analyst nominated.
        lost: Rounds aborted by a crash.
        verdicts: Number of ended rounds by verdict of the verifier ("" without one).
        failed: Number of ended rounds without a result, by status.
        best: The VERIFIED round with the largest gain.
    """

    finished: int = 0
    ended: int = 0
    nominated: int = 0
    lost: int = 0
    verdicts: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[str, int] = field(default_factory=dict)
    best: ParetoEntry | None = None


@dataclass(frozen=True)
class RunState:
    """The state derived from the rows of a run; immutable.

    Attributes:
        rounds: Rounds by attempt id, in the order of their first rows.
        branches: Attempt ids by branch name, for every name that a row gave to a round.
        verified: VERIFIED rounds by attempt id.
        front: The verified Pareto front, best first. A round whose branch was deleted remains: its commit is pinned.
        candidates: Nominated rounds that are not VERIFIED and that no other one dominates by the Runner's figures.
        totals: Totals of the run.
        last_round: The largest round number.
    """

    rounds: Mapping[str, RoundState] = field(default_factory=dict)
    branches: Mapping[str, str] = field(default_factory=dict)
    verified: Mapping[str, ParetoEntry] = field(default_factory=dict)
    front: tuple[ParetoEntry, ...] = ()
    candidates: tuple[HistoryRow, ...] = ()
    totals: Totals = Totals()
    last_round: int = 0

    def by_branch(self, branches: Iterable[str]) -> dict[str, RoundState]:
        """Return the rounds of these branches, without deleted ones."""
        known = {branch: self.rounds[self.branches[branch]] for branch in branches if branch in self.branches}
        return {branch: round_state for branch, round_state in known.items() if round_state.branch == branch}


def fold(rows: Iterable[HistoryRow]) -> RunState:
    """Return the state derived from all rows of a run."""
    draft = Draft()
    for row in rows:
        draft.take(row)
    return draft.state()


class Draft:
    """Mutable builder of a `RunState`, to which rows are applied one at a time; log.md shows its totals after each."""

    def __init__(self) -> None:
        self.rounds: dict[str, RoundState] = {}
        self._branches: dict[str, str] = {}
        self._verified: dict[str, ParetoEntry] = {}
        self._last_round = 0
        self._count, self._verdicts, self._failed = Counter[str](), Counter[str](), Counter[str]()

    def take(self, row: HistoryRow) -> None:
        """Apply one row."""
        self._last_round = max(self._last_round, row.round)
        self._count["finished"] += is_finished(row)
        attempt_id = attempt_of(row)
        before = self.rounds.get(attempt_id or "")
        if attempt_id is None or row.status == DELETED:
            if before is not None:
                self.rounds[before.attempt_id] = replace(before, gone=True)
            return
        names = parent_branches(row.fork_from)
        parents = tuple(self._branches.get(name, name) for name in names) or (BASELINE,)
        now = self.rounds[attempt_id] = RoundState(attempt_id, row, parents=parents)
        if row.branch is not None:
            self._branches[row.branch] = attempt_id
        if before is not None:
            self._add(before.row, -1)
        self._add(row, 1)
        self._verified.pop(attempt_id, None)
        if row.verify_verdict == "VERIFIED":
            self._verified[attempt_id] = pareto_entry(now)

    def _add(self, row: HistoryRow, step: int) -> None:
        self._count["lost"] += step * (row.status == ABORTED)
        if is_finished(row) or row.refers_to_attempt:
            self._count["ended"] += step
            self._count["nominated"] += step * (row.verdict == "candidate")
            self._verdicts[row.verify_verdict or ""] += step
            self._failed[row.status] += step * (row.status != "ok")

    @property
    def totals(self) -> Totals:
        """Totals after the rows so far."""
        return Totals(
            **{name: self._count[name] for name in ("finished", "ended", "nominated", "lost")},
            verdicts=dict(self._verdicts),
            failed=dict(self._failed),
            best=min(self._verified.values(), key=sort_key, default=None),
        )

    def state(self) -> RunState:
        """Return the state after the rows so far."""
        return RunState(
            rounds=self.rounds,
            branches=self._branches,
            verified=self._verified,
            front=tuple(non_dominated(self._verified.values())),
            candidates=tuple(candidate_front(found.row for found in self.rounds.values() if _is_candidate(found.row))),
            totals=self.totals,
            last_round=self._last_round,
        )


def attempt_of(row: HistoryRow) -> str | None:
    """Return the attempt that a row belongs to; a follow-up row belongs to an earlier attempt."""
    return row.refers_to_attempt or row.round_attempt_id


def is_finished(row: HistoryRow) -> bool:
    """Return whether a row is that of a finished round, as counted by `--rounds`."""
    return row.refers_to_attempt is None and row.status not in (ABORTED, DELETED)


def pareto_entry(verified: RoundState) -> ParetoEntry:
    """Return a VERIFIED round as entry of the Pareto front, with the cost that the verifier counted if it did."""
    row = verified.row
    flops, size = row.judge_flops_per_syndrome, row.judge_n_params
    return ParetoEntry.model_validate(
        {
            "round_attempt_id": verified.attempt_id,
            "commit_sha": row.commit_sha,
            "branch": row.branch,
            "delta_vs_baseline_holdout": row.delta_vs_baseline_holdout,
            "paired_eval_bundle_id": row.paired_eval_bundle_id,
            "flops_per_syndrome": row.flops_per_syndrome if flops is None else flops,
            "n_params": row.n_params if size is None else size,
            "verdict": "VERIFIED",
            "fork_from": row.fork_from,
            "fork_from_canonical": row.fork_from_canonical,
            "compose_mode": row.compose_mode,
            "delta_simultaneous_low": row.delta_simultaneous_low,
            "delta_simultaneous_high": row.delta_simultaneous_high,
            "cost_counted_by": row.cost_counted_by,
        }
    )


def candidate_front(rows: Iterable[HistoryRow]) -> list[HistoryRow]:
    """Return the nominated rows that no other one dominates by the Runner's figures, largest gain first."""
    pool = list({attempt_of(row): row for row in rows}.values())
    kept = non_dominated_points([_figures(row) for row in pool])
    rows = (row for row, keep in zip(pool, kept, strict=True) if keep)
    return sorted(rows, key=lambda row: (-_figures(row)[0], row.round))


def _is_candidate(row: HistoryRow) -> bool:
    return row.verdict == "candidate" and row.status == "ok" and row.verify_verdict != "VERIFIED"


def _figures(row: HistoryRow) -> Objectives:
    return (row.delta_ler or 0.0, -float(row.flops_per_syndrome or 0), -float(row.n_params or 0))


@dataclass(frozen=True)
class Attempt:
    """The write-ahead lines of one attempt; None for a step that was not reached."""

    id: str
    round: int
    begun: Begun | None = None
    planned: Planned | None = None
    nominated: Nominated | None = None
    registered_test: AlphaSpent | None = None

    @property
    def at(self) -> datetime | None:
        """When the attempt began."""
        return self.begun.at if self.begun else None


@dataclass(frozen=True)
class AttemptState:
    """The state derived from attempts.jsonl: attempts by id in the order of their start, and all registered tests."""

    attempts: Mapping[str, Attempt] = field(default_factory=dict)
    registered_tests: tuple[AlphaSpent, ...] = ()

    @property
    def last_round(self) -> int:
        """The largest round number."""
        return max((attempt.round for attempt in self.attempts.values()), default=0)


_STEPS = {Begun: "begun", Planned: "planned", Nominated: "nominated", AlphaSpent: "registered_test"}


def fold_attempts(lines: Iterable[AttemptLine]) -> AttemptState:
    """Return the state derived from all lines of attempts.jsonl."""
    attempts: dict[str, Attempt] = {}
    tests: list[AlphaSpent] = []
    for line in lines:
        name = line.round_attempt_id
        step: dict[str, Any] = {_STEPS[type(line)]: line}
        attempts[name] = replace(attempts.get(name) or Attempt(name, line.round), **step)
        if isinstance(line, AlphaSpent):
            tests.append(line)
    return AttemptState(attempts, tuple(tests))
