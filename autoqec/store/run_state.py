"""The state of a run and of its attempts: the only reducers from rows of history.jsonl and lines of attempts.jsonl.

Logs, Pareto front, fork graph, role views, reports, budgets and `autoqec show` are functions of `RunState`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from functools import cached_property
from typing import Any

from autoqec.contracts.history import AlphaSpent, AttemptLine, Begun, HistoryRow, Nominated, Planned
from autoqec.contracts.pareto import Objectives, ParetoEntry, non_dominated, non_dominated_points, sort_key
from autoqec.contracts.round import parent_branches

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

    @cached_property
    def summary(self) -> RoundSummary:
        """The round as roles see it; cached, since the state is immutable."""
        row = self.row.dump()
        forkable = self.branch is not None and self.row.status == "ok"
        known = {name: row[name] for name in SUMMARY_FIELDS}
        return RoundSummary(known | {"fork_from": self.row.fork_from, "forkable": forkable})

    @cached_property
    def graph_node(self) -> str:
        """The round as one line of JSON in fork_graph.json."""
        row = self.row
        node = {
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
        return json.dumps(node, ensure_ascii=False, allow_nan=False)


SUMMARY_FIELDS = (
    *("round", "status", "status_reason", "hypothesis", "fork_from", "fork_from_canonical", "compose_mode", "branch"),
    *("dsl_config", "delta_ler", "delta_vs_parent", "val_shots", "flops_per_syndrome", "n_params", "verdict"),
    *("verify_verdict", "verify_reasons", "delta_vs_baseline_holdout", "delta_holdout_low", "delta_holdout_high"),
    *("beats_panel", "summary_1line", "next_hypothesis_seed"),
)


class RoundSummary(dict[str, Any]):
    """A round as roles see it. Shared by all of them and therefore immutable; `dict(summary)` is a mutable copy."""

    def _reject(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a round summary is immutable; dict(summary) returns a mutable copy")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _reject

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


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

    def round_of(self, row: HistoryRow) -> RoundState | None:
        """Return the round that a row belongs to."""
        return self.rounds.get(attempt_of(row) or "")


def fold(rows: Iterable[HistoryRow]) -> RunState:
    """Return the state derived from all rows of a run."""
    return apply_rows(RunState(), rows)


def apply_rows(state: RunState, rows: Iterable[HistoryRow]) -> RunState:
    """Return the state after further rows; the given state is not changed."""
    draft = Draft(state)
    for row in rows:
        draft.take(row)
    return draft.state()


class Draft:
    """Mutable builder of a `RunState`, to which rows are applied one at a time."""

    def __init__(self, state: RunState | None = None) -> None:
        state = state or RunState()
        self.rounds, self.branches = dict(state.rounds), dict(state.branches)
        self._verified, self._last_round = dict(state.verified), state.last_round
        self._count: Counter[str] = Counter()
        totals = state.totals
        self._count.update(
            {"finished": totals.finished, "ended": totals.ended, "nominated": totals.nominated, "lost": totals.lost}
        )
        self._verdicts, self._failed, self._best = Counter(totals.verdicts), Counter(totals.failed), totals.best
        self._front, self._candidates = list(state.front), list(state.candidates)
        # New entries; `state` merges them into the Pareto fronts at once.
        self._new_verified: list[ParetoEntry] = []
        self._new_candidates: list[HistoryRow] = []

    def take(self, row: HistoryRow) -> RoundState | None:
        """Apply one row; return the new state of the round that it belongs to, None without one."""
        self._last_round = max(self._last_round, row.round)
        self._count["finished"] += is_finished(row)
        attempt_id = attempt_of(row)
        if attempt_id is None:
            return None
        before = self.rounds.get(attempt_id)
        if row.status == DELETED:
            if before is not None:
                self.rounds[attempt_id] = replace(before, gone=True)
            return self.rounds.get(attempt_id)
        names = parent_branches(row.fork_from)
        parents = tuple(self.branches.get(name, name) for name in names) or (BASELINE,)
        now = self.rounds[attempt_id] = RoundState(attempt_id, row, parents=parents)
        if row.branch is not None:
            self.branches[row.branch] = attempt_id
        if before is not None:
            self._add(before.row, -1)
        self._add(row, 1)
        self._rank(before, now)
        return now

    def _add(self, row: HistoryRow, step: int) -> None:
        self._count["lost"] += step * (row.status == ABORTED)
        if is_finished(row) or row.refers_to_attempt:
            self._count["ended"] += step
            self._count["nominated"] += step * (row.verdict == "candidate")
            self._verdicts[row.verify_verdict or ""] += step
            self._failed[row.status] += step * (row.status != "ok")

    def _rank(self, before: RoundState | None, now: RoundState) -> None:
        if self._verified.pop(now.attempt_id, None) is not None:
            self._front, self._new_verified = [], list(self._verified.values())
            self._best = min(self._new_verified, key=sort_key, default=None)
        if before is not None and _is_candidate(before.row):
            self._candidates = []
            others = (other.row for other in self.rounds.values() if other is not now)
            self._new_candidates = [row for row in others if _is_candidate(row)]
        if now.row.verify_verdict == "VERIFIED":
            entry = self._verified[now.attempt_id] = pareto_entry(now)
            self._new_verified.append(entry)
            self._best = min(filter(None, (self._best, entry)), key=sort_key)
        elif _is_candidate(now.row):
            self._new_candidates.append(now.row)

    @property
    def totals(self) -> Totals:
        """Totals after the rows so far."""
        counts = self._count
        return Totals(
            finished=counts["finished"],
            ended=counts["ended"],
            nominated=counts["nominated"],
            lost=counts["lost"],
            verdicts=dict(self._verdicts),
            failed=dict(self._failed),
            best=self._best,
        )

    def state(self) -> RunState:
        """Return the state after the rows so far."""
        if self._new_verified:
            self._front, self._new_verified = non_dominated([*self._front, *self._new_verified]), []
        if self._new_candidates:
            pool, self._new_candidates = [*self._candidates, *self._new_candidates], []
            self._candidates = candidate_front(pool)
        return RunState(
            rounds=self.rounds,
            branches=self.branches,
            verified=self._verified,
            front=tuple(self._front),
            candidates=tuple(self._candidates),
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
