"""Quantities derived from the loss of a round."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoqec.store import train_log
from autoqec.store.layout import RoundLayout
from autoqec.store.train_log import read_loss_curves


def relative_drop(losses: Sequence[float]) -> float | None:
    """Fraction by which the mean of the last tenth lies below that of the first; None for fewer than 10 losses."""
    tenth = len(losses) // 10
    if tenth < 1 or not all(map(math.isfinite, losses)):
        return None
    first, last = sum(losses[:tenth]) / tenth, sum(losses[-tenth:]) / tenth
    return (first - last) / abs(first) if first else None


def loss_drops(layout: RoundLayout) -> dict[str, float]:
    """Return the relative drop of the loss by training phase, whose losses cannot be compared with each other.

    A round without progress.csv has one phase, `training`.
    """
    curves = {phase: [loss for _, loss in curve] for phase, curve in read_loss_curves(layout.progress).items()}
    if not curves:
        curves = {"training": list(train_log.read(layout.train_log).losses)}
    drops = {phase: relative_drop(losses) for phase, losses in curves.items()}
    return {phase: drop for phase, drop in drops.items() if drop is not None}
