"""A run's rounds and losses as the tools read them: bounded, and never failing on what a round left."""

from __future__ import annotations

import math
from typing import Any

from autoqec.contracts.verdict import PairedCounts, PairedEffect


def relative_drop(curve: list[float]) -> float | None:
    """Share by which the mean of a curve's last tenth lies below that of its first; None where it is too short."""
    tenth = len(curve) // 10
    if tenth < 1 or not all(map(math.isfinite, curve)):
        return None
    first, last = sum(curve[:tenth]) / tenth, sum(curve[-tenth:]) / tenth
    return (first - last) / abs(first) if first else None


def effect(row: Any) -> PairedEffect | None:
    """Against the plain backend on val shots, for a row or metrics; None where the counts are not all there."""
    counts = (row.val_shots, row.val_errors_plain, row.val_errors_predecoder, row.val_fixed, row.val_broken)
    if any(count is None for count in counts) or not row.val_shots:
        return None
    from autoqec.qec import stats

    names = ("shots", "errors_reference", "errors_candidate", "fixed", "broken")
    return stats.paired_effect(PairedCounts(**dict(zip(names, counts, strict=True))))


def flatten_config(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested config as dotted keys."""
    out: dict[str, Any] = {}
    for key, value in config.items():
        out.update(flatten_config(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value})
    return out


def differing_keys(first_config: dict[str, Any], other: dict[str, Any]) -> list[str]:
    """Dotted keys that two configs spell differently."""
    first_flat, other_flat = flatten_config(first_config), flatten_config(other)
    return [key for key in {**first_flat, **other_flat} if first_flat.get(key) != other_flat.get(key)]
