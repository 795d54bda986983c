"""Loss curves of rounds: read from train.log in bounded time and drawn as polylines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from autoqec.store import train_log
from autoqec.store.layout import RoundLayout
from autoqec.store.train_log import read_loss_curves

CURVE_POINTS = 120
Point = train_log.Entry


def curve(path: Path) -> tuple[Point, ...]:
    """Return (first step, mean loss) of at most CURVE_POINTS stretches of steps; non-finite losses are left out."""
    points = train_log.read(path, positions=2 * CURVE_POINTS).finite
    width = max(1, -(-len(points) // CURVE_POINTS))
    stretches = (points[start : start + width] for start in range(0, len(points), width))
    return tuple((part[0][0], sum(loss for _, loss in part) / len(part)) for part in stretches)


def stages(curve: Sequence[Point]) -> list[Sequence[Point]]:
    """Split the curve where the loss falls tenfold between neighbours: fine-tuning begins there, with another loss.

    The point before the split is left out, since it may average both losses.
    """
    for index in range(6, len(curve)):
        if 0 < 10 * curve[index][1] < max(curve[index - 1][1], curve[index - 2][1]):
            return [curve[: index - 1], curve[index:]]
    return [curve]


def polylines(curve: Sequence[Point], width: int = 300, height: int = 80) -> list[tuple[Sequence[Point], str]]:
    """Return each stage with its SVG points in a box of this size.

    Stages share the x axis. Each has its own y axis, logarithmic if all losses are positive.
    """
    first = curve[0][0]
    step_span = (curve[-1][0] - first) or 1
    return [(stage, _points(stage, first, width / step_span, height)) for stage in stages(curve)]


def _points(stage: Sequence[Point], first: int, scale: float, height: int) -> str:
    transform = math.log if all(loss > 0 for _, loss in stage) else float
    losses = [transform(loss) for _, loss in stage]
    low = min(losses)
    span = (max(losses) - low) or 1
    return " ".join(
        f"{scale * (step - first):.1f},{height * (1 - (loss - low) / span):.1f}"
        for (step, _), loss in zip(stage, losses, strict=True)
    )


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
