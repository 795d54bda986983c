"""The complete verifier: an honest candidate on a small code, its report, replay, and refused inputs."""

from __future__ import annotations

import json
import os
import re
import signal
import tracemalloc
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoqec.contracts.dsl import PredecoderDSL, parse_dsl
from autoqec.contracts.env import BicycleCode, BpSettings, CircuitDepolarizing, EnvSpec
from autoqec.contracts.events import Event
from autoqec.contracts.verdict import VerifyReport
from autoqec.decoders import checkpoint
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.errors import ContractError, InfrastructureError
from autoqec.qec.problem import Problem
from autoqec.store import round_files
from autoqec.store.files import dump_config
from autoqec.system.process import child, procfs
from autoqec.system.sandbox import SandboxBackend
from autoqec.verification import report, verifier
from autoqec.verification.artifact import FrozenArtifact
from autoqec.verification.candidate.client import start_candidate
from autoqec.verification.candidate_evaluation import CandidateEvaluation, ChunkAnswer, derangement, same_edges
from autoqec.verification.report import _nearly_equal, report_differences
from autoqec.verification.request import ReplayResult
from autoqec.verification.sequential import Monitor
from autoqec.verification.session import ModelInfo, read_model_info, simultaneous_effect
from autoqec.verification.shot_stream import CHUNK, ShotStream
from autoqec.verification.verifier import VerifyRequest, artifact_sha256, replay, verify
from tests.support import verification as support
from tests.support.envs import BANDS, surface
from tests.support.envs import problem as small_problem

ENV = surface(5, 0.01, rounds=3).model_copy(update={"noise": CircuitDepolarizing(p=(0.006, 0.01), target_p=0.01)})


@dataclass(frozen=True)
class Verified:
    request: VerifyRequest
    report: VerifyReport
    events: list[Event]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Verified:
    directory = tmp_path_factory.mktemp("honest")
    support.train(directory / "checkpoint.pt", Problem.from_env(ENV), steps=1_000)
    request = support.request(
        directory / "round_1",
        ENV,
        directory / "checkpoint.pt",
        profile=support.profile(60_000, 30_000),
        branch="exp/20250101-000000/01-mlp",
        commit_sha="a" * 40,
    )
    events: list[Event] = []
    return Verified(request, verify(request, on_event=events.append), events)


NEURAL_BP = {"type": "neural_bp", "neural_bp": {"inputs": "all", "iterations": 1}}


def untrained(path: Path, problem: Problem) -> PredecoderDSL:
    """Save a network of the type that needs most memory in a forward pass; it has less than 100 parameters."""
    dsl = parse_dsl(NEURAL_BP)
    checkpoint.save(path, compile_predecoder(dsl, problem, seed=0).eval(), dsl)
    return dsl


@pytest.mark.long
@pytest.mark.usefixtures("sandbox_backend")
def test_memory_of_an_honest_large_net_passes_the_guard(tmp_path: Path) -> None:
    problem = Problem.from_env(ENV)
    untrained(tmp_path / "w.pt", problem)
    request = support.request(tmp_path / "round", ENV, tmp_path / "w.pt", dsl_config=NEURAL_BP)
    report = verify(request)
    assert report.cost is not None and report.cost.memory_growth_mb is not None
    assert report.cost.memory_growth_mb < 20, "the bound is 34"
    assert next(guard for guard in report.guards if guard.name == "cost").passed, report.reasons


@pytest.mark.long
def test_memory_of_neural_bp_on_a_bicycle_code_is_freed_after_the_answer(
    sandbox_backend: SandboxBackend, tmp_path: Path
) -> None:
    env = EnvSpec(
        name="bb72_short",
        code=BicycleCode(rounds=2),
        noise=CircuitDepolarizing(p=(0.005,), target_p=0.005),
        seed_policy=BANDS,
        backend="bposd",
        bp=BpSettings(iterations=20),
        baselines=("bposd0",),
    )
    problem = Problem.from_env(env)
    (tmp_path / "artifact").mkdir()
    dsl = untrained(tmp_path / "artifact" / "w.pt", problem)
    frozen = FrozenArtifact(tmp_path / "artifact", tmp_path / "artifact" / "w.pt", None, "0" * 64, sandbox_backend)
    with closing(start_candidate(frozen, dump_config(env.dump()), dsl, support.profile(1, 1))) as client:
        model = read_model_info(client)
        assert isinstance(model, ModelInfo) and model.flops_per_syndrome > 500_000
        client.send(np.zeros((1_024, -(-problem.n_detectors // 8)), np.uint8))
        assert isinstance(client.receive(len(problem.variables(dsl.output_mode).log_odds)), np.ndarray)
        assert client.idle_memory_of_branch_code() < 20e6


def test_honest_gain_is_verified(honest: Verified) -> None:
    report = honest.report
    assert report.verdict == "VERIFIED", report.reasons
    assert report.test is not None and report.test.stopped_by == "evidence"
    assert report.test.e_value >= report.test.threshold == pytest.approx(40)
    assert report.effect is not None and report.effect.relative_low is not None
    assert report.effect.relative_low >= 0.02
    assert {guard.name for guard in report.guards} == {
        "seed_bands", "same_circuit", "complete", "cost", "first_draw", "baseline_interval", "canary", "other_points",
        "repeatable", "batch_independence", "ablation", "claimed_gain", "own_predictions",
    }  # fmt: skip
    assert {member.name for member in report.panel} == {"mwpm", "mwpm_correlated"}
    assert [(point.p, point.reference) for point in report.points] == [(0.006, member.name) for member in report.panel]
    assert (report.points[0].relative or 0) > 0 and report.points[0].reference == report.backend
    assert len({point.counts.errors_candidate for point in report.points}) == 1  # all on the same shots
    cost = report.cost
    assert cost is not None and cost.n_params > 1_000 and cost.flops_per_syndrome > 1_000 and not cost.is_lower_bound
    assert cost.startup_cpu_s is not None and 0 <= cost.startup_cpu_s < 2
    assert cost.memory_growth_mb is not None and 0 < cost.memory_growth_mb < 150
    assert report.test.min_relative_gain == 0.02


def test_simultaneous_interval_contains_the_pointwise_interval(honest: Verified) -> None:
    effect, wide = honest.report.effect, honest.report.effect_simultaneous
    assert effect is not None and wide is not None and wide.counts == effect.counts and wide.relative == effect.relative
    assert wide.delta_low < effect.delta_low < effect.delta_high < wide.delta_high
    later = simultaneous_effect(effect, 50)
    assert later is not None and later.delta_low < wide.delta_low and later.delta_high > wide.delta_high


def test_effect_and_test_use_separate_shots(honest: Verified) -> None:
    purposes = [line.split("/")[0] for line in honest.report.chunk_digests]
    digests = [line.split()[1] for line in honest.report.chunk_digests]
    assert purposes.count("effect") == 6 and purposes.count("point:0.006") == 1 and purposes.count("guards") == 1
    assert len(set(digests)) == len(digests)
    assert honest.report.effect is not None and honest.report.effect.counts.shots == 30_000


def test_events_report_progress(honest: Verified) -> None:
    kinds = [event.kind for event in honest.events]
    assert kinds[0] == "judge_test" and kinds[-1] == "judge_verdict"
    json.dumps([event.payload() for event in honest.events], allow_nan=False)


def test_report_files_are_complete(honest: Verified) -> None:
    layout = honest.request.round
    assert round_files.read_contract(layout.report_json, VerifyReport) == honest.report
    text = layout.report_md.read_text()
    assert text.startswith("# VERIFIED: round 1") and honest.report.claim in text
    for word in ("mwpm_correlated", "canary", "Not tested", "autoqec verify", honest.report.artifact_sha256):
        assert word in text
    assert {path.name for path in layout.dir.iterdir()} == {"verification_report.md", "verification_report.json"}
    assert support.SECRET.hex() not in text + layout.report_json.read_text()


def test_verify_again_replays_and_writes_nothing(honest: Verified, monkeypatch: pytest.MonkeyPatch) -> None:
    layout = honest.request.round
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in layout.dir.iterdir()}
    again = replay(honest.report, honest.request)
    assert again.differences == () and again.report.verdict == "VERIFIED"
    monkeypatch.setattr(verifier, "run_verification", lambda request, on_event=None: again.report)
    assert verify(honest.request) == honest.report
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in layout.dir.iterdir()} == before

    other_verdict = honest.report.model_copy(update={"verdict": "INCONCLUSIVE"})
    monkeypatch.setattr(verifier, "run_verification", lambda request, on_event=None: other_verdict)
    with pytest.raises(ContractError, match="verdict was VERIFIED, is INCONCLUSIVE"):
        verify(honest.request)


@pytest.mark.parametrize(
    ("backend", "cpus", "first", "explained"),
    [
        ("bposd", ("Xeon", "EPYC"), "test.e_value was 2, is 3", True),
        ("bposd", ("EPYC", "EPYC"), "test.e_value was 2, is 3", False),
        ("bposd", (None, "EPYC"), "test.e_value was 2, is 3", False),
        ("bposd", ("Xeon", "EPYC"), "shots were not reproduced, from a on", False),
        ("mwpm", ("Xeon", "EPYC"), "test.e_value was 2, is 3", False),
    ],
)
def test_disagreement_shows_few_differences_and_names_another_processor(
    honest: Verified, backend: str, cpus: tuple[str | None, str], first: str, explained: bool
) -> None:
    assert honest.report.cost is not None
    cost = honest.report.cost.model_copy(update={"cpu_model": cpus[1]})
    report = honest.report.model_copy(update={"cost": cost, "backend": backend})
    found = ReplayResult(report, (first, "a was 1, is 2", "b was 1, is 2", "c was 1", "d was 1"), 1, 0, cpus[0])
    cause = ". Likely cause: the report was made on Xeon, this is EPYC: rounding errors of the network differ and "
    cause += "change some predictions of bposd (guard batch_independence says how many)"
    shown = f"the verdict is VERIFIED, but {first}; a was 1, is 2; b was 1, is 2; and 2 more"
    assert found.disagreement == shown + (cause if explained else "")
    assert ReplayResult(report, (), 1, 0, cpus[0]).likely_cause is None


Values = dict[str, Any]


def change_guard(values: Values) -> None:
    next(guard for guard in values["guards"] if guard["name"] == "canary")["evidence"] = "0 of 5000 predictions agree"


FORGERIES: dict[str, tuple[Callable[[Values], object], str]] = {
    "place": (lambda v: v["test"].update(attempt_index=2), "test.attempt_index was 2, is 1"),
    "threshold": (lambda v: v["test"].update(threshold=1.5), "test.threshold was 1.5, is 40.0"),
    "level": (lambda v: v["test"].update(alpha_t=0.9), "test.alpha_t was 0.9"),
    "discoveries": (lambda v: v["test"].update(discoveries_before=3), "test.discoveries_before was 3, is 0"),
    "interval": (lambda v: v["effect"].update(relative_low=0.45), "effect.relative_low was 0.45"),
    "simultaneous": (lambda v: v["effect_simultaneous"].update(delta_low=0.4), "effect_simultaneous.delta_low was 0.4"),
    "rate": (lambda v: v["decoder_rate"].update(errors=1), "decoder_rate.errors was 1"),
    "claim": (lambda v: v.update(claim="On hardware, it makes 50.0% [45.0, 55.0] fewer errors."), "claim was On hardw"),
    "reasons": (lambda v: v.update(reasons=["it is good"]), 'reasons was ["it is good"]'),
    "evidence": (change_guard, "guard canary evidence was 0 of 5000"),
    "guard": (lambda v: v["guards"].pop(0), "guard seed_bands is missing"),
    "claimed cost": (lambda v: v["cost"].update(n_params=33), "cost.n_params was 33"),
    "baseline": (lambda v: v["panel"][0].update(beats=False), "panel[0].beats was false, is true"),
    "point": (lambda v: v["points"].pop(), "points was ["),
    "not tested": (lambda v: v.update(not_tested=[]), "not_tested was []"),
    "shots": (lambda v: v["chunk_digests"].reverse(), "shots were not reproduced"),
}


@pytest.mark.parametrize("name", FORGERIES)
def test_forged_field_is_named(name: str, honest: Verified) -> None:
    """The position in the sequence is taken from the request, which the attempts determine, not from the report."""
    forge, expected = FORGERIES[name]
    values = json.loads(honest.request.round.report_json.read_bytes())
    forge(values)
    differences = report_differences(VerifyReport.read(values), honest.report)
    assert len(differences) == 1 and differences[0].startswith(expected), differences


@pytest.mark.parametrize("name", ["claim", "reasons", "evidence", "not tested"])
def test_other_versions_do_not_switch_the_comparison_of_texts_off(name: str, honest: Verified) -> None:
    forge, expected = FORGERIES[name]
    values = json.loads(honest.request.round.report_json.read_bytes())
    values["versions"]["scipy"] = "0.1"
    assert report_differences(VerifyReport.read(values), honest.report) == []
    forge(values)
    differences = report_differences(VerifyReport.read(values), honest.report)
    assert len(differences) == 1 and differences[0].startswith(expected), differences


@pytest.mark.parametrize(
    ("old", "new", "differs"),
    [
        (r"priors alone fix \d+ and break \d+", "priors alone fix 3 and break 2", False),
        (r"log-odds fix \d+", "log-odds fix 100000", True),
        (r"^\d+ shots", "1 shots", True),
    ],
)
def test_choice_between_equal_matchings_is_no_difference(old: str, new: str, differs: bool, honest: Verified) -> None:
    """Under the priors many shots have several matchings of minimum weight; whether the guard passed is compared."""
    values = json.loads(honest.request.round.report_json.read_bytes())
    (guard,) = (guard for guard in values["guards"] if guard["name"] == "ablation")
    guard["evidence"], n_changed = re.subn(old, new, guard["evidence"])
    assert n_changed == 1
    assert bool(report_differences(VerifyReport.read(values), honest.report)) is differs
    guard["passed"] = False
    assert report_differences(VerifyReport.read(values), honest.report)


@pytest.mark.parametrize("text", ["at chance 0.1234", "by chance 0.1134", "by chance 1,234 and 5"])
def test_figures_of_texts_agree_up_to_their_last_digits(text: str) -> None:
    assert _nearly_equal("by chance 0.1234", "by chance 0.1235") and _nearly_equal("1,234 of 5", "1,235 of 5")
    assert not _nearly_equal("by chance 0.1234", text)


@pytest.mark.parametrize("victim", [0, 1])
def test_candidate_killed_from_outside_is_no_verdict(
    honest: Verified, monkeypatch: pytest.MonkeyPatch, victim: int
) -> None:
    """As by the OOM killer; nothing is left that the next verification of the artifact could read."""
    before = {path: path.read_bytes() for path in honest.request.round.dir.parent.rglob("*") if path.is_file()}
    started: list[int] = []
    killed: list[int] = []

    def start(*arguments: Any, **more: Any) -> child.Process:
        process = start_process(*arguments, **more)
        started.append(process.pid)
        return process

    def kill(_: Event) -> None:
        if not killed:
            killed.append(procfs.process_tree(started[victim])[-1])
            os.kill(killed[0], signal.SIGKILL)

    start_process = child.start
    with monkeypatch.context() as patch:
        patch.setattr(child, "start", start)
        with pytest.raises(InfrastructureError, match="the candidate process was killed"):
            verifier.run_verification(honest.request, on_event=kill)
    assert len(started) == 2 and len(killed) == 1
    after = {path: path.read_bytes() for path in honest.request.round.dir.parent.rglob("*") if path.is_file()}
    assert after == before
    if victim:
        assert not report_differences(honest.report, verifier.run_verification(honest.request))


def test_processes_share_no_log_and_open_few_files(honest: Verified, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[dict[str, Any]] = []

    def start(*arguments: Any, **more: Any) -> child.Process:
        started.append(more)
        if len(started) == 2:
            raise ContractError("both are known")
        return start_process(*arguments, **more)

    start_process = child.start
    monkeypatch.setattr(child, "start", start)
    with pytest.raises(ContractError, match="both are known"):
        verifier.run_verification(honest.request)
    first, second = (more["stderr"].parent for more in started)
    assert first != second and all(len(place.name) == 32 for place in (first, second))
    assert [more["limits"].nofile for more in started] == [256, 256]


def test_time_of_decoding_is_measured_beside_correlated_matching(honest: Verified) -> None:
    cost = honest.report.cost
    assert cost is not None and cost.decoding_us_per_shot and cost.correlated_us_per_shot and cost.latency_us
    assert cost.decoding_us_per_shot > cost.candidate_us_per_shot > 0 and cost.cpu_model
    assert cost.time_ratio == pytest.approx(cost.decoding_us_per_shot / cost.correlated_us_per_shot)
    latency = cost.latency_us
    assert latency.shots > 0 and 0 < latency.p50 <= latency.p99 <= latency.p999 and latency.scope == "decoder"
    text = report.render(honest.report)
    assert "that of correlated matching" in text and "as `autoqec decode` runs them" in text and cost.cpu_model in text


def test_time_and_resources_may_differ(honest: Verified) -> None:
    cost = honest.report.cost
    assert cost is not None
    other = cost.model_copy(
        update={
            "candidate_us_per_shot": 1.0, "startup_cpu_s": 2.0, "memory_growth_mb": 3.0, "cpu_model": "another",
            "decoding_us_per_shot": 1.0, "correlated_us_per_shot": 2.0, "latency_us": None,
        }
    )  # fmt: skip
    changed = {"cost": other, "judge_wallclock_s": 1.0, "finished_at": None}
    assert report_differences(honest.report.model_copy(update=changed), honest.report) == []


def test_other_artifact_or_secret_is_refused(honest: Verified, tmp_path: Path) -> None:
    changed = tmp_path / "other.pt"
    changed.write_bytes(honest.request.checkpoint.read_bytes() + b"\0")
    with pytest.raises(ContractError, match=f"{honest.report.artifact_sha256}.*is now"):
        verify(replace(honest.request, checkpoint=changed))
    fresh = support.request(tmp_path / "round", ENV, changed, expected_artifact=artifact_sha256(honest.request))
    with pytest.raises(ContractError, match="restore the round's files"):
        verify(fresh)
    assert list((tmp_path / "round").iterdir()) == []


@pytest.mark.parametrize("damage", ["missing", "truncated", "link"])
def test_invalid_checkpoints_are_refused(damage: str, honest: Verified, tmp_path: Path) -> None:
    weights = tmp_path / "checkpoint.pt"
    if damage == "truncated":
        weights.write_bytes(honest.request.checkpoint.read_bytes()[:2_000])
    elif damage == "link":
        weights.symlink_to(honest.request.checkpoint)
    with pytest.raises(ContractError):
        verify(support.request(tmp_path / "round", ENV, weights))
    assert list((tmp_path / "round").iterdir()) == []


def test_config_of_another_round_is_refused(honest: Verified, tmp_path: Path) -> None:
    config = {"type": "mlp", "mlp": {"hidden": 64, "depth": 3}}
    with pytest.raises(ContractError, match="checkpoint holds config"):
        verify(support.request(tmp_path / "round", ENV, honest.request.checkpoint, dsl_config=config))


class StubClient:
    """Answers with the public priors."""

    def __init__(self, problem: Problem) -> None:
        self.waiting: list[int] = []
        self.row = problem.graph.log_odds.astype(np.float32)

    outstanding = property(lambda self: len(self.waiting))

    def send(self, detection_events: np.ndarray) -> None:
        self.waiting.append(len(detection_events))

    def receive(self, n_edges: int) -> np.ndarray:
        return np.tile(self.row, (self.waiting.pop(0), 1))


def test_memory_does_not_grow_with_shots(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = small_problem(3, 0.01)

    def peak(chunks: int) -> int:
        evaluation = CandidateEvaluation(problem, ShotStream(support.SECRET, "a" * 64, (0, 9)), StubClient(problem))  # type: ignore[arg-type]
        monkeypatch.setattr(
            evaluation.decoder.inner,
            "decode_soft",
            lambda detection_events, odds: evaluation.decoder.decode(detection_events),
        )
        tracemalloc.start()
        monitor = Monitor(0.05, 1, 0, chunks * CHUNK)
        assert evaluation.test(monitor, lambda monitor: None) == "budget"
        assert monitor.counts.shots == chunks * CHUNK and evaluation.shots_sent == chunks * CHUNK
        size = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return size

    peak(2)
    few, many = peak(4), peak(40)
    assert many < 1.3 * few


def test_unusable_answers_count_as_errors() -> None:
    problem = small_problem(3, 0.01)
    evaluation = CandidateEvaluation(problem, ShotStream(support.SECRET, "a" * 64, (0, 9)), StubClient(problem))  # type: ignore[arg-type]
    shots = evaluation.shot_stream.chunk(problem, "test", 0)
    odds = np.tile(problem.graph.log_odds.astype(np.float32), (CHUNK, 1))
    selection = evaluation.decoder.select(shots.detection_events)
    honest_lost, predictions = evaluation.score_answer(evaluation.decoder, ChunkAnswer(shots, selection, odds))
    assert predictions is not None and not evaluation.failures and honest_lost.sum() < CHUNK / 5
    odds[::2, 0] = np.inf
    lost, predictions = evaluation.score_answer(evaluation.decoder, ChunkAnswer(shots, selection, odds))
    assert predictions is None and lost[::2].all() and (lost[1::2] == honest_lost[1::2]).all()
    assert evaluation.failures == {"not finite": CHUNK // 2}


def test_helpers_of_the_report_are_exact() -> None:
    order = derangement(100, np.random.default_rng(0))
    assert sorted(order) == list(range(100)) and not (order == np.arange(100)).any()
    assert same_edges(small_problem(3, 0.01), small_problem(3, 0.02))
    assert not same_edges(small_problem(3, 0.01), small_problem(5, 0.01))
