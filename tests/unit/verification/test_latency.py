"""Latency of single shots in the verifier: what is timed, for how long, and that predictions are those of batches."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoqec.contracts.dsl import parse_dsl
from autoqec.decoders import checkpoint
from autoqec.decoders.decoding import CheckpointDecoder
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.orchestrator.round_recorder import verification_fields
from autoqec.qec.sampling import sample
from autoqec.store.files import dump_config
from autoqec.store.layout import RoundLayout
from autoqec.system.sandbox import SandboxBackend
from autoqec.verification import candidate_evaluation
from autoqec.verification.artifact import FrozenArtifact
from autoqec.verification.candidate.client import CandidateClient, CandidateFailure, start_candidate
from autoqec.verification.candidate_evaluation import CandidateEvaluation, SingleShots, measure_single_shots
from autoqec.verification.report import report_differences, write
from autoqec.verification.session import ModelInfo, read_model_info
from autoqec.verification.shot_stream import ShotStream
from autoqec.verification.verifier import run_verification
from tests.support import verification as support
from tests.support.envs import problem


class Echo:
    """A candidate that answers with the priors, or with `answer` if there is one."""

    def __init__(self, priors: np.ndarray, answer: Any = None) -> None:
        self.answer, self.requests = priors[None] if answer is None else answer, 0

    def send(self, detection_events: np.ndarray) -> None:
        assert len(detection_events) == 1
        self.requests += 1

    def receive(self, n_edges: int) -> Any:
        return self.answer


def evaluation_of(gate: float | None = None) -> CandidateEvaluation:
    """Return an evaluation whose canary was decoded under the priors."""
    prob = problem(3)
    stream = ShotStream(support.SECRET, "a" * 64, (0, 9))
    evaluation = CandidateEvaluation(prob, stream, None, "soft_priors", gate)  # type: ignore[arg-type]
    evaluation.canary_events = stream.chunk(prob, "guards", 0).detection_events
    evaluation.canary_predictions = evaluation.decoder.decode(evaluation.canary_events)
    return evaluation


@pytest.mark.parametrize(("limit_s", "gate", "expected"), [(60.0, None, 40), (60.0, 2.0, 40), (-1.0, None, 1)])
def test_single_shots_end_at_the_time_limit(
    monkeypatch: pytest.MonkeyPatch, limit_s: float, gate: float | None, expected: int
) -> None:
    monkeypatch.setattr(candidate_evaluation, "LATENCY_LIMIT_S", limit_s)
    evaluation = evaluation_of(gate)
    client: Any = Echo(evaluation.priors)
    found = measure_single_shots(evaluation, client, 40, "requests")
    assert isinstance(found, SingleShots) and found.differing == 0
    latency = found.latency
    assert latency.shots == expected and 0 < latency.p50 <= latency.p999 and latency.scope == "requests"
    assert client.requests >= expected if gate is None else 0 < client.requests < expected


@pytest.mark.parametrize("answer", [CandidateFailure("closed", "the candidate process ended"), np.array([[np.nan]])])
def test_no_latency_without_answers(answer: Any) -> None:
    evaluation = evaluation_of()
    client: Any = Echo(evaluation.priors, answer)
    assert isinstance(measure_single_shots(evaluation, client, 40, "requests"), CandidateFailure)


def test_predictions_that_differ_from_those_of_batches_are_counted() -> None:
    evaluation = evaluation_of()
    assert evaluation.canary_predictions is not None
    evaluation.canary_predictions[[3, 7, 30]] ^= True
    client: Any = Echo(evaluation.priors)
    found = measure_single_shots(evaluation, client, 20, "requests")
    assert isinstance(found, SingleShots) and found.differing == 2


@pytest.mark.parametrize("whole_decoder", [True, False])
def test_candidate_decodes_single_shots_as_decode_does(
    whole_decoder: bool, sandbox_backend: SandboxBackend, tmp_path: Path
) -> None:
    """Gate, network and matching run in the sandbox; a process that could run branch code has no matching."""
    prob = problem(3)
    artifact = tmp_path / "artifact"
    artifact.mkdir()
    config = {"type": "mlp", "mlp": {"hidden": 8}, "gate": 2.0}
    dsl, path = parse_dsl(config), artifact / "w.pt"
    model = compile_predecoder(dsl, prob, seed=1)
    for parameter in model.parameters():
        parameter.data += 0.1
    checkpoint.save(path, model, dsl)
    frozen = FrozenArtifact(artifact, path, None, "0" * 64, sandbox_backend)
    env_text, profile = dump_config(prob.env.dump()), support.profile(1, 1)
    events = sample(prob, 300, 1).detection_events
    with closing(start_candidate(frozen, env_text, dsl, profile, whole_decoder=whole_decoder)) as client:
        assert isinstance(read_model_info(client), ModelInfo)
        decoded = client.decode_one_by_one(events, prob.n_observables)
    if not whole_decoder:
        assert isinstance(decoded, CandidateFailure) and decoded.error == "ModuleNotFoundError"
        return
    assert not isinstance(decoded, CandidateFailure), decoded
    predictions, elapsed_us = decoded
    expected = CheckpointDecoder.of(prob.env, path).decode(events)
    assert expected.any() and np.array_equal(predictions, expected)
    assert elapsed_us.shape == (300,) and (elapsed_us > 0).all()


def test_branch_code_gets_no_decoder_libraries(tmp_path: Path) -> None:
    frozen = FrozenArtifact(tmp_path, tmp_path / "w.pt", tmp_path, "0" * 64, "none")
    with pytest.raises(ValueError, match="branch code"):
        start_candidate(frozen, "", parse_dsl(support.CONFIG), support.profile(1, 1), whole_decoder=True)


@pytest.mark.parametrize("flipped", [0, 2])
def test_other_predictions_of_single_shots_trip_a_guard(
    flipped: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    decode_one_by_one = CandidateClient.decode_one_by_one

    def flipping(self: CandidateClient, events: np.ndarray, n_observables: int) -> Any:
        decoded = decode_one_by_one(self, events, n_observables)
        assert not isinstance(decoded, CandidateFailure), decoded
        decoded[0][:flipped] ^= True
        return decoded

    monkeypatch.setattr(CandidateClient, "decode_one_by_one", flipping)
    prob = problem(3)
    dsl = parse_dsl(support.CONFIG)
    checkpoint.save(tmp_path / "w.pt", compile_predecoder(dsl, prob, seed=1), dsl)
    report = run_verification(support.request(tmp_path / "round", prob.env, tmp_path / "w.pt"))
    guard = next(guard for guard in report.guards if guard.name == "batch_independence")
    assert guard.passed == (not flipped) and ("2 of single shots" in guard.evidence) == bool(flipped)
    assert report.cost is not None and report.cost.latency_us is not None
    assert report.cost.latency_us.scope == "decoder" and report.cost.latency_us.shots == 500


@pytest.mark.usefixtures("sandbox_backend")
def test_code_that_fails_on_single_shots_is_named_and_keeps_its_verdict(tmp_path: Path) -> None:
    reports = {}
    for name in ("batches_only", "constant_prior"):
        (tmp_path / name).mkdir()
        weights, modules = support.cheat(name, tmp_path / name, problem(3))
        request = support.request(
            tmp_path / name / "round", problem(3).env, weights, config_only=False, modules_dir=modules
        )
        reports[name] = run_verification(request)
        write(request.round, reports[name])
        failure = "expected more than 1 shot"
        assert (failure in request.round.report_md.read_text()) == (name == "batches_only")
    found, other = reports["batches_only"], reports["constant_prior"]
    assert found.cost is not None and other.cost is not None and other.cost.latency_failure is None
    assert found.cost.latency_us is None and failure in str(found.cost.latency_failure)
    assert found.verdict == other.verdict and all(guard.passed for guard in found.guards)
    shown = RoundLayout(tmp_path / "batches_only" / "round", 1).report_md.read_text(encoding="utf-8")
    assert "Decoding of single shots failed, although batches were decoded: " in shown
    assert found.cost.decoding_us_per_shot is not None and found.cost.correlated_us_per_shot is not None
    assert "Decoding in batches, with gate, network (in a process of its own) and matching: " in shown
    assert verification_fields(found)["single_shot_failure"] == found.cost.latency_failure
    assert verification_fields(other)["single_shot_failure"] is None
    assert report_differences(found, found.model_copy(update={"cost": other.cost})) == []
