"""Reads training losses from progress.csv, by phase, since losses of different phases are not comparable."""

from __future__ import annotations

import csv
import math
from pathlib import Path

MAX_BYTES = 8 * 2**20
LossCurve = list[tuple[int, float]]


def read_loss_curves(path: Path) -> dict[str, LossCurve]:
    """Read the mean losses of intervals of iterations, by phase.

    Args:
        path: progress.csv of a round; it may have been written by untrusted code.

    Returns:
        Phase -> (updates so far, mean loss) in the order of the file. Invalid rows are skipped; a missing file gives an
        empty dict.
    """
    try:
        with path.open("rb") as stream:
            text = stream.read(MAX_BYTES).decode("utf-8", "replace")
    except OSError:
        return {}
    curves: dict[str, LossCurve] = {}
    try:
        for row in csv.DictReader(text.splitlines()):
            phase, step, loss = row.get("Phase"), row.get("CumUpdates"), row.get("lossAverage")
            point = _point(step, loss)
            if phase and point is not None:
                curves.setdefault(phase, []).append(point)
    except csv.Error:
        pass  # keep the rows before the malformed one
    return curves


def _point(step: str | None, loss: str | None) -> tuple[int, float] | None:
    try:
        point = int(step or ""), float(loss or "")
    except ValueError:
        return None
    return point if math.isfinite(point[1]) else None
