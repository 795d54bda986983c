"""Quantities derived from what a round measured: its paired effect on val shots and the fall of its loss."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autoqec.contracts.history import HistoryRow
from autoqec.contracts.round import RoundMetrics
from autoqec.contracts.verdict import PairedCounts, PairedEffect


def validation_effect(row: HistoryRow | RoundMetrics) -> PairedEffect | None:
    """Compare decoder and baseline decoder on val shots; None if counts are missing or inconsistent."""
    counts = (row.val_shots, row.val_errors_plain, row.val_errors_predecoder, row.val_fixed, row.val_broken)
    if any(count is None for count in counts) or not row.val_shots:
        return None
    from autoqec.qec import stats

    names = ("shots", "errors_reference", "errors_candidate", "fixed", "broken")
    try:
        return stats.paired_effect(PairedCounts.model_validate(dict(zip(names, counts, strict=True))))
    except ValueError:
        return None


def relative_drop(losses: Sequence[float]) -> float | None:
    """Fraction by which the mean of the last tenth lies below that of the first; None for fewer than 10 losses."""
    tenth = len(losses) // 10
    if tenth < 1 or not all(map(math.isfinite, losses)):
        return None
    first, last = sum(losses[:tenth]) / tenth, sum(losses[-tenth:]) / tenth
    return (first - last) / abs(first) if first else None
