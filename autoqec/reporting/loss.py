"""The loss of a round: read from a log of any size, drawn as lines in a box."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

CURVE_POINTS = 120
SMALL_LOG = 1 << 18

Point = tuple[int, float]


def curve(path: Path) -> tuple[Point, ...]:
    """(step, mean loss of a stretch of steps) from a train.log of any size, at most CURVE_POINTS of them."""
    pairs = [pair for pair in map(_pair, _lines(path)) if pair is not None]
    width = max(1, -(-len(pairs) // CURVE_POINTS))
    stretches = (pairs[start : start + width] for start in range(0, len(pairs), width))
    return tuple((part[0][0], sum(loss for _, loss in part) / len(part)) for part in stretches)


def _lines(path: Path) -> list[bytes]:
    """Every line of a small log; of a large one, lines from evenly spaced places."""
    try:
        with path.open("rb") as stream:
            size = path.stat().st_size
            if size <= SMALL_LOG:
                return stream.read(SMALL_LOG).splitlines()
            lines: list[bytes] = []
            for place in range(0, size, size // (2 * CURVE_POINTS)):
                stream.seek(place)
                lines += stream.read(512).split(b"\n")[1:-1]  # the first and the last are parts
            return lines
    except OSError:
        return []


def _pair(line: bytes) -> Point | None:
    step, tab, loss = line.partition(b"\t")
    try:
        pair = int(step), float(loss)
    except ValueError:
        return None
    return pair if tab and abs(pair[1]) < float("inf") else None


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
