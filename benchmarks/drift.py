"""Error rate, coverage and power of the block test on simulated recorded shots whose error rates drift."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from autoqec.contracts.round import PairedCounts
from autoqec.extensions.recorded.block_comparison import BlockEffect, block_effect
from autoqec.qec.stats import paired_effect
from benchmarks.table import Row, format_share

ALPHA = 0.05
BLOCKS, SHOTS = 40, 2_500  # blocks of a stream, and shots of a block


@dataclass(frozen=True)
class Drift:
    """How rates change from block to block.

    Attributes:
        rate: Logical error rate of the reference in the first block.
        walk: Standard deviation of the steps of the logarithm of the rate, a random walk.
        spread: Standard deviation of the gain's deviation from its mean, in each block.
        memory: Correlation of successive deviations.
    """

    rate: float
    walk: float
    spread: float = 0.0
    memory: float = 0.0


# Blocks of one public recording of 10,000 shots each lie between .126 and .176.
DRIFTS = {
    "rates drift": Drift(0.03, 0.15),
    "rates drift, high": Drift(0.15, 0.1),
    "rates and gain drift": Drift(0.03, 0.15, 0.3),
    "rates and gain drift, high": Drift(0.15, 0.1, 0.3),
}
CORRELATED = Drift(0.15, 0.1, 0.3, 0.5)


def draw(drift: Drift, gain: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw fixed, broken and reference errors of each block, float64 [BLOCKS]."""
    rates = np.minimum(drift.rate * np.exp(np.cumsum(rng.normal(0, drift.walk, BLOCKS))), 0.4)
    noise = rng.normal(0, 1, BLOCKS)
    for block in range(1, BLOCKS):
        noise[block] = drift.memory * noise[block - 1] + math.sqrt(1 - drift.memory**2) * noise[block]
    gains = np.clip(gain + drift.spread * noise, -0.9, 0.9)
    discordance = rng.uniform(1, 2)
    fixed = rng.binomial(SHOTS, np.minimum(rates * (discordance + gains) / 2, 1))
    broken = rng.binomial(SHOTS, np.minimum(rates * (discordance - gains) / 2, 1))
    both = rng.binomial(SHOTS, np.maximum(rates * (2 - discordance - gains) / 2, 0))
    return fixed.astype(float), broken.astype(float), (fixed + both).astype(float)


def measure(counts: tuple[np.ndarray, np.ndarray, np.ndarray]) -> BlockEffect:
    """Return the effect of one stream."""
    return block_effect(*counts, shots=BLOCKS * SHOTS)


def drifting_streams(streams: int, rng: np.random.Generator) -> list[Row]:
    """Measure false evidence and coverage on null streams, and power for gains of 10%."""
    rows = []
    runs = f"{streams:,} streams of {BLOCKS} blocks of {SHOTS:,} shots"
    for name, drift in DRIFTS.items():
        by_block, by_shot = _false_evidence(drift, streams, rng)
        aim = f"aim: <= 5%; interval for independent shots: {by_shot / streams:.1%}"
        rows.append(Row(f"false evidence of the block test, {name}", format_share(by_block, streams), aim, runs))
        covered = found = 0
        for _ in range(streams // 4):
            effect = measure(draw(drift, 0.10, rng))
            covered += effect.low <= 0.10 <= effect.high
            found += effect.is_evidence(ALPHA)
        fewer = f"{streams // 4:,} streams of {BLOCKS} blocks of {SHOTS:,} shots, gain 10%"
        rows.append(
            Row(f"95% intervals that hold the gain, {name}", format_share(covered, streams // 4), "aim: >= 95%", fewer)
        )
        rows.append(Row(f"power of the block test, {name}", format_share(found, streams // 4), "reported", fewer))
    by_block, _ = _false_evidence(CORRELATED, streams, rng)
    limit = "aim: <= 5%; gains of successive blocks correlated by 0.5, found by the check of autocorrelation"
    rows.append(
        Row("false evidence of the block test, correlated blocks", format_share(by_block, streams), limit, runs)
    )
    return rows


def _false_evidence(drift: Drift, streams: int, rng: np.random.Generator) -> tuple[int, int]:
    """Count null streams with evidence: by the block test, and by an interval for independent shots."""
    by_block = by_shot = 0
    for _ in range(streams):
        fixed, broken, reference = draw(drift, 0.0, rng)
        by_block += measure((fixed, broken, reference)).is_evidence(ALPHA)
        errors, fixes, breaks = (int(values.sum()) for values in (reference, fixed, broken))
        counts = PairedCounts(
            shots=BLOCKS * SHOTS,
            errors_reference=errors,
            errors_candidate=errors - fixes + breaks,
            fixed=fixes,
            broken=breaks,
        )
        by_shot += paired_effect(counts, confidence=1 - 2 * ALPHA).delta_low > 0
    return by_block, by_shot
