"""The front of verified decoders, and the only dominance code."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

from pydantic import Field

from autoqec.contracts.base import Contract
from autoqec.contracts.provenance import SHA1
from autoqec.contracts.round import ComposeMode, ForkFrom

PREVIEW_SIZE = 5


class ParetoEntry(Contract):
    """One verified, committed round."""

    round_attempt_id: str
    commit_sha: str = Field(pattern=SHA1)
    branch: str
    delta_vs_baseline_holdout: float
    paired_eval_bundle_id: str
    flops_per_syndrome: int
    n_params: int
    verdict: Literal["VERIFIED"]
    fork_from: ForkFrom
    fork_from_canonical: str
    compose_mode: ComposeMode | None


Point = tuple[float, ...]


def point(entry: ParetoEntry) -> Point:
    """Objectives, all to be maximised: +delta, -FLOPs, -parameters."""
    return (entry.delta_vs_baseline_holdout, -float(entry.flops_per_syndrome), -float(entry.n_params))


def dominates(one: Sequence[float], other: Sequence[float]) -> bool:
    """At least as good everywhere and better somewhere; every coordinate is maximised."""
    return all(a >= b for a, b in zip(one, other, strict=True)) and any(
        a > b for a, b in zip(one, other, strict=True)
    )


def non_dominated(entries: Iterable[ParetoEntry]) -> list[ParetoEntry]:
    """The front, best delta first; independent of the order it is given in. Equal points are all kept."""
    pool = list(entries)
    points = [point(entry) for entry in pool]
    front = [
        entry
        for entry, mine in zip(pool, points, strict=True)
        if not any(dominates(other, mine) for other in points)
    ]
    return sorted(front, key=lambda entry: (*(-value for value in point(entry)), entry.round_attempt_id))


def preview(front: Sequence[ParetoEntry]) -> list[ParetoEntry]:
    """The top of a front that is sorted as `non_dominated` sorts it."""
    return list(front[:PREVIEW_SIZE])
