from __future__ import annotations

import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from scipy import optimize

from autoqec.contracts.round import PairedCounts
from autoqec.qec import stats

CELLS = st.integers(0, 400)


def pairs(fixed: int, broken: int, both: int, shots: int) -> PairedCounts:
    return PairedCounts(
        shots=shots, errors_reference=fixed + both, errors_candidate=broken + both, fixed=fixed, broken=broken
    )


def test_clopper_pearson_known_values() -> None:
    low, high = stats.clopper_pearson(10, 100)
    assert (low, high) == pytest.approx((0.04900469, 0.17622260), abs=1e-8)
    assert stats.clopper_pearson(0, 100) == pytest.approx((0.0, 0.03621669), abs=1e-8)
    assert stats.clopper_pearson(100, 100)[1] == 1.0
    assert stats.clopper_pearson(0, 0) == (0.0, 1.0)


def test_intervals_equal_those_of_scipy() -> None:
    """The product avoids scipy.stats, which takes longer to import than writing a report."""
    from scipy.stats import beta

    rng = np.random.default_rng(0)
    for shots in rng.integers(1, 3_000_000, 200).tolist():
        errors = int(rng.integers(1, min(shots, 2000) + 1))
        low, high = stats.clopper_pearson(errors, shots)
        assert low == pytest.approx(beta.ppf(0.025, errors, shots - errors + 1), rel=1e-13)
        assert high == pytest.approx(beta.ppf(0.975, errors + 1, shots - errors) if errors < shots else 1.0, rel=1e-13)


def test_rate_per_round_composes_to_the_total_rate() -> None:
    rate = stats.rate(150, 10_000, rounds=5)
    q = rate.per_round
    assert (1 - (1 - 2 * q) ** 5) / 2 == pytest.approx(rate.rate)
    assert stats.rate(6_000, 10_000, rounds=5).per_round == 0.5
    assert stats.rate(0, 0).rate == 0.0


def test_count_pairs_and_add() -> None:
    reference = np.array([1, 1, 0, 0, 1], bool)
    candidate = np.array([0, 1, 1, 0, 0], bool)
    counts = stats.count_pairs(reference, candidate)
    assert counts == PairedCounts(shots=5, errors_reference=3, errors_candidate=2, fixed=2, broken=1)
    assert stats.add_pairs(counts, counts).fixed == 4
    with pytest.raises(ValueError, match="differ"):
        stats.count_pairs(reference, candidate[:4])


def test_error_mask_compares_every_observable() -> None:
    predictions = np.array([[0, 0], [0, 1], [1, 1]], bool)
    assert stats.error_mask(predictions, np.zeros((3, 2), bool)).tolist() == [False, True, True]


@settings(max_examples=150, deadline=None)
@given(CELLS, CELLS, CELLS, st.integers(1, 10**6))
def test_intervals_contain_their_estimate(fixed: int, broken: int, both: int, rest: int) -> None:
    effect = stats.paired_effect(pairs(fixed, broken, both, fixed + broken + both + rest))
    assert -1 <= effect.delta_low <= effect.delta <= effect.delta_high <= 1
    mirrored = stats.paired_effect(pairs(broken, fixed, both, fixed + broken + both + rest))
    assert mirrored.delta_low == pytest.approx(-effect.delta_high, abs=1e-9)
    if fixed + both == 0:
        assert effect.relative is effect.relative_low is effect.relative_high is None
    else:
        assert effect.relative_low is not None and effect.relative is not None and effect.relative_high is not None
        assert effect.relative_low - 1e-9 <= effect.relative <= effect.relative_high + 1e-9 <= 1 + 2e-9
        # both intervals agree on whether zero is included
        assert (effect.relative_low > 1e-6) == (effect.delta_low > 1e-6 * (fixed + both) / effect.counts.shots) or (
            abs(effect.delta_low) < 1e-4
        )


@pytest.mark.parametrize(
    ("shots", "fixed", "broken", "both"),
    [
        (5_000, 0.004, 0.003, 0.010),
        (5_000, 0.0008, 0.0004, 0.0005),
        (1_000, 0.010, 0.002, 0.0),
        (300, 0.05, 0.02, 0.10),
        (2_000, 0.001, 0.003, 0.002),
    ],
)
def test_coverage_at_small_counts(shots: int, fixed: float, broken: float, both: float) -> None:
    """95% intervals contain the true value in 95% of draws, within four standard errors and slight conservatism."""
    rng = np.random.default_rng(7)
    delta, relative = fixed - broken, (fixed - broken) / (fixed + both)
    held = held_relative = tried = 0
    draws = 800
    for f, b, w, _ in rng.multinomial(shots, [fixed, broken, both, 1 - fixed - broken - both], size=draws):
        effect = stats.paired_effect(pairs(int(f), int(b), int(w), shots))
        held += effect.delta_low <= delta <= effect.delta_high
        if effect.relative_low is not None and effect.relative_high is not None:
            tried += 1
            held_relative += effect.relative_low <= relative <= effect.relative_high
    for share in (held / draws, held_relative / tried):
        assert 0.92 <= share <= 0.985


def test_interval_without_errors_has_positive_width() -> None:
    nothing = stats.paired_effect(pairs(0, 0, 0, 1_000))
    assert nothing.delta_low < 0 < nothing.delta_high
    only_fixed = stats.paired_effect(pairs(3, 0, 0, 1_000))
    assert only_fixed.relative == 1.0 and only_fixed.relative_low is not None and only_fixed.relative_low < 0.6
    with pytest.raises(ValueError, match="zero shots"):
        stats.paired_effect(pairs(0, 0, 0, 0))


def test_detectable_effect_is_detectable() -> None:
    shots, ler = 100_000, 0.01
    gain = stats.detectable_effect(shots, ler)
    rng = np.random.default_rng(3)
    fixed = ler * (1.5 + gain) / 2
    broken = ler * (1.5 - gain) / 2
    seen = 0
    for f, b, _ in rng.multinomial(shots, [fixed, broken, 1 - fixed - broken], size=400):
        seen += stats.paired_effect(pairs(int(f), int(b), 0, shots)).delta_low > 0
    assert 0.72 <= seen / 400 <= 0.88
    assert stats.detectable_effect(100, 0.0) == 1.0
    assert stats.detectable_effect(4 * shots, ler) == pytest.approx(gain / 2)


@settings(max_examples=100, deadline=None)
@given(st.floats(-1.0, 1.0), st.floats(1e-3, 50.0), st.floats(0.0, 1.0), st.sampled_from([1, 3, 9]))
@example(-1.0, 2.022533931744765, 0.0, 9)  # interpolation alone does not end
def test_root_agrees_with_scipy(root: float, slope: float, share: float, power: int) -> None:
    """Of a decreasing function, also one that is flat at its root, where only bisection makes progress."""

    calls = 0

    def function(x: float) -> float:
        nonlocal calls
        calls += 1
        assert calls < 200, "no progress"
        return math.atan(slope * (root - x)) ** power

    low, high = -1.0 - share, 1.0 + share**2
    found = stats._root(function, 0.0, low, high, function(low), function(high))
    calls = -1000
    expected = root if power > 1 else float(optimize.brentq(function, low, high, xtol=1e-13))
    assert found == pytest.approx(expected, abs=1e-11 if power == 1 else 1e-2)


def test_paired_intervals_load_no_heavy_package() -> None:
    """They are computed whenever a run is opened, so their imports are paid by every command."""
    code = """
import sys
from autoqec.contracts.round import PairedCounts
from autoqec.qec.stats import paired_effect
paired_effect(PairedCounts(shots=100, errors_reference=5, errors_candidate=3, fixed=4, broken=2))
sys.exit(bool({'torch', 'stim', 'pymatching', 'scipy', 'numpy'} & set(sys.modules)))
"""
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
