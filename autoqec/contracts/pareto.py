"""Pareto front of verified decoders, and the only implementation of dominance."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, Literal

from pydantic import Field

from autoqec.contracts.base import Contract, optional
from autoqec.contracts.names import SHA1
from autoqec.contracts.round import Composed, ForkFrom
from autoqec.contracts.verdict import CountedBy

PREVIEW_SIZE = 5


class ParetoEntry(Contract):
    """One verified, committed round."""

    round_attempt_id: str = Field(description="identifier of the attempt")
    commit_sha: str = Field(pattern=SHA1, description="commit of the code that was measured")
    branch: str = Field(description="branch of the round")
    delta_vs_baseline_holdout: float = Field(
        description="gain over the inner decoder alone on the verifier's shots, per shot"
    )
    paired_eval_bundle_id: str = Field(description="identifier of the verifier's shots")
    flops_per_syndrome: int = Field(description="floating-point operations per shot, counted by the verifier")
    n_params: int = Field(description="parameters, counted by the verifier")
    verdict: Literal["VERIFIED"] = Field(description="only verified rounds are listed")
    fork_from: ForkFrom
    fork_from_canonical: str = Field(description="`fork_from`, sorted and joined by `|`")
    compose_mode: Composed
    delta_simultaneous_low: float | None = optional(
        "lower end of the interval that holds for all attempts of the run together (95%)"
    )
    delta_simultaneous_high: float | None = optional("upper end of that interval")
    cost_counted_by: CountedBy | None = optional("code that counted; `candidate sandbox`: the counts are lower bounds")

    def dump(self) -> dict[str, Any]:
        """Return a JSON-able dict; fields that version 1 did not have are left out where they are null."""
        added = ("delta_simultaneous_low", "delta_simultaneous_high", "cost_counted_by")
        return {name: value for name, value in super().dump().items() if value is not None or name not in added}


Objectives = tuple[float, float, float]


def objectives(entry: ParetoEntry) -> Objectives:
    """Objectives, all to be maximised: +delta, -FLOPs, -parameters."""
    return (entry.delta_vs_baseline_holdout, -float(entry.flops_per_syndrome), -float(entry.n_params))


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether `a` dominates `b`: no coordinate is smaller and one is larger; all are maximized."""
    return all(a >= b for a, b in zip(one, other, strict=True)) and any(a > b for a, b in zip(one, other, strict=True))


def non_dominated(entries: Iterable[ParetoEntry]) -> list[ParetoEntry]:
    """Return the Pareto front, largest delta first, regardless of the input order. Equal points are all kept."""
    pool = list(entries)
    kept = non_dominated_points([objectives(entry) for entry in pool])
    front = [entry for entry, keep in zip(pool, kept, strict=True) if keep]
    return sorted(front, key=sort_key)


def sort_key(entry: ParetoEntry) -> tuple[float, float, float, str]:
    """Return the sort key of the front: largest delta, then fewest FLOPs, then fewest parameters, then the id."""
    delta, flops, size = objectives(entry)
    return (-delta, -flops, -size, entry.round_attempt_id)


def non_dominated_points(points: Sequence[Objectives]) -> list[bool]:
    """Return which of these points in three coordinates, all maximised, no other `dominates`; n log n steps.

    Points are taken best first coordinate first, so that a later one can only lose to an earlier one; of those, a
    staircase is kept: as the second coordinate falls, the best third one rises.
    """
    kept = [False] * len(points)
    second_values: list[float] = []  # rising, negated
    third_values: list[float] = []  # rising
    previous: tuple[Objectives, bool] | None = None
    for index in sorted(range(len(points)), key=lambda one: points[one], reverse=True):
        here = points[index]
        _, second, third = here
        if previous is not None and previous[0] == here:
            kept[index] = previous[1]
            continue
        at = bisect_right(second_values, -second)
        kept[index] = at == 0 or third_values[at - 1] < third
        previous = (here, kept[index])
        if kept[index]:
            start = bisect_left(second_values, -second)
            end = bisect_right(third_values, third, lo=start)
            second_values[start:end], third_values[start:end] = [-second], [third]
    return kept


def preview(front: Sequence[ParetoEntry]) -> list[ParetoEntry]:
    """Return the first entries of a front in the order of `non_dominated`."""
    return list(front[:PREVIEW_SIZE])
