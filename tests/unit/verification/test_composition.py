"""Compositions compared with their parents: the rule, coverage of its interval, and trained networks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.round import PairedCounts
from autoqec.contracts.verdict import Composition, CompositionParent, VerifyReport
from autoqec.decoders import checkpoint
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.qec.problem import Problem
from autoqec.qec.stats import paired_effect
from autoqec.store.layout import RoundLayout
from autoqec.verification import artifact, verifier
from autoqec.verification.composition import CompositionCounts, Interaction, decide_composition, evaluate_composition
from autoqec.verification.report import report_differences
from autoqec.verification.verifier import VerifyRequest, artifact_sha256, replay, verify
from tests.support import verification as support
from tests.support.envs import surface

ENV = surface(5, 0.01, rounds=3)


def parent(number: int, beaten: bool) -> CompositionParent:
    counts = PairedCounts(shots=1_000, errors_reference=100, errors_candidate=90, fixed=20, broken=10)
    effect = paired_effect(counts)
    return CompositionParent(round=number, artifact_sha256="0" * 64, effect=effect, against=effect, beaten=beaten)


def test_outcome_follows_from_intervals_and_parents() -> None:
    both, one_beaten = (parent(1, True), parent(2, True)), (parent(1, True), parent(2, False))
    assert decide_composition(0.001, 0.003, both)[0] == "synergy"
    unbeaten = decide_composition(0.001, 0.003, one_beaten)
    assert unbeaten[0] == "additive" and "round 2" in unbeaten[1]
    assert decide_composition(-0.001, 0.003, both)[0] == "additive"
    assert decide_composition(-0.003, -0.001, both)[0] == "interference"
    assert decide_composition(0.0, 0.0, both)[0] == "additive"


def test_interaction_is_the_gain_minus_the_sum_of_gains() -> None:
    rng = np.random.default_rng(1)
    losses = [rng.random(5_000) < rate for rate in (0.05, 0.03, 0.04, 0.045)]
    totals = CompositionCounts.of(2)
    for part in np.split(np.arange(5_000), 5):
        totals.add([lost[part] for lost in losses])
    gains = [paired_effect(counts).delta for counts in (totals.child, *totals.parents)]
    mean, low, high = totals.interaction.interval()
    assert mean == pytest.approx(gains[0] - gains[1] - gains[2]) and low < mean < high
    assert [counts.errors_reference for counts in totals.against] == [int(lost.sum()) for lost in losses[2:]]
    assert all(counts.errors_candidate == int(losses[1].sum()) for counts in totals.against)


def test_equal_decoders_are_inconclusive() -> None:
    same = Interaction()
    same.add([np.zeros(100, bool)] * 4)
    mean, low, high = same.interval()
    assert mean == 0 and low < 0 < high


@pytest.mark.parametrize("rate", [0.0005, 0.005, 0.05])
def test_interval_has_its_nominal_coverage(rate: float) -> None:
    """For additive parents on 10,000 shots, the interval misses the sum in at most about 1 of 20 cases."""
    rng = np.random.default_rng(7)
    shots, trials, missed = 10_000, 2_000, 0
    # Shot kinds as (plain, child, parent 1, parent 2); each parent and the child fix and break some shots.
    kinds = np.array(
        [[1, 1, 1, 1], [1, 0, 0, 1], [1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 1, 1], [0, 0, 0, 0]]
    )
    share = np.array([0.5, 0.2, 0.2, 0.1, 0.05, 0.05, 0.0]) * rate
    each = kinds[:, 2] + kinds[:, 3] - kinds[:, 0] - kinds[:, 1]
    truth = float(share @ each[:-1])
    for counts in rng.multinomial(shots, [*share, 1 - share.sum()], size=trials):
        interaction = Interaction(shots, int(counts @ each), int(counts @ (each * each)))
        _, low, high = interaction.interval()
        missed += not low <= truth <= high
    assert missed / trials < 0.06


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> VerifyRequest:
    """Return a trained network as round 3, whose parents decode like the inner decoder alone."""
    directory = tmp_path_factory.mktemp("composition")
    problem, dsl = Problem.from_env(ENV), parse_dsl(support.CONFIG)
    support.train(directory / "child.pt", problem, steps=500)
    for number in (1, 2):
        checkpoint.save(directory / f"{number}.pt", compile_predecoder(dsl, problem, seed=number), dsl)
    request = support.request(
        directory / "round_3", ENV, directory / "child.pt", profile=support.profile(20_000, 15_000)
    )
    request = replace(request, round=RoundLayout(directory / "round_3", 3))
    return replace(request, parents=tuple(known(request, directory / f"{number}.pt", number) for number in (1, 2)))


def known(request: VerifyRequest, weights: Path, number: int) -> VerifyRequest:
    """Return a parent that was verified as `weights`."""
    layout = RoundLayout(weights.parent / f"round_{number}", number)
    parent_request = replace(request, round=layout, checkpoint=weights, parents=())
    return replace(parent_request, expected_artifact=artifact_sha256(parent_request))


@pytest.mark.long
def test_gain_over_parents_without_gain_is_synergy(child: VerifyRequest) -> None:
    report = verify(child)
    found = report.composition
    assert found is not None and found.verdict == "synergy", report.not_tested
    parents = sum(parent_result.effect.delta for parent_result in found.parents)
    assert found.interaction == pytest.approx(found.effect.delta - parents) and found.interaction_low > 0
    assert [parent_result.round for parent_result in found.parents] == [1, 2] and all(
        parent_result.beaten for parent_result in found.parents
    )
    # Untrained networks return the priors, so that predictions differ only for ties between matchings.
    assert all(
        parent_result.effect.counts.fixed + parent_result.effect.counts.broken < found.effect.counts.fixed / 20
        for parent_result in found.parents
    )
    assert len(found.chunk_digests) == 3 and all(line.startswith("composition/") for line in found.chunk_digests)
    assert not {line.split()[1] for line in found.chunk_digests} & {line.split()[1] for line in report.chunk_digests}
    text = child.round.report_md.read_text()
    assert "## Composition: synergy" in text and "parent: round 2" in text

    again = replay(report, child)
    assert again.agrees, again.differences
    assert again.report.composition == found
    values = json.loads(child.round.report_json.read_bytes())
    values["composition"]["parents"][0]["effect"]["counts"]["fixed"] = 999
    forged = type(report).model_validate(values)
    assert report_differences(forged, again.report) == ["composition.parents[0].effect.counts.fixed was 999, is 2"]


def composed(request: VerifyRequest, directory: Path) -> Composition | str:
    """Run only the comparison."""
    return evaluate_composition(artifact.freeze(request.checkpoint, request.dsl, None, directory), request, directory)


def test_gain_that_one_parent_already_has_is_interference(child: VerifyRequest, tmp_path: Path) -> None:
    """Both parents have the child's weights, so that the sum of gains is twice the child's gain."""
    copies = tuple(known(child, child.checkpoint, number) for number in (1, 2))
    found = composed(replace(child, parents=copies), tmp_path)
    assert isinstance(found, Composition) and found.verdict == "interference"
    assert found.interaction == pytest.approx(-found.effect.delta)
    assert not any(
        parent_result.beaten or parent_result.against.counts.fixed or parent_result.against.counts.broken
        for parent_result in found.parents
    )


@pytest.mark.long
def test_verified_parents_and_child_share_one_shot_stream(tmp_path: Path) -> None:
    """Three trained networks, each verified separately; all learned the same corrections."""
    problem = Problem.from_env(ENV)
    verified: list[tuple[VerifyRequest, VerifyReport]] = []
    for number, steps in ((1, 800), (2, 800), (3, 1_200)):
        weights, profile = tmp_path / f"{number}.pt", support.profile(60_000, 40_000)
        support.train(weights, problem, steps=steps, seed=number)
        request = replace(
            support.request(tmp_path / f"round_{number}", ENV, weights, profile=profile),
            round=RoundLayout(tmp_path / f"round_{number}", number),
            attempt_index=number,
            discoveries_before=len(verified),
        )
        if number == 3:
            assert [report.verdict for _, report in verified] == ["VERIFIED", "VERIFIED"]
            known = tuple(
                replace(known_parent, expected_artifact=report.artifact_sha256) for known_parent, report in verified
            )
            request = replace(request, parents=known)
        verified.append((request, verify(request)))
    request, report = verified.pop()
    found = report.composition
    assert report.verdict == "VERIFIED" and found is not None, report.reasons
    assert [parent_result.artifact_sha256 for parent_result in found.parents] == [
        parent.artifact_sha256 for _, parent in verified
    ]
    effects = [found.effect, *(parent_result.effect for parent_result in found.parents)]
    assert {effect.counts.shots for effect in effects} == {40_000}
    assert (
        len({effect.counts.errors_reference for effect in effects}) == 1
    )  # one shot stream: the same errors of the baseline
    assert all(effect.delta_low > 0 for effect in effects)
    # Each removes errors that the others also remove, so that the sum of the parents' gains is not reached.
    assert found.verdict == "interference" and found.interaction_high < 0
    assert replay(report, request).agrees


@pytest.mark.parametrize("damage", ["other", "gone", "link"])
def test_parent_that_differs_from_its_verified_artifact_is_refused(
    damage: str, child: VerifyRequest, tmp_path: Path
) -> None:
    first, second = child.parents
    weights = tmp_path / "weights.pt"
    if damage == "other":
        weights.write_bytes(first.checkpoint.read_bytes() + b"\0")
    elif damage == "link":
        weights.symlink_to(first.checkpoint)
    found = composed(replace(child, parents=(replace(first, checkpoint=weights), second)), tmp_path)
    why = f"was verified as {first.expected_artifact} and is now" if damage == "other" else "cannot be read"
    assert isinstance(found, str) and why in found


def test_impossible_comparison_has_a_reason(child: VerifyRequest) -> None:
    small = replace(
        child, parents=(), no_comparison_reason="parent b is not VERIFIED", profile=support.profile(5_000, 5_000)
    )
    report = verifier.run_verification(small)
    assert report.composition is None and report.verdict in ("VERIFIED", "INCONCLUSIVE")
    assert "synergy with the parents: parent b is not VERIFIED" in report.not_tested
