"""Verification on sealed blocks of recorded shots: evidence, spending, replay, and what candidates cannot reach."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.events import Event, ShotsRead
from autoqec.contracts.round import PairedCounts
from autoqec.contracts.verdict import VerifyReport
from autoqec.contracts.verification_job import VerificationOrder
from autoqec.decoders import checkpoint
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.errors import UsageError
from autoqec.extensions.recorded import session
from autoqec.extensions.recorded import shots as shots_module
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import LabelledSampler, Shots
from autoqec.qec.stats import paired_effect
from autoqec.store.layout import hidden_from_branch_code, recorded_location, visible_shots
from autoqec.verification import guards, job, report, verifier
from autoqec.verification.baselines import Baselines
from autoqec.verification.candidate.client import CandidateFailure
from autoqec.verification.candidate_evaluation import CandidateEvaluation
from autoqec.verification.report import report_differences
from autoqec.verification.request import VerifyRequest
from tests.support.envs import problem
from tests.support.recorded import (
    plain_directory,
    provided,
    write_predictions,
    write_recorded_env,
    write_shots,
)
from tests.support.verification import CONFIG, SECRET, profile, request

FLAGGED = 0.15  # share of shots with errors that no model of independent errors describes


class FlaggedDevice:
    """Shots of the circuit; in some, half a logical operator, and detection events of the other sector that tell so.

    The complement of that half is shorter, so matching is wrong on these shots under every error model.
    """

    def __init__(self) -> None:
        self.problem = problem(3)
        logical = list(self.problem.dem.shortest_graphlike_error())
        detectors = [[t.val for t in error.targets_copy() if t.is_relative_detector_id()] for error in logical]
        assert len(detectors) == 3
        self.half = [self._mechanism(found) for found in detectors[:2]]
        self.signal = self.problem.graph.out_of_sector[:4]

    def _mechanism(self, detectors: list[int]) -> int:
        columns = self.problem.H.toarray().T.astype(bool)
        wanted = np.zeros(columns.shape[1], bool)
        wanted[detectors] = True
        return int(np.flatnonzero((columns == wanted).all(1))[0])

    def draw(self, sampler: LabelledSampler, n: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
        """Return detection events, observables and edge labels of n shots."""
        shots = sampler.draw(n)
        events, flips, edges = shots.detections.copy(), shots.observables.copy(), shots.edges.copy()
        flagged = rng.random(n) < FLAGGED
        to_edge = self.problem.graph.mechanism_to_edge.toarray()
        for mechanism in self.half:
            events[flagged] ^= self.problem.H.toarray()[:, mechanism]
            flips[flagged] ^= self.problem.L.toarray()[:, mechanism].astype(bool)
            edges[flagged] ^= to_edge[mechanism].astype(np.uint8)
        events[np.ix_(flagged, self.signal)] = 1
        return events, flips, edges


@pytest.fixture(scope="module")
def device() -> FlaggedDevice:
    return FlaggedDevice()


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory, device: FlaggedDevice) -> tuple[EnvSpec, Path]:
    """Return an env of the device's shots, and the directory of a run that has provided them."""
    directory = tmp_path_factory.mktemp("sealed")
    plain_directory(directory / "data", 64, 2)
    rng = np.random.default_rng(8)
    for index in (0, 1):
        events, flips, _ = device.draw(LabelledSampler(device.problem, 50 + index), 3500, rng)
        write_shots(directory / "data" / f"events{index}.b8", events)
        write_shots(directory / "data" / f"flips{index}.01", flips, "observables")
    env_file = write_recorded_env(directory)
    run = directory / "workspace" / "runs" / "20250101-000000"
    return provided(env_file, run / "round_1"), run


@pytest.fixture(scope="module")
def weights(recorded: tuple[EnvSpec, Path], device: FlaggedDevice) -> Path:
    """Return a checkpoint trained on simulated shots of the device, with labels that recorded shots do not have."""
    path, prob = recorded[1].parent / "checkpoint.pt", Problem.from_env(recorded[0])
    torch.set_num_threads(1)
    dsl = parse_dsl(CONFIG)
    model = compile_predecoder(dsl, prob, seed=5)
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-3)
    sampler, rng = LabelledSampler(prob, 5), np.random.default_rng(9)
    for _ in range(120):
        events, _, edges = device.draw(sampler, 256, rng)
        logits = model(torch.from_numpy(events.astype(np.float32)))
        truth = torch.from_numpy(edges.astype(np.float32))
        loss = nn.functional.binary_cross_entropy_with_logits(logits, truth, reduction="none").sum(1).mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    checkpoint.save(path, model.eval(), dsl)
    return path


def build(recorded: tuple[EnvSpec, Path], weights: Path, **more: Any) -> VerifyRequest:
    env, run = recorded
    return request(run / "round_1", env, weights, **{"profile": profile(1, 5_000), **more})


@pytest.fixture(scope="module")
def verified(recorded: tuple[EnvSpec, Path], weights: Path) -> VerifyReport:
    """Return the report of the trained checkpoint."""
    return verifier.run_verification(build(recorded, weights))


def test_gain_over_the_best_baseline_is_verified_and_replayed(
    recorded: tuple[EnvSpec, Path], weights: Path, verified: VerifyReport
) -> None:
    asked, found = build(recorded, weights), verified
    assert found.verdict == "VERIFIED", found.reasons
    assert found.recorded is not None and found.test is not None and found.effect is not None
    names = ["mwpm", "mwpm_correlated", "mwpm_estimated", "mwpm_correlated_estimated"]
    assert list(found.recorded.e_values) == names == [baseline.name for baseline in found.panel]
    assert found.test.e_value == min(found.recorded.e_values.values()) >= found.test.threshold == 40
    strongest = min(found.panel, key=lambda baseline: baseline.rate.errors)
    assert found.effect.counts.errors_reference == strongest.rate.errors
    assert (found.recorded.first_block, found.recorded.blocks) == (42, 14)
    assert (found.recorded.blocks_left, found.recorded.candidates_left) == (14, 1)
    assert found.test.counts.shots == 1400 and "14 sealed blocks are left" in found.reasons[-1]
    sealed = [line.split()[0] for line in found.chunk_digests if line.startswith("sealed/")]
    assert sealed == [f"sealed/{index}" for index in range(42, 56)]
    replayed = verifier.replay(found, asked)
    assert replayed.agrees, replayed.differences
    assert replayed.source == "14 sealed blocks read again from the recorded files"
    text = report.render(found)
    assert "42 to 55" in text and "| mwpm_correlated_estimated |" in text


@pytest.fixture(scope="module")
def with_predictions(
    recorded: tuple[EnvSpec, Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[dict[str, int]], tuple[EnvSpec, Path]]:
    """Return a function that adds predictions, wrong at every n-th shot by name, to a copy of the device's shots."""

    def add(wrong_every: dict[str, int]) -> tuple[EnvSpec, Path]:
        directory = tmp_path_factory.mktemp("predicted")
        shutil.copytree(recorded[1].parent.parent.parent / "data", directory / "data")
        for name, every in wrong_every.items():
            write_predictions(directory / "data", name, every)
        env_file = write_recorded_env(directory, others=tuple(f"recorded:{name}" for name in wrong_every))
        run = directory / "workspace" / "runs" / "20250101-000000"
        return provided(env_file, run / "round_1"), run

    return add


WithPredictions = Callable[[dict[str, int]], tuple[EnvSpec, Path]]


def test_better_predictions_of_others_prevent_a_verified_gain(
    with_predictions: WithPredictions, verified: VerifyReport, weights: Path
) -> None:
    before = verified
    asked = build(with_predictions({"better": 700, "worse": 3}), weights)
    found = verifier.run_verification(asked)
    assert before.verdict == "VERIFIED" and found.verdict == "INCONCLUSIVE"
    assert found.recorded is not None and before.recorded is not None and found.test is not None
    ours = {name: value for name, value in found.recorded.e_values.items() if not name.startswith("recorded:")}
    assert ours == before.recorded.e_values and found.panel[:4] == before.panel
    panel = {baseline.name: baseline for baseline in found.panel}
    assert panel["recorded:better"].rate.errors == 2 and not panel["recorded:better"].beats  # shots 4200 to 5599
    assert panel["recorded:worse"].rate.errors == 466 and panel["recorded:worse"].beats
    assert found.test.e_value == found.recorded.e_values["recorded:better"] < 1.01
    assert found.effect is not None and found.effect.reference == "recorded:better"
    assert "recorded:better" in found.claim and "recorded:better" in report.render(found)
    assert verifier.replay(found, asked).agrees


def test_predictions_without_errors_are_named_as_the_reason(with_predictions: WithPredictions, weights: Path) -> None:
    """They are wrong at the first shot of a file only, which trains."""
    asked = build(with_predictions({"flips": 3500}), weights)
    found = verifier.run_verification(asked)
    assert found.verdict == "INCONCLUSIVE" and found.effect is not None and found.effect.relative is None
    assert "recorded:flips made no errors in 1,400 sealed shots" in found.reasons[1] and found.reasons[1] in found.claim
    assert verifier.replay(found, asked).agrees


def test_worse_predictions_of_others_change_no_verdict(
    with_predictions: WithPredictions, verified: VerifyReport, weights: Path
) -> None:
    before = verified
    found = verifier.run_verification(build(with_predictions({"worse": 3}), weights))
    assert found.verdict == before.verdict == "VERIFIED" and found.effect == before.effect
    assert found.panel[-1].name == "recorded:worse" and found.test == before.test
    assert found.chunk_digests == before.chunk_digests


def test_predictions_that_changed_are_not_compared(with_predictions: WithPredictions, weights: Path) -> None:
    shots = with_predictions({"other": 3})
    path = Path(recorded_location(shots[1] / "round_1").read_text().strip()) / "other1.b8"
    path.write_bytes(path.read_bytes()[:-1] + bytes([path.read_bytes()[-1] ^ 1]))
    with pytest.raises(UsageError, match="is not the file of the manifest") as changed:
        verifier.run_verification(build(shots, weights))
    assert changed.value.location == str(path)


def test_predictions_are_out_of_reach_of_candidates_and_rounds(with_predictions: WithPredictions) -> None:
    _, run = with_predictions({"other": 3})
    data = Path(recorded_location(run / "round_1").read_text().strip())
    assert (data / "other0.b8").is_file()
    assert data in hidden_from_branch_code(run / "round_1")
    copies = [path.name for path in visible_shots(run / "round_1").rglob("*") if path.is_file()]
    assert sorted(set(copies)) == ["detection_events.b8", "observables.b8"]


def test_predictions_equal_to_the_candidate_trip_no_guard() -> None:
    """A network that changes nothing equals predictions of the inner decoder; that is no gain, and no deception."""
    counts = PairedCounts(shots=1000, errors_reference=100, errors_candidate=100, fixed=0, broken=0)
    equal = paired_effect(counts, reference="x", p=None)
    assert guards.own_predictions({"mwpm": equal, "recorded:other": equal}, "mwpm").passed
    assert not guards.own_predictions({"mwpm": equal, "mwpm_correlated": equal}, "mwpm").passed


def test_long_blocks_are_decoded_in_parts(
    recorded: tuple[EnvSpec, Path], weights: Path, verified: VerifyReport, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The memory of a verification does not depend on the size of the blocks, which grows with the recording."""
    whole = verified
    sizes: list[int] = []
    error_mask = Baselines.error_mask

    def noted(baselines: Baselines, shots: Shots) -> dict[str, np.ndarray]:
        sizes.append(len(shots))
        return error_mask(baselines, shots)

    monkeypatch.setattr(Baselines, "error_mask", noted)
    monkeypatch.setattr(session, "PART_SHOTS", 48)
    parts = verifier.run_verification(build(recorded, weights))
    assert sizes[:42] == [48, 48, 4] * 14
    assert parts.chunk_digests == whole.chunk_digests
    assert parts.recorded is not None and whole.recorded == parts.recorded
    assert parts.test == whole.test and parts.effect == whole.effect and parts.panel == whole.panel


def test_failure_within_a_block_is_counted(
    recorded: tuple[EnvSpec, Path], weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = CandidateFailure("not_finite", "an answer is not finite")
    receive = CandidateEvaluation.receive
    monkeypatch.setattr(CandidateEvaluation, "receive", lambda *given: (receive(*given), failed)[1])
    monkeypatch.setattr(session, "PART_SHOTS", 48)
    found = verifier.run_verification(build(recorded, weights))
    assert found.verdict == "FAILED" and found.test is not None and found.test.counts.shots == 48


def test_each_candidate_spends_blocks_of_its_own(
    recorded: tuple[EnvSpec, Path], weights: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While shots of other candidates are skipped, the verifier says so."""
    monkeypatch.setattr(shots_module, "CHUNK", 500)
    events: list[Event] = []
    second = verifier.run_verification(build(recorded, weights, attempt_index=2), on_event=events.append)
    skipped = [event for event in events if isinstance(event, ShotsRead) and event.what.startswith("skipping")]
    assert [(event.done, event.total) for event in skipped] == [(500, 2100), (1000, 2100), (1500, 2100), (2000, 2100)]
    assert second.recorded is not None and (second.recorded.first_block, second.recorded.blocks_left) == (56, 0)
    third = verifier.run_verification(build(recorded, weights, attempt_index=3))
    assert third.verdict == "INCONCLUSIVE" and third.test is None and "no evidence is left" in third.reasons[0]
    assert third.recorded is not None and third.recorded.blocks == 0 and third.claim.startswith("Nothing is claimed")
    report.render(third)


def test_no_gain_is_inconclusive(recorded: tuple[EnvSpec, Path]) -> None:
    """A fresh network gives nearly the priors: it ties with estimated matching."""
    prob = Problem.from_env(recorded[0])
    path = recorded[1].parent / "fresh.pt"
    dsl = parse_dsl(CONFIG)
    model = compile_predecoder(dsl, prob, seed=1)
    for parameter in model.parameters():
        parameter.data *= 0
    checkpoint.save(path, model.eval(), dsl)
    found = verifier.run_verification(build(recorded, path))
    assert found.verdict != "VERIFIED" and found.test is not None and found.test.stopped_by != "evidence"


@pytest.fixture
def ordered(recorded: tuple[EnvSpec, Path], weights: Path) -> Iterator[tuple[VerifyRequest, VerificationOrder, str]]:
    """Return a request, the order of its job, and the key that signs the job's result."""
    place = recorded[1] / "round_1"
    shutil.copy(weights, place / "checkpoint.pt")  # where a job looks for the weights
    request = build(recorded, place / "checkpoint.pt", round_attempt_id="attempt-1", attempt_index=2)
    request = replace(request, expected_artifact=verifier.artifact_sha256(request))
    order = job.make_order(request, "autoqec-verify-1-attempt-1-2", {"time": "17", "cpus": "2", "mem": "5000M"})
    job.write_order(request.round, order, job.derive_seeds(request, order))
    yield request, order, job.signing_key(SECRET, order)
    shutil.rmtree(request.round.verification_dir)


def test_job_reads_the_sealed_blocks_of_its_candidate(ordered: tuple[VerifyRequest, VerificationOrder, str]) -> None:
    request, order, key = ordered
    job.work(str(request.round.dir), 1)
    found = job.read_result(request.round, order, key)
    here = verifier.run_verification(request)
    assert found is not None and found.test is not None and report_differences(here, found) == []
    assert found.recorded == here.recorded and found.recorded is not None and found.recorded.first_block == 56
    assert found.chunk_digests == here.chunk_digests and found.effect == here.effect


def test_job_without_the_recording_reports_where_it_should_be(
    ordered: tuple[VerifyRequest, VerificationOrder, str],
) -> None:
    request, order, key = ordered
    location = recorded_location(request.round.dir)
    before = location.read_text()
    location.write_text("/not/mounted/on/the/node\n")
    try:
        job.work(str(request.round.dir), 1)
        with pytest.raises(UsageError, match="recorded shots are not here") as missing:
            job.read_result(request.round, order, key)
        assert missing.value.location == "/not/mounted/on/the/node" and "--recorded DIR" in str(missing.value.hint)
    finally:
        location.write_text(before)


def test_changed_files_are_not_scored(recorded: tuple[EnvSpec, Path], weights: Path) -> None:
    data = Path(recorded_location(recorded[1] / "round_1").read_text().strip())
    path = data / "flips1.01"
    content = path.read_bytes()
    path.write_bytes(content[:-2] + (b"1" if content[-2:-1] == b"0" else b"0") + b"\n")
    try:
        with pytest.raises(UsageError, match="is not the file of the manifest"):
            verifier.run_verification(build(recorded, weights))
    finally:
        path.write_bytes(content)


def test_missing_shots_are_named(recorded: tuple[EnvSpec, Path], weights: Path, tmp_path: Path) -> None:
    moved = replace(build(recorded, weights), round=request(tmp_path / "round_1", recorded[0], weights).round)
    with pytest.raises(UsageError, match="place of the recorded shots is not known") as caught:
        verifier.run_verification(moved)
    assert caught.value.hint
