"""Verdicts and claims on sealed blocks of recorded shots."""

from __future__ import annotations

from typing import Any

import pytest

from autoqec.contracts.round import PairedCounts
from autoqec.contracts.verdict import BaselineResult, Guard, PairedEffect, RecordedEvidence
from autoqec.extensions.recorded.decision import claim_recorded, decide_recorded
from autoqec.qec.stats import rate
from tests.unit.verification.test_decision import ENV, PASSED, effect, sequential

SPENT = RecordedEvidence(
    block_shots=1000, first_block=40, blocks=20, blocks_left=20, candidates_left=1, e_values={"mwpm": 100.0}
)


def on_blocks(*effects: PairedEffect) -> tuple[BaselineResult, ...]:
    return tuple(
        BaselineResult(name=str(index), rate=rate(1_400, 100_000, rounds=5), against=found, beats=found.delta_low > 0)
        for index, found in enumerate(effects)
    )


def test_gain_on_recorded_shots_must_be_shown_over_every_baseline() -> None:
    strong, weak = effect(700, 250), effect(400, 330)
    verdict, reasons = decide_recorded(ENV, sequential("evidence"), strong, PASSED, SPENT, on_blocks(strong))
    assert verdict == "VERIFIED" and reasons[-1].startswith("20 sealed blocks are left")
    both = on_blocks(strong, weak)
    assert decide_recorded(ENV, sequential("evidence"), strong, PASSED, SPENT, both)[0] == "INCONCLUSIVE"
    assert decide_recorded(ENV, sequential("budget"), strong, PASSED, SPENT, on_blocks(strong))[0] == "INCONCLUSIVE"
    assert decide_recorded(ENV, None, None, PASSED, SPENT, ())[0] == "INCONCLUSIVE"


@pytest.mark.parametrize(
    ("change", "verdict", "reason"),
    [
        ({"blocks_too_short": True, "autocorrelation": 0.5}, "INCONCLUSIVE", "blocks too short"),
        ({"blocks": 0}, "INCONCLUSIVE", "no evidence is left"),
    ],
)
def test_recorded_blocks_that_are_no_evidence(change: dict[str, Any], verdict: str, reason: str) -> None:
    spent, found = SPENT.model_copy(update=change), effect(700, 250)
    got, reasons = decide_recorded(ENV, sequential("evidence"), found, PASSED, spent, on_blocks(found))
    assert got == verdict and any(reason in line for line in reasons)


@pytest.mark.parametrize(
    ("name", "remedy"), [("recorded:other", "its predictions may be the recorded flips"), ("mwpm", "record more shots")]
)
def test_reference_without_errors_is_named(name: str, remedy: str) -> None:
    """No reduction is defined, and what is left of the differences of blocks looks like a correlation of the shots."""
    counts = PairedCounts(shots=1400, errors_reference=0, errors_candidate=74, fixed=0, broken=74)
    found = PairedEffect(reference=name, p=None, counts=counts, delta=-0.05, delta_low=-0.1, delta_high=0.0,
                         relative=None, relative_low=None, relative_high=None)  # fmt: skip
    spent = SPENT.model_copy(update={"blocks_too_short": True, "autocorrelation": 0.78})
    text = f"{name} made no errors in 1,400 sealed shots, so that a reduction of its errors is undefined; {remedy}"
    verdict, reasons = decide_recorded(ENV, sequential("budget"), found, PASSED, spent, on_blocks(found))
    assert verdict == "INCONCLUSIVE" and reasons[1] == text and not any("too short" in line for line in reasons)
    claimed = claim_recorded(ENV, verdict, found, spent)
    assert claimed == f"Nothing is claimed on the recorded shots of surface_d5_z: {text}."


@pytest.mark.parametrize(("name", "verdict"), [("complete", "FAILED"), ("canary", "SUSPICIOUS")])
def test_tripped_guard_on_recorded_shots(name: str, verdict: str) -> None:
    tripped, found = (Guard(name=name, passed=False, evidence="not fine"),), effect(700, 250)
    got, reasons = decide_recorded(ENV, sequential("evidence"), found, tripped, SPENT, on_blocks(found))
    assert got == verdict and reasons[0] == f"guard {name}: not fine"
    harmed = decide_recorded(ENV, sequential("harm"), found, PASSED, SPENT, on_blocks(found))
    assert harmed[0] == "FAILED" and harmed[1][0].startswith("block test: harm")
