"""Verification of a family: every circuit at every p on fresh shots, and for which of them the gain is claimed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.profiles import PROFILES
from autoqec.contracts.round import PairedCounts
from autoqec.contracts.verdict import VerifyReport
from autoqec.decoders import checkpoint
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.qec.problem import Problem
from autoqec.qec.stats import paired_effect
from autoqec.runner.family import build_agent
from autoqec.runner.logger import TrainLogger
from autoqec.runner.training import TrainingBudget, phases, train
from autoqec.store.layout import RoundLayout
from autoqec.verification import guards, job, shot_stream, verifier
from autoqec.verification import report as report_files
from autoqec.verification.decision import claim
from autoqec.verification.report import member_results, report_differences
from autoqec.verification.session import MISCOVERAGE, Evidence
from autoqec.verification.shot_stream import member_draws
from tests.support import verification
from tests.support.envs import surface_family

ENV = surface_family((5, 5), (3, 3), p=(0.01, 0.005))
LOCAL: dict[str, Any] = {"type": "local", "local": {}, "training": {"batch_size": 64, "learning_rate": 0.01}}


@pytest.fixture(scope="module")
def request_(tmp_path_factory: pytest.TempPathFactory) -> verifier.VerifyRequest:
    place, dsl, problem = tmp_path_factory.mktemp("family"), parse_dsl(LOCAL), Problem.from_env(ENV)
    torch.set_num_threads(1)
    agent = build_agent(model := compile_predecoder(dsl, problem, seed=1), dsl, problem)
    plan = phases(problem, dsl, PROFILES["smoke"], TrainingBudget(14_000, 0), seed=0)[:1]
    train(agent, plan, dsl, TrainLogger(RoundLayout(place, 1)), 0)
    checkpoint.save(place / "weights.pt", model, dsl)
    return verification.request(
        place, ENV, place / "weights.pt", dsl_config=LOCAL, profile=verification.profile(20_000, 10_000)
    )


@pytest.fixture(scope="module")
def report(request_: verifier.VerifyRequest) -> VerifyReport:
    return verifier.verify(request_)


def test_every_circuit_at_every_p_is_reported(report: VerifyReport) -> None:
    assert report.verdict == "VERIFIED", report.reasons
    found = [(each.distance, each.rounds, each.p) for each in report.members]
    assert found == [(5, 5, 0.01), (5, 5, 0.005), (3, 3, 0.01), (3, 3, 0.005)]
    for each in report.members:
        assert [effect.reference for effect in each.effects] == ["mwpm", "mwpm_correlated"]
        assert {effect.p for effect in each.effects} == {each.p}
    assert [each.effects[0].counts.shots for each in report.members] == [10_000, 5_000, 10_000, 5_000]
    assert report.members[0].effects[0].counts == report.effect.counts  # type: ignore[union-attr]
    assert report.members[2].effects[0].counts.errors_candidate > 0
    assert "other_members" in {guard.name for guard in report.guards}
    purposes = {line.rpartition("/")[0] for line in report.chunk_digests}
    assert {"member:d=3,r=3,p=0.01", "member:d=3,r=3,p=0.005"} <= purposes
    assert len({line.split()[1] for line in report.chunk_digests}) == len(report.chunk_digests)


def test_intervals_hold_together(report: VerifyReport) -> None:
    for each in report.members:
        for effect in each.effects:
            wide = paired_effect(effect.counts, reference=effect.reference, p=effect.p, confidence=1 - 0.05 / 2 / 8)
            assert (effect.delta_low, effect.delta_high) == pytest.approx((wide.delta_low, wide.delta_high))
    assert MISCOVERAGE == 0.05


def test_report_and_claim_name_the_circuits(report: VerifyReport) -> None:
    assert report.claim.startswith("On family (d=5 r=5) at p = 0.01, mwpm with this predecoder makes")
    text = report_files.render(report)
    for each in report.members:
        assert f"| {each} | mwpm |" in text
        if each is not report.members[0]:
            assert str(each) in report.claim


def test_replay_reproduces_the_family(report: VerifyReport, request_: verifier.VerifyRequest) -> None:
    replayed = verifier.replay(report, request_)
    assert replayed.differences == ()
    changed = report.members[2].model_copy(update={"holds": not report.members[2].holds})
    other = report.model_copy(update={"members": (*report.members[:2], changed, report.members[3])})
    assert any("members[2].holds" in line for line in report_differences(other, replayed.report))
    digests = dict(shot_stream.redraw_chunks(report, ENV, verification.SECRET))
    assert set(digests) == {line.split()[1] for line in report.chunk_digests}


def counts(fixed: int, broken: int) -> PairedCounts:
    return PairedCounts(
        shots=10_000, errors_reference=400, errors_candidate=400 - fixed + broken, fixed=fixed, broken=broken
    )


def results(verdict: Any, fixed: int, attempt: int = 1) -> list[bool]:
    """Return where the gain holds; `fixed` errors of 400 are fixed at d=3 and p=0.01."""

    def effects(good: int, p: float) -> dict[str, Any]:
        return {"mwpm": paired_effect(counts(good, 20), p=p)}

    first, second = member_draws(ENV)
    evidence = Evidence(
        effects=effects(60, 0.01), members=[(first, effects(fixed, 0.01)), (second, effects(22, 0.005))]
    )
    found = member_results(ENV, evidence, verdict, attempt)
    text = claim(ENV, verdict, evidence.effects["mwpm"], (), found)
    assert ("also claimed for d=3 r=3 p=0.01" in text) is found[1].holds
    assert ("not shown for" in text) is (verdict == "VERIFIED")
    return [each.holds for each in found]


def test_gain_is_claimed_where_its_corrected_interval_shows_it() -> None:
    assert results("VERIFIED", 120) == [True, True, False]
    assert results("VERIFIED", 24) == [True, False, False]
    assert results("INCONCLUSIVE", 120) == [False, False, False]
    assert results("VERIFIED", 58, attempt=1)[1] and not results("VERIFIED", 58, attempt=200)[1]


def test_harm_on_a_circuit_trips_a_guard() -> None:
    good, bad = (paired_effect(counts(*pair), p=0.01) for pair in ((40, 30), (20, 90)))
    assert guards.other_members({"d=3 r=3 p=0.01": good}).passed
    tripped = guards.other_members({"d=3 r=3 p=0.01": good, "d=5 r=5 p=0.01": bad})
    assert not tripped.passed and "d=5 r=5 p=0.01: fixes 20, breaks 90" in tripped.evidence


def test_job_gets_the_seeds_of_every_draw(report: VerifyReport, request_: verifier.VerifyRequest) -> None:
    order = job.make_order(request_, "autoqec-1", {})
    (macs,) = job.derive_seeds(request_, order).macs.values()
    drawn = [line.split()[0].rpartition("/") for line in report.chunk_digests]
    assert all(len(macs[purpose]) > int(index) for purpose, _, index in drawn)
