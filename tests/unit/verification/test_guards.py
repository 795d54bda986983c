"""Each guard passes for an honest candidate and trips on what it checks."""

from __future__ import annotations

import base64
import shutil
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import autoqec
from autoqec.contracts.dsl import FAMILIES, parse_dsl
from autoqec.contracts.env import Constraints, DemFileCode, FileNoise
from autoqec.contracts.round import PairedCounts, RoundMetrics
from autoqec.contracts.verdict import Cost
from autoqec.decoders import checkpoint
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.qec import backends
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import sample
from autoqec.qec.stats import paired_effect
from autoqec.verification import artifact, baselines, guards
from autoqec.verification.candidate_evaluation import CandidateEvaluation, GuardChunk
from autoqec.verification.shot_stream import ShotStream
from tests.support.envs import bicycle, problem, surface


def pairs(shots: int, plain: int, fixed: int, broken: int) -> PairedCounts:
    return PairedCounts(
        shots=shots, errors_reference=plain, errors_candidate=plain - fixed + broken, fixed=fixed, broken=broken
    )


@pytest.mark.parametrize(
    ("name", "errors", "differing", "passed"),
    [
        ("mwpm_correlated", 1465, 0, False),
        ("mwpm_correlated", 1465, 14, False),
        ("mwpm_correlated", 1465, 16, True),
        ("mwpm_correlated", 49, 0, True),
        ("mwpm", 1465, 0, True),
    ],
)
def test_predictions_equal_those_of_the_reported_decoder(name: str, errors: int, differing: int, passed: bool) -> None:
    counts = pairs(20_000, errors, differing // 2, differing - differing // 2)
    guard = guards.own_predictions({name: paired_effect(counts, reference=name, p=0.01)}, "mwpm")
    assert guard.passed == passed
    assert passed or "predictions equal baseline mwpm_correlated" in guard.evidence


def test_overlapping_seed_bands_trip() -> None:
    env = surface()
    assert guards.seed_bands(env, [2**32, 2**62]).passed
    assert not guards.seed_bands(env, [2**32, 2**32 - 1]).passed
    assert not guards.seed_bands(env, [2**40, 2**40]).passed


def test_other_circuit_trips() -> None:
    mine = problem().circuit_sha256
    assert guards.same_circuit(problem(), mine, None).passed
    assert guards.same_circuit(problem(), mine, mine).passed
    for built, recorded in ((mine, "0" * 64), ("0" * 64, mine)):
        guard = guards.same_circuit(problem(), built, recorded)
        assert not guard.passed and "0" * 64 in guard.evidence


def test_baseline_outside_its_interval_trips() -> None:
    assert guards.baseline_interval(pairs(10_000, 105, 0, 0), 2_000, 200_000).passed
    assert guards.baseline_interval(pairs(10_000, 0, 0, 0), 0, 200_000).passed
    assert not guards.baseline_interval(pairs(10_000, 200, 0, 0), 2_000, 200_000).passed  # a sabotaged baseline
    assert not guards.baseline_interval(pairs(10_000, 30, 0, 0), 2_000, 200_000).passed


PARALLEL_EDGES = """
error(0.05) D0 L0
error(0.04) D0
error(0.05) D0 D1
error(0.03) D0 D1 L0
error(0.05) D1
"""


def test_reference_decoder_merges_parallel_edges_as_the_baseline_does() -> None:
    """Both keep the most likely of parallel edges with different observables; PyMatching's DEM import does not."""
    env = surface().model_copy(
        update={
            "code": DemFileCode(path="parallel.dem", text=PARALLEL_EDGES),
            "noise": FileNoise(),
            "baselines": ("mwpm",),
        }
    )
    parallel = Problem.from_env(env)
    shots = sample(parallel, 20_000, 1)
    predictions = backends.make_backend("mwpm", parallel).decode(shots.detection_events)
    reference = baselines._reference_decoder(parallel)(shots.detection_events)
    assert (predictions == reference).all()
    errors = int((predictions != shots.observables).any(axis=1).sum())
    assert guards.baseline_interval(pairs(20_000, errors, 0, 0), *baselines.reference_errors(parallel, 20_000)).passed


def test_batch_dependence_trips() -> None:
    outputs = np.random.default_rng(0).normal(size=(5_000, 3)).astype(np.float32) * 5
    assert guards.batch_independence(outputs, outputs + np.float32(1e-6), 1).passed
    assert not guards.batch_independence(outputs, outputs, 2).passed
    assert guards.batch_independence(outputs, outputs, 0, (1, 500)) == guards.batch_independence(outputs, outputs, 0)
    single_shots = guards.batch_independence(outputs, outputs, 0, (2, 500))
    assert not single_shots.passed and single_shots.evidence.endswith("2 of single shots (allowed 1)")
    moved = outputs.copy()
    moved[77, 1] += 1e-2
    assert not guards.batch_independence(outputs, moved, 0).passed
    moved[77, 1] = np.nan
    assert not guards.batch_independence(outputs, moved, 0).passed
    assert not guards.batch_independence(outputs, None, None).passed


@pytest.mark.parametrize(("changed", "differing", "singles"), [(60, 110, 40), (2, 14, 8)])
def test_as_many_predictions_may_differ_as_rounding_changes(changed: int, differing: int, singles: int) -> None:
    """BP+OSD turns rounding errors of the log-odds into other predictions; more than those still trip the guard."""
    outputs = np.zeros((5_000, 3), np.float32)
    by_rounding = (changed, 5_000)
    assert guards.batch_independence(outputs, outputs, changed, (changed // 5, 1_000), by_rounding).passed
    assert not guards.batch_independence(outputs, outputs, changed, (1, 1_000)).passed
    for counts in ((differing, (0, 1_000)), (0, (singles, 1_000))):
        found = guards.batch_independence(outputs, outputs, *counts, by_rounding)
        assert not found.passed and f"change {changed} of 5000 predictions" in found.evidence
    assert not guards.batch_independence(outputs, outputs + np.float32(1e-2), 0, (0, 0), by_rounding).passed


@pytest.mark.parametrize(("decoder", "n_shots"), [("mwpm", 400), ("bposd", 80)])
def test_rounding_changes_predictions_of_bp_osd_alone(decoder: str, n_shots: int) -> None:
    prob = problem(3) if decoder == "mwpm" else Problem.from_env(bicycle(rounds=2, p=0.01))
    evaluation = CandidateEvaluation(prob, ShotStream(b"0" * 32, "0" * 64, (0, 9)), None)  # type: ignore[arg-type]
    shots = sample(prob, n_shots, 1)
    answers = np.broadcast_to(evaluation.priors, (n_shots, len(evaluation.priors)))
    chunk = GuardChunk(shots, answers, evaluation.decoder.inner.decode_soft(shots.detection_events, answers))
    changed, compared = evaluation.count_changed_by_rounding(chunk, 1e-4)
    assert compared == n_shots and (changed == 0 if decoder == "mwpm" else changed >= 3)
    assert evaluation.count_changed_by_rounding(chunk, 0.0) == (0, n_shots)


def test_unrepeatable_answers_trip() -> None:
    outputs = np.ones((4, 3), np.float32)
    assert guards.repeatable(outputs, outputs.copy()).passed
    assert not guards.repeatable(outputs, outputs + np.float32(1e-6)).passed
    assert not guards.repeatable(outputs, None).passed


def test_missing_answers_trip() -> None:
    assert guards.complete({}, 100).passed
    guard = guards.complete({"not finite": 3}, 100)
    assert not guard.passed and "3 shots: not finite" in guard.evidence
    assert "no answer was received (closed)" in guards.complete({"closed": 0}, 0).evidence


def test_shot_independent_gain_trips() -> None:
    nothing = pairs(5_000, 300, 0, 0)
    worse, against_own = pairs(5_000, 300, 30, 130), pairs(5_000, 250, 10, 160)
    assert guards.ablation(nothing, worse, against_own).passed
    paired = pairs(5_000, 300, 120, 20)
    assert not guards.ablation(nothing, paired, pairs(5_000, 200, 0, 0)).passed  # the answers do not depend on the shot
    assert guards.ablation(nothing, paired, pairs(5_000, 100, 5, 105)).passed  # the gain is partly static
    assert not guards.ablation(paired, worse, against_own).passed  # the priors must not gain


def test_gain_on_canaries_trips() -> None:
    assert guards.canary(2_530, 5_000).passed
    assert guards.canary(2_300, 5_000).passed
    assert not guards.canary(2_900, 5_000).passed


def test_harm_at_other_error_rates_trips() -> None:
    good = paired_effect(pairs(20_000, 200, 60, 30), p=0.003)
    assert guards.other_points((good, paired_effect(pairs(20_000, 200, 30, 40), p=0.01))).passed
    assert not guards.other_points((good, paired_effect(pairs(20_000, 200, 30, 90), p=0.01))).passed
    assert guards.other_points(()).passed


def cost(**more: float | int | None) -> Cost:
    values = {
        "n_params": 1_000,
        "flops_per_syndrome": 2_000,
        "claimed_n_params": 1_000,
        "claimed_flops_per_syndrome": 2_000,
        "candidate_us_per_shot": 5.0,
        "startup_cpu_s": 0.0,
        "memory_growth_mb": 0.0,
    }
    return Cost.model_validate({**values, "counted_by": "candidate sandbox", **more})


@pytest.mark.parametrize(
    ("decoding_us", "correlated_us", "passed"),
    [(8.0, 10.0, True), (10.1, 10.0, False), (99.0, None, True), (None, None, True)],
)
def test_time_beyond_the_limit_of_the_env_trips(
    decoding_us: float | None, correlated_us: float | None, passed: bool
) -> None:
    counted = cost(decoding_us_per_shot=decoding_us, correlated_us_per_shot=correlated_us)
    env = surface().model_copy(update={"constraints": Constraints(max_time_ratio=1.0)})
    guard = guards.cost(counted, env, stored_bytes=4_000, code_bytes=4_000, shots=50_000)
    assert guard.passed is passed and ("correlated matching, at most 1 x" in guard.evidence) is not passed


@pytest.mark.parametrize(
    ("counted", "passed"),
    [
        (cost(), True),
        (cost(claimed_n_params=None, claimed_flops_per_syndrome=None), True),
        (cost(claimed_flops_per_syndrome=3_000), True),
        (cost(claimed_flops_per_syndrome=1_999), False),
        (cost(claimed_n_params=1), False),
        (cost(n_params=10_001), False),
        (cost(candidate_us_per_shot=1_000.0), False),
        (cost(n_params=999, claimed_n_params=999), False),  # 4,000 bytes of weights are more than 999 numbers
        (cost(startup_cpu_s=2.9, memory_growth_mb=30.0), True),
        (cost(startup_cpu_s=3.1), False),  # a network trained in the candidate process
        (cost(memory_growth_mb=40.0), False),
        (None, False),
    ],
)
def test_excess_cost_trips(counted: Cost | None, passed: bool) -> None:
    env = surface().model_copy(update={"constraints": Constraints(max_params=10_000)})
    assert guards.cost(counted, env, stored_bytes=4_000, code_bytes=4_000, shots=50_000).passed is passed


LARGE = {"flops_per_syndrome": 5_000_000, "claimed_flops_per_syndrome": 5_000_000}


@pytest.mark.parametrize(
    ("changed", "more", "passed"),
    [
        ({"startup_cpu_s": 3.9}, {"repeated_shots": 10_000}, True),  # one second more, for first calls
        ({"startup_cpu_s": 4.5}, {"repeated_shots": 10_000}, False),
        ({"startup_cpu_s": 4.5, "candidate_us_per_shot": 80.0}, {"repeated_shots": 20_000}, True),
        ({"memory_growth_mb": 200.0, **LARGE}, {}, False),  # weights hidden in an array of a large network
        ({"memory_growth_mb": 48.0, **LARGE, "n_params": 1_900_000, "claimed_n_params": 1_900_000}, {}, True),
        ({"memory_growth_mb": 50.0, **LARGE, "n_params": 1_900_000, "claimed_n_params": 1_900_000}, {}, False),
    ],
)
def test_resources_of_the_second_process(changed: dict[str, float], more: dict[str, Any], passed: bool) -> None:
    guard = guards.cost(cost(**changed), surface(), stored_bytes=4_000, code_bytes=4_000, shots=50_000, **more)
    assert guard.passed is passed, guard.evidence


def test_weights_written_into_code_are_counted(tmp_path: Path) -> None:
    """A rewritten module passes; one with 60 kB of numbers fails, as text, in a comment or in a new file."""
    env, modules = surface(), Path(autoqec.__file__).parent / "decoders" / "modules"
    blob = base64.b85encode(np.random.default_rng(1).bytes(60_000)).decode()
    weights, dsl = tmp_path / "w.pt", parse_dsl({"type": "mlp", "mlp": {}})
    checkpoint.save(weights, compile_predecoder(dsl, problem(), seed=0), dsl)
    for name, text, passed in (
        ("mlp.py", (modules / "mlp.py").read_text(), True),
        ("mlp.py", (modules / "gnn.py").read_text() + (modules / "conv.py").read_text(), True),
        ("mlp.py", f"WEIGHTS = {blob!r}\n", False),
        ("more.py", f"# {blob}\n", False),
        ("more.yaml", blob, False),
    ):
        surface_dir = tmp_path / str(len(list(tmp_path.iterdir())))
        shutil.copytree(modules, surface_dir)
        (surface_dir / name).write_text(text)
        size = artifact.uncounted_bytes(artifact.FrozenArtifact(tmp_path, weights, surface_dir, "", "none"))
        assert (size > guards.MAX_CODE_BYTES) is not passed
        assert guards.cost(cost(), env, stored_bytes=4_000, code_bytes=size, shots=50_000).passed is passed


def test_weights_outside_the_tensors_are_counted(tmp_path: Path) -> None:
    """Weights in another archive member, its comment, its names or before the archive are counted; honest ones pass."""
    modules, weights = Path(autoqec.__file__).parent / "decoders" / "modules", tmp_path / "w.pt"
    for kind in FAMILIES:
        dsl = parse_dsl({"type": kind, kind: {}})
        checkpoint.save(weights, compile_predecoder(dsl, problem(), seed=0), dsl)
        assert artifact.uncounted_bytes(artifact.FrozenArtifact(tmp_path, weights, modules, "", "none")) < 1_000
    blob, whole = np.random.default_rng(1).bytes(60_000), weights.read_bytes()
    for how in ("member", "tensors that are none", "comment", "before", "name"):
        weights.write_bytes((blob if how == "before" else b"") + whole)
        with zipfile.ZipFile(weights, "a") as archive:
            if how == "member":
                archive.writestr("archive/more", blob)
            elif how == "tensors that are none":
                archive.writestr("archive/data/zeros", bytes(10**6), compress_type=zipfile.ZIP_DEFLATED)
                archive.writestr("archive/more", blob)
            elif how == "comment":
                archive.comment = blob
            elif how == "name":
                archive.writestr("archive/" + blob.hex()[:60_000], b"")
        assert (
            artifact.uncounted_bytes(artifact.FrozenArtifact(tmp_path, weights, modules, "", "none"))
            > guards.MAX_CODE_BYTES
        ), how
    for how in ("empty tensor", "huge tensor", "no archive"):
        weights.write_bytes(blob if how == "no archive" else whole)
        if how != "no archive":
            with zipfile.ZipFile(weights, "a") as archive:
                archive.writestr("archive/data/lie", blob)
                archive.writestr("archive/more", blob)
                member = archive.getinfo("archive/data/lie")
                member.file_size, member.compress_size = (0, len(blob)) if how == "empty tensor" else (0, 10**9)
        lied = artifact.uncounted_bytes(artifact.FrozenArtifact(tmp_path, weights, modules, "", "none"))
        least = len(blob) if how == "no archive" else 1.9 * len(blob)
        assert artifact.stored_bytes(weights) < len(whole) and lied >= least, how


def claim(**more: int) -> RoundMetrics:
    values = {"val_shots": 4_000, "val_fixed": 40, "val_broken": 20, **more}
    return RoundMetrics.model_validate({"status": "ok", "delta_ler": 0.1, "checkpoint_path": "x", **values})


def test_exaggerated_claim_trips() -> None:
    effect = paired_effect(pairs(10_000, 600, 90, 60))
    assert guards.claimed_gain(claim(), effect).passed
    assert guards.claimed_gain(
        claim(val_fixed=0, val_broken=200), effect
    ).passed  # a claim below the measured gain is allowed
    assert not guards.claimed_gain(claim(val_fixed=240, val_broken=0), effect).passed
    assert guards.claimed_gain(None, effect).passed and guards.claimed_gain(claim(), None).passed


def test_repeated_artifact_trips() -> None:
    assert guards.first_draw("a" * 64, {"b" * 64: 1}).passed
    guard = guards.first_draw("a" * 64, {"a" * 64: 3})
    assert not guard.passed and "round 3" in guard.evidence
