from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import integrate, stats

from autoqec.contracts.round import PairedCounts
from autoqec.verification.sequential import (
    MIXTURE,
    Monitor,
    e_lond_level,
    e_lond_weight,
    log_e_value,
    log_e_value_of_gain,
)


def counts(fixed: int, broken: int, shots: int = 1_000) -> PairedCounts:
    return PairedCounts(shots=shots, errors_reference=fixed, errors_candidate=broken, fixed=fixed, broken=broken)


@pytest.mark.parametrize(("wins", "losses"), [(0, 0), (1, 0), (0, 1), (30, 10), (10, 30), (300, 200), (40, 400)])
def test_closed_form_equals_the_mixture_integral(wins: int, losses: int) -> None:
    prior = stats.beta(*MIXTURE)

    def integrand(q: float) -> float:
        return math.exp(wins * math.log(2 * q) + losses * math.log(2 - 2 * q)) * float(prior.pdf(q)) if q < 1 else 0.0

    value, _ = integrate.quad(integrand, 0.5, 1.0, limit=200)
    assert log_e_value(wins, losses) == pytest.approx(math.log(value / float(prior.sf(0.5))), rel=1e-6, abs=1e-9)


@pytest.mark.parametrize("q", [0.5, 0.45, 0.2])
def test_expectation_is_at_most_one_under_the_null(q: float) -> None:
    for n in (1, 7, 60):
        mean = sum(float(stats.binom.pmf(k, n, q)) * math.exp(log_e_value(k, n - k)) for k in range(n + 1))
        assert mean <= 1 + 1e-9
        if q == 0.5:
            assert mean == pytest.approx(1)


def test_e_value_is_finite_for_extreme_counts() -> None:
    for wins, losses in [(0, 10**6), (10**6, 0), (5 * 10**5, 6 * 10**5)]:
        assert math.isfinite(log_e_value(wins, losses))
    assert log_e_value(0, 10**6) < log_e_value(0, 10**5) < 0


def test_e_lond_levels_spend_alpha_exactly() -> None:
    assert sum(e_lond_weight(t) for t in range(1, 100_000)) == pytest.approx(1, abs=2e-5)
    assert e_lond_level(0.05, 1, 0) == pytest.approx(0.025)
    assert e_lond_level(0.05, 20, 4) == pytest.approx(5 * e_lond_level(0.05, 20, 0))
    with pytest.raises(ValueError):
        e_lond_level(0.05, 2, 2)
    with pytest.raises(ValueError):
        e_lond_weight(0)


def test_monitor_stops_for_each_reason() -> None:
    def monitor(budget: int = 100_000) -> Monitor:
        return Monitor(alpha=0.05, attempt_index=1, discoveries_before=0, budget=budget)

    assert monitor().add(counts(60, 10)) == "evidence"
    assert monitor().add(counts(10, 60)) == "harm"
    assert monitor().add(counts(2, 2)) is None
    assert monitor(budget=1_000).add(counts(2, 2)) == "budget"
    assert monitor(budget=2_000).add(counts(60, 75)) == "futility"


def test_no_discordant_shot_is_no_evidence() -> None:
    monitor = Monitor(alpha=0.05, attempt_index=1, discoveries_before=0, budget=10_000)
    assert [monitor.add(counts(0, 0)) for _ in range(10)] == [None] * 9 + ["budget"]
    assert monitor.result("budget").e_value == pytest.approx(1)


def run(
    gain: float, *, rng: np.random.Generator, ler: float, discordance: float, attempt: int, budget: int
) -> tuple[str, int]:
    """Run one candidate through the real monitor; only the discordant counts are drawn."""
    monitor = Monitor(alpha=0.05, attempt_index=attempt, discoveries_before=0, budget=budget)
    chunk = 5_000
    while True:
        fixed = int(rng.poisson(chunk * ler * (discordance + gain) / 2))
        broken = int(rng.poisson(chunk * ler * (discordance - gain) / 2))
        reason = monitor.add(counts(fixed, broken, chunk))
        if reason:
            return reason, monitor.counts.shots


def test_null_streams_are_rejected_at_most_at_the_level() -> None:
    """Of 200 streams of 20 candidates without a gain, at most 5% have any evidence, within sampling error."""
    rng = np.random.default_rng(11)
    false = 0
    for _ in range(200):
        reasons = [
            run(0.0, rng=rng, ler=1e-2, discordance=rng.uniform(1, 2), attempt=t, budget=100_000)[0]
            for t in range(1, 21)
        ]
        false += "evidence" in reasons
    assert stats.beta.ppf(0.025, false, 200 - false + 1) <= 0.05 if false else True
    assert false <= 20


def test_gain_of_ten_percent_is_found_within_the_prod_budget() -> None:
    rng = np.random.default_rng(12)
    outcomes = [run(0.10, rng=rng, ler=1e-2, discordance=1.5, attempt=1 + i % 20, budget=2_000_000) for i in range(60)]
    assert sum(reason == "evidence" for reason, _ in outcomes) >= 57
    assert np.median([shots for _, shots in outcomes]) < 600_000


@pytest.mark.parametrize(("gain", "both", "n"), [(0.02, 0.3, 6), (0.02, 0.0, 8), (0.3, 0.2, 6)])
def test_gain_e_value_has_expectation_at_most_one_at_the_boundary(gain: float, both: float, n: int) -> None:
    """Exact sum over all outcomes of n shots that a decoder fails on; P(candidate) = (1 - g) P(reference)."""
    fixed = (1 - both + gain * both) / (2 - gain)
    p = np.array([fixed, 1 - both - fixed, both])
    assert p[1] + both == pytest.approx((1 - gain) * (p[0] + both))
    mean = 0.0
    for k in range(n + 1):
        for j in range(n - k + 1):
            weight = stats.multinomial.pmf([k, j, n - k - j], n, p)
            mean += float(weight) * math.exp(log_e_value_of_gain(k, j, n - k - j, gain))
    assert mean == pytest.approx(1)


def test_minimum_gain_raises_the_bar() -> None:
    assert log_e_value_of_gain(300, 200, 400, 0.0) == log_e_value(300, 200)
    assert log_e_value_of_gain(300, 200, 400, 1e-9) == pytest.approx(log_e_value(300, 200), abs=1e-3)
    values = [log_e_value_of_gain(300, 200, 400, gain) for gain in (0.0, 0.01, 0.02, 0.05)]
    assert values == sorted(values, reverse=True)
    assert math.isfinite(log_e_value_of_gain(10**6, 5 * 10**5, 10**6, 0.02))


def shots_of(gain: float, ler: float, discordance: float, rng: np.random.Generator, chunk: int) -> PairedCounts:
    fixed, broken = ler * (discordance + gain) / 2, ler * (discordance - gain) / 2
    only_reference, only_candidate, both, _ = rng.multinomial(chunk, [fixed, broken, ler - fixed, 1 - ler - broken])
    return PairedCounts(
        shots=chunk,
        errors_reference=int(only_reference + both),
        errors_candidate=int(only_candidate + both),
        fixed=int(only_reference),
        broken=int(only_candidate),
    )


def stops(gain: float, attempts: int, budget: int, rng: np.random.Generator) -> list[str]:
    found = []
    for attempt in range(1, attempts + 1):
        monitor = Monitor(0.05, attempt, 0, budget, min_relative_gain=0.02)
        reason = None
        while reason is None:
            reason = monitor.add(shots_of(gain, 5e-2, 0.5, rng, 50_000))
        found.append(reason)
        if reason == "evidence":
            break
    return found


@pytest.mark.long
def test_gain_below_the_minimum_is_rarely_evidence() -> None:
    """With a true gain of 1.9% and a minimum of 2%, at most 5% of 40 runs of 20 attempts find evidence."""
    rng = np.random.default_rng(13)
    runs = [stops(0.019, 20, 2_000_000, rng) for _ in range(40)]
    assert sum("evidence" in run for run in runs) <= 2


def test_gain_above_the_minimum_is_found() -> None:
    rng = np.random.default_rng(14)
    assert [stops(0.08, 1, 2_000_000, rng)[0] for _ in range(10)].count("evidence") >= 9


def test_harm_test_mirrors_the_gain_test() -> None:
    first, second = Monitor(0.05, 1, 0, 10**6), Monitor(0.05, 1, 0, 10**6)
    first.add(counts(40, 25))
    second.add(counts(25, 40))
    assert first.result("budget").e_value == pytest.approx(second.result("budget").e_value_harm)
