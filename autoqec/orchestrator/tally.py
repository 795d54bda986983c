"""A run's rows folded one by one: what each round stands at, the figures of the whole, both fronts.

Taking in a row costs what the first one did, plus the size of the front; so a late round costs what an early one does.
"""

from __future__ import annotations

from collections import Counter

from autoqec.contracts.history import HistoryRow
from autoqec.contracts.pareto import ParetoEntry, Point, non_dominated, non_dominated_points, rank
from autoqec.orchestrator.attempts import Standing, is_finished, stand


class Tally:
    """What the rows taken in so far come to; a function of them and their order alone.

    branches: every name that a row gave a round's branch -> its attempt. best: the VERIFIED round of the largest gain.
    counts: `ended`, `nominated`, `lost`; verdicts and failed: of ended rounds.
    """

    def __init__(self) -> None:
        self.standing: dict[str, Standing] = {}
        self.branches: dict[str, str] = {}
        self.best: ParetoEntry | None = None
        self.counts: Counter[str] = Counter()
        self.verdicts: Counter[str] = Counter()
        self.failed: Counter[str] = Counter()
        self._verified: dict[str, ParetoEntry] = {}
        self._nominated: dict[str, HistoryRow] = {}
        self._front: list[ParetoEntry] = []
        self._candidates: list[HistoryRow] = []
        # What came since front and candidates were last asked for: it only has to be compared with those.
        self._new_verified: list[ParetoEntry] = []
        self._new_nominated: list[HistoryRow] = []

    def take(self, row: HistoryRow) -> Standing | None:
        """The round that the row speaks of, as it now stands; None for a row that speaks of none."""
        was = self.standing.get(row.refers_to_attempt or row.round_attempt_id or "")
        one = stand(self.standing, row)
        if one is None:
            return None
        if one.row.branch is not None:
            self.branches[one.row.branch] = one.attempt_id
        if was is None or was.row is not one.row:
            if was is not None:
                self._count(was.row, -1)
            self._count(one.row, 1)
            self._rank(one)
        return one

    @property
    def discoveries(self) -> int:
        """Rounds that stand VERIFIED, on the front or not."""
        return len(self._verified)

    def _count(self, row: HistoryRow, step: int) -> None:
        self.counts["lost"] += step * (row.status == "orphaned_branch")
        if is_finished(row) or row.refers_to_attempt:
            self.counts["ended"] += step
            self.counts["nominated"] += step * (row.verdict == "candidate")
            self.verdicts[row.verify_verdict or ""] += step
            self.failed[row.status] += step * (row.status != "ok")

    def _rank(self, one: Standing) -> None:
        name, row = one.attempt_id, one.row
        if self._verified.pop(name, None) is not None:
            self._front, self._new_verified = [], list(self._verified.values())
            self.best = min(self._new_verified, key=rank, default=None)
        if self._nominated.pop(name, None) is not None:
            self._candidates, self._new_nominated = [], list(self._nominated.values())
        if row.verify_verdict == "VERIFIED":
            entry = self._verified[name] = entry_of(one)
            self._new_verified.append(entry)
            self.best = min(filter(None, (self.best, entry)), key=rank)
        elif row.verdict == "candidate" and row.status == "ok":
            self._nominated[name] = row
            self._new_nominated.append(row)

    def front(self) -> list[ParetoEntry]:
        """VERIFIED and non-dominated, best first; the same list until it changes. A deleted branch stays: its commit
        is pinned."""
        if self._new_verified:
            self._front, self._new_verified = non_dominated([*self._front, *self._new_verified]), []
        return self._front

    def candidates(self) -> list[HistoryRow]:
        """Nominated rounds that are not verified and that none of their kind dominates, by the Runner's own figures;
        the same list until it changes."""
        if self._new_nominated:
            pool = [*self._candidates, *self._new_nominated]
            kept = non_dominated_points([_figures(row) for row in pool])
            rows = (row for row, keep in zip(pool, kept, strict=True) if keep)
            self._candidates = sorted(rows, key=lambda row: (-_figures(row)[0], row.round))
            self._new_nominated = []
        return self._candidates


def entry_of(one: Standing) -> ParetoEntry:
    """A VERIFIED round as the front has it: with the judge's figures, where the judge counted."""
    row = one.row
    flops, size = row.judge_flops_per_syndrome, row.judge_n_params
    return ParetoEntry.model_validate(
        {
            "round_attempt_id": one.attempt_id,
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
        }
    )


def _figures(row: HistoryRow) -> Point:
    return (row.delta_ler or 0.0, -float(row.flops_per_syndrome or 0), -float(row.n_params or 0))
