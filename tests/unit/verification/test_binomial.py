"""Binomial tails against scipy.stats, which verification processes do not import."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from scipy import stats

from autoqec.verification import binomial

RNG = np.random.default_rng(7)


def cases(n: int) -> list[tuple[int, int, float]]:
    """Return (count, trials, p) near the expected count, and at its ends."""
    found = []
    for _ in range(n):
        trials = int(np.exp(RNG.uniform(0, 12)))
        p = float(RNG.choice([RNG.uniform(0.005, 0.995), 1 / RNG.integers(2, 300), 0.5]))
        spread = RNG.normal(0, 2) * (trials * p * (1 - p)) ** 0.5
        found.append((int(np.clip(round(trials * p + spread), 0, trials)), trials, p))
    return [*found, (0, 1, 0.5), (1, 1, 0.5), (0, 40, 0.01), (40, 40, 0.99), (3, 6, 0.5), (2, 6, 0.5), (4, 6, 0.5)]


def test_two_sided_p_value_is_that_of_scipy() -> None:
    for count, trials, p in cases(1500):
        expected = float(stats.binomtest(count, trials, p).pvalue)
        assert binomial.two_sided_p_value(count, trials, p) == pytest.approx(expected, rel=2e-12), (count, trials, p)


def test_tail_is_bit_for_bit_that_of_scipy() -> None:
    for count, trials, p in cases(1500):
        for least in (count - 1, count):
            assert binomial.probability_of_more(least, trials, p) == stats.binom.sf(least, trials, p)


@pytest.mark.parametrize("chance", [1e-6, 1e-3, 0.3])
def test_quantile_is_that_of_scipy(chance: float) -> None:
    for count, trials, _ in cases(300):
        p = (count + 1) / (trials + 2)
        assert binomial.upper_quantile(chance, trials, p) == stats.binom.isf(chance, trials, p), (trials, p)


def test_verifier_does_not_import_scipy_stats() -> None:
    code = "import sys, autoqec.verification.verifier; print('scipy.stats' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
