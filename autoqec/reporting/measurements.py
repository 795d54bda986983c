"""Quantities derived from the loss of a round."""

from __future__ import annotations

import math
from collections.abc import Sequence


def relative_drop(losses: Sequence[float]) -> float | None:
    """Fraction by which the mean of the last tenth lies below that of the first; None for fewer than 10 losses."""
    tenth = len(losses) // 10
    if tenth < 1 or not all(map(math.isfinite, losses)):
        return None
    first, last = sum(losses[:tenth]) / tenth, sum(losses[-tenth:]) / tenth
    return (first - last) / abs(first) if first else None
