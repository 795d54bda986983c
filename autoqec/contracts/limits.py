"""Limits of a run, as given to `--budget` and shown by `autoqec watch`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RunLimits:
    """Limits of a run; None means no limit.

    Attributes:
        rounds: Finished rounds in total.
        hours: Wall-clock hours since this process started the loop.
        compute_hours: Hours of training and measurement of all rounds together.
        cpu_hours: The part of `compute_hours` of rounds without a GPU.
        gpu_hours: The part of `compute_hours` of rounds with a GPU.
        plateau: Consecutive finished rounds that did not change the verified Pareto front.
    """

    rounds: int | None = None
    hours: float | None = None
    compute_hours: float | None = None
    cpu_hours: float | None = None
    gpu_hours: float | None = None
    plateau: int | None = None
