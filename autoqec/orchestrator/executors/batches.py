"""Batches of short rounds: how many rounds share a job of a cluster, predicted from the rounds measured so far."""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import fmean

from autoqec.contracts.round import RoundMetrics
from autoqec.contracts.timing import seconds_between
from autoqec.orchestrator.run import Run
from autoqec.store.round_files import load_contract
from autoqec.system import slurm

MAX_BATCH = 32  # rounds; each one in progress is one that the next proposal does not know
RECENT = 16  # rounds from which the next one is predicted


def batch_size(below_s: float, predicted_s: float | None) -> int:
    """Return how many rounds share a job: as many as are predicted to last `below_s` seconds together.

    Args:
        below_s: Rounds that are predicted to take as long, or longer, have a job of their own.
        predicted_s: Predicted seconds of a round; None: not known, so that it has a job of its own.
    """
    if predicted_s is None or predicted_s >= below_s:
        return 1
    return min(MAX_BATCH, math.ceil(below_s / max(predicted_s, 1e-3)))


def begin_within_s(below_s: float) -> float:
    """Return the seconds after its start until which a job begins a further round; twice the predicted duration."""
    return 2 * below_s


def batch_options(options: Mapping[str, str], below_s: float) -> dict[str, str]:
    """Return the options of a job that has a batch: the last round that it begins has its whole time limit."""
    if not below_s:
        return dict(options)
    minutes = slurm.minutes(options["time"]) + math.ceil(begin_within_s(below_s) / 60)
    return {**options, "time": str(minutes)}


class RoundDuration:
    """Predicts the seconds that a job needs for a round: the mean of the latest measured ones of the run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._seconds: dict[str, float | None] = {}

    def __call__(self) -> float | None:
        """Return the predicted seconds; None while no round was measured."""
        latest: list[float] = []
        for attempt_id, state in reversed([*self._run.memory.state.rounds.items()]):
            if len(latest) == RECENT:
                break
            if attempt_id not in self._seconds:
                self._seconds[attempt_id] = _measured_seconds(self._run, state.row.round)
            seconds = self._seconds[attempt_id]
            if seconds is not None:
                latest.append(seconds)
        return fmean(latest) if latest else None


def _measured_seconds(run: Run, number: int) -> float | None:
    metrics = load_contract(run.layout.round(number).metrics, RoundMetrics)
    return None if metrics is None else seconds_between(metrics.measurement_started_at, metrics.measurement_finished_at)
