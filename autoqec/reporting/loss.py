"""The loss of a round: read from a log of any size, drawn as lines in a box."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from autoqec.store import train_log

CURVE_POINTS = 120

Point = train_log.Entry


def curve(path: Path) -> tuple[Point, ...]:
    """Return (step, mean loss over consecutive steps) from a train.log of any size, at most CURVE_POINTS points."""
    entries = train_log.read(path, positions=2 * CURVE_POINTS).finite
    width = max(1, -(-len(entries) // CURVE_POINTS))
    chunks = (entries[start : start + width] for start in range(0, len(entries), width))
    return tuple((chunk[0][0], sum(loss for _, loss in chunk) / len(chunk)) for chunk in chunks)


def stages(curve: Sequence[Point]) -> list[Sequence[Point]]:
    """The curve, cut where it falls to under a tenth between neighbours: there another loss begins, it is no learning.

    The point before the cut is left out: it may be the mean of both losses.
    """
    for place in range(6, len(curve)):
        if 0 < 10 * curve[place][1] < max(curve[place - 1][1], curve[place - 2][1]):
            return [curve[: place - 1], curve[place:]]
    return [curve]


def strokes(curve: Sequence[Point], width: int = 300, height: int = 80) -> list[tuple[Sequence[Point], str]]:
    """Each stage with its points in a box of this size, y downwards. Stages share the steps; each has heights of its
    own, logarithmic where every loss is above 0."""
    first = curve[0][0]
    step_span = (curve[-1][0] - first) or 1
    return [(stage, _line(stage, first, width / step_span, height)) for stage in stages(curve)]


def _line(stage: Sequence[Point], first: int, scale: float, height: int) -> str:
    tell = math.log if all(loss > 0 for _, loss in stage) else float
    losses = [tell(loss) for _, loss in stage]
    low = min(losses)
    span = (max(losses) - low) or 1
    return " ".join(
        f"{scale * (step - first):.1f},{height * (1 - (loss - low) / span):.1f}"
        for (step, _), loss in zip(stage, losses, strict=True)
    )
