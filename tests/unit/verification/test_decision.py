from __future__ import annotations

import pytest

from autoqec.contracts.round import PairedCounts
from autoqec.contracts.verdict import (
    BaselineResult,
    Guard,
    PairedEffect,
    SequentialTest,
    StoppedBy,
)
from autoqec.qec.stats import paired_effect, rate
from autoqec.verification.decision import claim, decide
from tests.support.envs import surface

ENV = surface(5, 0.005)
PASSED = (Guard(name="canary", passed=True, evidence="fine"),)


def sequential(stopped_by: StoppedBy) -> SequentialTest:
    counts = PairedCounts(shots=10_000, errors_reference=100, errors_candidate=70, fixed=50, broken=20)
    values = {"e_value": 100.0, "e_value_harm": 0.1, "threshold": 40.0, "alpha_t": 0.025, "attempt_index": 1}
    return SequentialTest(counts=counts, discoveries_before=0, stopped_by=stopped_by, **values)  # type: ignore[arg-type]


def effect(fixed: int, broken: int, plain: int = 1_400, shots: int = 100_000) -> PairedEffect:
    counts = PairedCounts(
        shots=shots,
        errors_reference=plain,
        errors_candidate=plain - fixed + broken,
        fixed=fixed,
        broken=broken,
    )
    return paired_effect(counts, p=0.005)


def test_verified_needs_evidence_effect_and_guards() -> None:
    verdict, reasons = decide(ENV, sequential("evidence"), effect(700, 250), PASSED)
    assert verdict == "VERIFIED" and len(reasons) == 3


@pytest.mark.parametrize("stopped_by", ["futility", "budget"])
def test_no_evidence_is_inconclusive(stopped_by: StoppedBy) -> None:
    verdict, reasons = decide(ENV, sequential(stopped_by), effect(700, 250), PASSED)
    assert verdict == "INCONCLUSIVE" and reasons[0].startswith("sequential test: stopped by")


def test_gain_below_the_env_s_minimum_is_inconclusive() -> None:
    verdict, reasons = decide(ENV, sequential("evidence"), effect(400, 330), PASSED)
    assert verdict == "INCONCLUSIVE" and "lower bound" in reasons[0] and "80% power" in reasons[0]


def test_zero_errors_on_both_sides_is_never_verified() -> None:
    assert decide(ENV, sequential("evidence"), effect(0, 0, plain=0), PASSED)[0] == "INCONCLUSIVE"
    assert decide(ENV, sequential("evidence"), effect(0, 0), PASSED)[0] == "INCONCLUSIVE"
    assert decide(ENV, None, None, PASSED)[0] == "INCONCLUSIVE"
    free = ENV.model_copy(update={"protocol": ENV.protocol.model_copy(update={"min_relative_gain": 0.0})})
    assert decide(free, sequential("evidence"), effect(0, 0), PASSED)[0] == "INCONCLUSIVE"


def guard(name: str) -> Guard:
    return Guard(name=name, passed=False, evidence="what was found")


def test_evidence_of_harm_fails_regardless_of_the_effect() -> None:
    verdict, reasons = decide(ENV, sequential("harm"), effect(700, 250), PASSED)
    assert verdict == "FAILED" and "harm" in reasons[0]


@pytest.mark.parametrize("name", ["complete", "other_points"])
def test_missing_answers_and_harm_at_another_p_fail(name: str) -> None:
    found = decide(ENV, sequential("evidence"), effect(700, 250), (*PASSED, guard(name), guard("cost")))
    assert found == ("FAILED", (f"guard {name}: what was found", "guard cost: what was found"))


@pytest.mark.parametrize(
    "name", ["cost", "repeatable", "batch_independence", "canary", "first_draw", "claimed_gain", "own_predictions"]
)
def test_tripped_guard_is_suspicious(name: str) -> None:
    verdict, reasons = decide(ENV, sequential("evidence"), effect(700, 250), (*PASSED, guard(name)))
    assert verdict == "SUSPICIOUS" and reasons == (f"guard {name}: what was found",)


def baseline(name: str, errors: int, beats: bool) -> BaselineResult:
    against = effect(10, 10, plain=errors)
    return BaselineResult(name=name, rate=rate(errors, 100_000), against=against, beats=beats)


def test_weak_baselines_of_an_env_are_named() -> None:
    weak = ENV.model_copy(update={"baselines": ("mwpm",)})
    others = (baseline("mwpm", 1_400, True), baseline("mwpm_correlated", 700, False))
    verdict, reasons = decide(weak, sequential("evidence"), effect(700, 250), PASSED, others)
    assert verdict == "VERIFIED"
    assert reasons[-1] == (
        "weak baseline: mwpm_correlated makes 50.0% fewer errors than mwpm on the same shots and is not among "
        "the env's baselines (mwpm); the candidate is not shown to beat it"
    )
    assert claim(weak, verdict, effect(700, 250), others).endswith(
        "It is not shown to beat mwpm_correlated, which makes fewer errors than mwpm."
    )
    equal = (baseline("mwpm", 1_400, True), baseline("mwpm_correlated", 1_380, True))
    assert len(decide(ENV, sequential("evidence"), effect(700, 250), PASSED, equal)[1]) == 3


def test_claim_states_what_was_measured() -> None:
    text = claim(ENV, "VERIFIED", effect(700, 250))
    assert text.startswith("On surface_d5_z at p = 0.005, mwpm with this predecoder makes 32.1% [")
    assert claim(ENV, "INCONCLUSIVE", effect(400, 330)).startswith("Nothing is claimed")
    assert "no measured gain" in claim(ENV, "FAILED", None)
