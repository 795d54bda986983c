"""The state of a run: the only reducers from rows of history.jsonl and lines of attempts.jsonl.

Logs, Pareto front, fork graph, role views, reports, budgets and `show` are functions of what is built here.
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

ABORTED_STATUSES = "orphaned_branch"  # status of an attempt that recovery closed
DELETED = "branch_manually_deleted"
BASELINE = "baseline"


@dataclass(frozen=True)
class Attempt:
    """The write-ahead lines of one attempt; None: not reached. at: when it began."""

    id: str
    round: int
    at: datetime | None = None
    planned: Planned | None = None
    nominated: Nominated | None = None
    charged: AlphaSpent | None = None


@dataclass(frozen=True)
class AttemptState:
    """The lines of attempts.jsonl so far. attempts: by id, in the order they began; charged: every test registered."""

    attempts: Mapping[str, Attempt] = field(default_factory=dict)
    charged: tuple[AlphaSpent, ...] = ()
    last_round: int = 0


def apply_lines(state: AttemptState, lines: Iterable[AttemptLine]) -> AttemptState:
    """The state after these lines; the given one stays as it is."""
    attempts, charged, last_round = dict(state.attempts), list(state.charged), state.last_round
    for line in lines:
        attempt = attempts.get(line.round_attempt_id) or Attempt(line.round_attempt_id, line.round)
        if isinstance(line, Begun):
            attempt = replace(attempt, at=line.at)
        elif isinstance(line, Planned):
            attempt = replace(attempt, planned=line)
        elif isinstance(line, Nominated):
            attempt = replace(attempt, nominated=line)
        else:
            attempt = replace(attempt, charged=line)
            charged.append(line)
        attempts[attempt.id] = attempt
        last_round = max(last_round, attempt.round)
    return AttemptState(attempts, tuple(charged), last_round)


@dataclass(frozen=True)
class RoundState:
    """One attempt as the rows so far leave it.

    row: the last row that says what the round is. gone: its branch was deleted by hand. parents: attempt ids of the
    rounds it forks from in merge order, else branch names; the baseline stands for itself.
    """

    attempt_id: str
    row: HistoryRow
    gone: bool = False
    parents: tuple[str, ...] = (BASELINE,)

    @property
    def branch(self) -> str | None:
        return None if self.gone else self.row.branch

    @property
    def status(self) -> str:
        return DELETED if self.gone else self.row.status

    @property
    def lost(self) -> bool:
        """Whether recovery closed the attempt without a result."""
        return self.row.status == ABORTED_STATUSES

    @cached_property
    def summary(self) -> RoundSummary:
        """What roles see of the round; computed once, since neither row nor state changes."""
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
    """What roles see of a round. Shared by all of them, so it cannot be written to; `dict(summary)` is a copy."""

    def _refuse(self, *_: Any, **__: Any) -> Any:
        raise TypeError("a round summary cannot be changed; dict(summary) is a copy that can")

    __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)


@dataclass(frozen=True)
class Totals:
    """Figures of the whole run. finished: rounds that `--rounds` counts; ended: those and restored ones.

    verdicts, failed: of ended rounds, by verification verdict ("" without one) and by status.
    best: the VERIFIED round with the largest gain.
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
    """All that the rows of a run amount to, in the order of their first rows; never changed, only replaced.

    branches: every branch name that a row gave a round -> its attempt. verified: rounds that stand VERIFIED, on the
    front or not. front: the non-dominated ones of them, best first; one whose branch was deleted stays, since its
    commit is pinned. candidates: nominated, not verified, non-dominated by the Runner's own figures.
    """

    rounds: Mapping[str, RoundState] = field(default_factory=dict)
    branches: Mapping[str, str] = field(default_factory=dict)
    verified: Mapping[str, ParetoEntry] = field(default_factory=dict)
    front: tuple[ParetoEntry, ...] = ()
    candidates: tuple[HistoryRow, ...] = ()
    totals: Totals = Totals()
    last_round: int = 0

    def by_branch(self, branches: Iterable[str]) -> dict[str, RoundState]:
        """The rounds that stand under these branches, without deleted ones."""
        named = {branch: self.rounds[self.branches[branch]] for branch in branches if branch in self.branches}
        return {branch: found for branch, found in named.items() if found.branch == branch}

    def round_of(self, row: HistoryRow) -> RoundState | None:
        """The round that a row speaks of."""
        return self.rounds.get(attempt_of(row) or "")


def fold(rows: Iterable[HistoryRow]) -> RunState:
    """The state after all these rows."""
    return apply_rows(RunState(), rows)


def apply_row(state: RunState, row: HistoryRow) -> RunState:
    """The state after one more row; the given one stays as it is."""
    return apply_rows(state, [row])


def apply_rows(state: RunState, rows: Iterable[HistoryRow]) -> RunState:
    """As `apply_row` for each in turn, at the cost of one copy."""
    draft = Draft(state)
    for row in rows:
        draft.take(row)
    return draft.state()


class Draft:
    """A state being built: takes rows one after another. `totals` is as of the last one."""

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
        # What came since: only compared with the front and with each other, once, in `state`.
        self._new_verified: list[ParetoEntry] = []
        self._new_candidates: list[HistoryRow] = []

    def take(self, row: HistoryRow) -> RoundState | None:
        """Take one row; the round that it speaks of, as it now stands, or None."""
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
        self._count["lost"] += step * (row.status == ABORTED_STATUSES)
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
    """The attempt that a row speaks of: a follow-up row speaks of an earlier one."""
    return row.refers_to_attempt or row.round_attempt_id


def is_finished(row: HistoryRow) -> bool:
    """Whether a row is a round that came to its end: what `--rounds` counts."""
    return row.refers_to_attempt is None and row.status not in (ABORTED_STATUSES, DELETED)


def pareto_entry(verified: RoundState) -> ParetoEntry:
    """A VERIFIED round as an entry of the front, with the figures that the verification counted if it did."""
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
    """The nominated rows that none of them dominates by the Runner's own figures, largest gain first."""
    pool = list({attempt_of(row): row for row in rows}.values())
    kept = non_dominated_points([_figures(row) for row in pool])
    rows = (row for row, keep in zip(pool, kept, strict=True) if keep)
    return sorted(rows, key=lambda row: (-_figures(row)[0], row.round))


def _is_candidate(row: HistoryRow) -> bool:
    return row.verdict == "candidate" and row.status == "ok" and row.verify_verdict != "VERIFIED"


def _figures(row: HistoryRow) -> Objectives:
    return (row.delta_ler or 0.0, -float(row.flops_per_syndrome or 0), -float(row.n_params or 0))
