from __future__ import annotations

import pytest

from autoqec.contracts.verdict import Guard, PairedCounts, PairedEffect, SequentialTest, StoppedBy
from autoqec.qec.stats import paired_effect
from autoqec.verification.decision import claim, decide
from tests.support.envs import surface

ENV = surface(5, 0.005)
HELD = (Guard(name="canary", passed=True, evidence="fine"),)
BROKEN = (*HELD, Guard(name="cost", passed=False, evidence="claims 1 FLOPs"))


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


def test_verified_needs_all_three() -> None:
    verdict, reasons = decide(ENV, sequential("evidence"), effect(700, 250), HELD)
    assert verdict == "VERIFIED" and len(reasons) == 3


@pytest.mark.parametrize("stopped_by", ["futility", "budget"])
def test_no_evidence_is_suspicious(stopped_by: StoppedBy) -> None:
    verdict, reasons = decide(ENV, sequential(stopped_by), effect(700, 250), HELD)
    assert verdict == "SUSPICIOUS" and reasons[0].startswith("sequential test: stopped by")


def test_a_gain_below_the_env_s_least_is_suspicious() -> None:
    verdict, reasons = decide(ENV, sequential("evidence"), effect(400, 330), HELD)
    assert verdict == "SUSPICIOUS" and "lower bound" in reasons[0] and "four times in five" in reasons[0]


def test_zero_errors_on_both_sides_is_never_verified() -> None:
    assert decide(ENV, sequential("evidence"), effect(0, 0, plain=0), HELD)[0] == "SUSPICIOUS"
    assert decide(ENV, sequential("evidence"), effect(0, 0), HELD)[0] == "SUSPICIOUS"
    assert decide(ENV, None, None, HELD)[0] == "SUSPICIOUS"
    free = ENV.model_copy(update={"protocol": ENV.protocol.model_copy(update={"min_relative_gain": 0.0})})
    assert decide(free, sequential("evidence"), effect(0, 0), HELD)[0] == "SUSPICIOUS"


def test_harm_and_broken_guards_fail_whatever_else_is_said() -> None:
    verdict, reasons = decide(ENV, sequential("harm"), effect(700, 250), HELD)
    assert verdict == "FAILED" and "harm" in reasons[0]
    verdict, reasons = decide(ENV, sequential("evidence"), effect(700, 250), BROKEN)
    assert verdict == "FAILED" and reasons == ("guard cost: claims 1 FLOPs",)


def test_claims_say_what_was_measured() -> None:
    said = claim(ENV, "VERIFIED", effect(700, 250))
    assert said.startswith("On surface_d5_z at p = 0.005, mwpm with this predecoder makes 32.1% [")
    assert claim(ENV, "SUSPICIOUS", effect(400, 330)).startswith("Nothing is claimed")
    assert "no measured gain" in claim(ENV, "FAILED", None)
