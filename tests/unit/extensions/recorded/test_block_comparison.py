"""The paired block test: an e-value, intervals, and streams with drift."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from autoqec.extensions.recorded.block_comparison import STRENGTHS, BlockCounts, gain_interval, log_e_value
from benchmarks.drift import CORRELATED, DRIFTS, draw, drifting_streams, measure


def arrays(*values: list[int]) -> tuple[np.ndarray, ...]:
    return tuple(np.array(value, float) for value in values)


def test_e_value_has_expectation_one_under_every_sign_pattern() -> None:
    sizes = np.array([9.0, 4.0, 1.0, 25.0])
    products = []
    for signs in itertools.product((-1, 1), repeat=4):
        z = np.array(signs) * sizes
        factors = np.exp(np.outer(STRENGTHS, z)) / np.cosh(np.outer(STRENGTHS, z))
        products.append(factors.prod(1).mean())
    assert np.mean(products) == pytest.approx(1)
    fixed, broken = arrays([81, 16, 1, 625], [0, 0, 0, 0])
    assert log_e_value(fixed, broken, fixed) == pytest.approx(math.log(max(products)), rel=1e-6)


def test_e_value_falls_with_the_gain_of_the_null() -> None:
    fixed, broken, reference = draw(DRIFTS["rates drift"], 0.2, np.random.default_rng(1))
    values = [log_e_value(fixed, broken, reference, gain) for gain in np.linspace(-0.5, 0.5, 21)]
    assert all(a >= b for a, b in itertools.pairwise(values))


def test_interval_and_e_value_agree() -> None:
    rng = np.random.default_rng(2)
    for gain in (0.0, 0.1, 0.3):
        counts = draw(DRIFTS["rates drift"], gain, rng)
        low, high = gain_interval(*counts)
        assert low < high
        assert (low > 0) == (log_e_value(*counts) >= math.log(40))


def test_no_interval_without_evidence() -> None:
    assert gain_interval(*arrays([1], [0], [1])) == (-10.0, 1.0)
    assert gain_interval(*arrays([], [], [])) == (-10.0, 1.0)


def test_counts_of_blocks_are_added() -> None:
    counts = BlockCounts(4)
    reference, candidate = np.array([True, True, False, False]), np.array([False, True, True, False])
    counts.add(reference, candidate)
    counts.add(reference, np.zeros(4, bool))
    effect = counts.effect()
    assert (effect.blocks, effect.shots, effect.errors_reference, effect.errors_candidate) == (2, 8, 4, 2)
    assert effect.relative == 0.5 and effect.autocorrelation is None
    with pytest.raises(ValueError, match="differ in number"):
        counts.add(reference, candidate[:2])


@pytest.mark.parametrize("chunk", [7, 300, 450])
def test_blocks_do_not_depend_on_the_chunks(chunk: int) -> None:
    rng = np.random.default_rng(3)
    reference, candidate = rng.random(900) < 0.2, rng.random(900) < 0.15
    whole, parts = BlockCounts(300), BlockCounts(300)
    whole.add(reference, candidate)
    for start in range(0, 900, chunk):
        parts.add(reference[start : start + chunk], candidate[start : start + chunk])
    assert parts.effect() == whole.effect() and len(whole) == 3


def test_correlated_blocks_are_no_evidence() -> None:
    rng = np.random.default_rng(3)
    effects = [measure(draw(CORRELATED, 0.0, rng)) for _ in range(200)]
    claimed = [effect for effect in effects if effect.e_value >= 20]
    refused = [effect for effect in claimed if effect.blocks_too_short]
    assert len(refused) > len(claimed) / 2 and not any(effect.is_evidence() for effect in refused)


def test_simulation_of_drifting_streams() -> None:
    rows = {row.name: float(row.figure.split("%")[0]) for row in drifting_streams(400, np.random.default_rng(4))}
    false = [share for name, share in rows.items() if name.startswith("false evidence")]
    assert len(false) == 5 and max(false) <= 5
    assert all(share >= 90 for name, share in rows.items() if "intervals" in name)
    assert rows["power of the block test, rates drift, high"] > 80


def test_runs_of_candidates_without_the_minimum_gain_are_rarely_verified() -> None:
    """Error rates drift, later candidates use later blocks, and the smallest e-value of two baselines must suffice."""
    rng = np.random.default_rng(4)
    runs, candidates, blocks, gain = 2000, 4, 20, 0.02
    false = 0
    for _ in range(runs):
        rates = 0.04 * np.exp(np.cumsum(0.15 * rng.standard_normal(candidates * blocks)))
        for attempt in range(1, candidates + 1):
            shots_lost = rng.poisson(1000 * np.minimum(rates[(attempt - 1) * blocks : attempt * blocks], 0.3))
            fixed = rng.binomial(shots_lost, 0.3)
            broken = rng.poisson((0.3 - gain) * shots_lost)
            best = log_e_value(fixed, broken, shots_lost.astype(float), gain)
            weak = log_e_value(fixed + 30, broken, shots_lost + 30.0, gain)
            assert weak > best
            if min(best, weak) >= -np.log(0.05 / (attempt * (attempt + 1))):
                false += 1
                break
    assert false / runs <= 0.05
