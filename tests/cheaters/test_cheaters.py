"""Statistical cheats as real checkpoints through the real judge: none is VERIFIED, each is told why."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from autoqec.contracts.round import RoundMetrics
from autoqec.contracts.verdict import VerifyReport
from autoqec.errors import ContractError, InputError
from autoqec.eval.verifier import artifact_sha256, judge
from autoqec.host import sandbox
from autoqec.qec import backends, stats
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import LabelledSampler, band_seed
from tests.support import judging
from tests.support.envs import problem as make_problem

pytestmark = pytest.mark.skipif(sandbox.probe() == "none", reason="branch code is not judged without a sandbox")


@pytest.fixture(scope="module")
def problem() -> Problem:
    return make_problem(3, 0.01)


def verdict_of(name: str, tmp_path: Path, problem: Problem, *, fill: Any = None, **more: Any) -> VerifyReport:
    weights, modules = judging.cheat(name, tmp_path, problem, fill)
    return judge(
        judging.request(tmp_path / "round", problem.env, weights, config_only=False, modules_dir=modules, **more)
    )


def failed(report: VerifyReport) -> set[str]:
    return {guard.name for guard in report.guards if not guard.passed}


@pytest.mark.parametrize(
    ("name", "guard"),
    [
        ("batch_order", "batch_independence"),
        ("clock", "repeatable"),
        ("not_finite", "complete"),
        pytest.param("call_counter", "batch_independence", marks=pytest.mark.long),
        pytest.param("wrong_shape", "complete", marks=pytest.mark.long),
        pytest.param("garbler", "complete", marks=pytest.mark.long),
    ],
)
def test_misbehaving_answers_fail_by_name(name: str, guard: str, tmp_path: Path, problem: Problem) -> None:
    report = verdict_of(name, tmp_path, problem)
    assert report.verdict == "FAILED"
    assert guard in failed(report) and failed(report) <= {"complete", "repeatable", "batch_independence", "cost"}
    assert any(reason.startswith(f"guard {guard}:") for reason in report.reasons)


@pytest.mark.parametrize("name", ["constant_prior", pytest.param("lucky_noise", marks=pytest.mark.long)])
def test_no_gain_is_not_verified(name: str, tmp_path: Path, problem: Problem) -> None:
    report = verdict_of(name, tmp_path, problem)
    assert report.verdict == "SUSPICIOUS", report.reasons
    assert report.reasons[0].startswith("sequential test")
    assert any("small gains" in line for line in report.not_tested) or report.effect and report.effect.delta > 0


def test_patching_its_own_process_changes_nothing_here(tmp_path: Path, problem: Problem) -> None:
    before = backends.make("mwpm", problem)
    report = verdict_of("patcher", tmp_path, problem)
    assert report.verdict == "FAILED" and "cost" in failed(report)  # 80 kB of weights are not one parameter
    assert report.effect is not None and report.effect.counts.fixed == report.effect.counts.broken == 0
    assert before.name == "mwpm" and stats.wrong(np.ones((1, 1), bool), np.zeros((1, 1), bool)).all()


@pytest.fixture
def listening() -> Iterator[int]:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        server.listen()
        yield server.getsockname()[1]


def test_label_leaker_finds_nothing(
    tmp_path: Path, problem: Problem, listening: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_root = tmp_path / "run"
    run_root.mkdir()
    (run_root / "secret").write_bytes(judging.SECRET)
    np.save(run_root / "labels.npy", np.ones(3))
    monkeypatch.setenv("JUDGE_TEST_SECRET", "abc")
    weights, modules = judging.cheat("label_leaker", tmp_path, problem)
    (modules / "hint").write_text(str(run_root))
    (modules / "port").write_text(str(listening))
    report = judge(judging.request(run_root / "round_1", problem.env, weights, config_only=False, modules_dir=modules))
    assert "LEAKED" not in str(report)
    assert report.verdict == "SUSPICIOUS" and not failed(report)
    assert not (modules / "note").exists()
    assert next(guard for guard in report.guards if guard.name == "canary").passed


def memorise(problem: Problem, share: float) -> tuple[Any, RoundMetrics]:
    """A table of public val shots that plain matching loses, and the claim that comes of measuring on those shots."""
    shots = LabelledSampler(problem, band_seed(problem.env.seed_policy.val, "val")).draw(4_000)
    packed = np.packbits(shots.detections, axis=1, bitorder="little")
    lost = np.nonzero(stats.wrong(backends.make("mwpm", problem).decode(packed), shots.observables))[0]
    kept = lost[: int(share * len(lost))][:512]

    def fill(body: torch.nn.Module) -> None:
        body.keys[: len(kept)] = torch.from_numpy(shots.detections[kept].astype(np.float32))
        body.values[: len(kept)] = torch.from_numpy(np.where(shots.edges[kept], 40.0, -20.0).astype(np.float32))

    claim = RoundMetrics(
        status="ok",
        delta_ler=len(kept) / 4_000,
        checkpoint_path="checkpoint.pt",
        val_shots=4_000,
        val_errors_plain=len(lost),
        val_errors_predecoder=len(lost) - len(kept),
        val_fixed=len(kept),
        val_broken=0,
    )
    return fill, claim


@pytest.mark.parametrize("share", [1.0, pytest.param(0.1, marks=pytest.mark.long)])
def test_memoriser_of_a_public_band(share: float, tmp_path: Path) -> None:
    problem = make_problem(5, 0.006)  # wide enough that secret shots hardly repeat public ones
    fill, claim = memorise(problem, share)
    report = verdict_of("memoriser", tmp_path, problem, fill=fill, claimed=claim)
    assert report.verdict != "VERIFIED"
    assert report.effect is not None and abs(report.effect.delta) < 0.002
    if share == 1.0:
        assert report.verdict == "FAILED" and failed(report) == {"claimed_gain"}
    else:
        assert any("sequential test" in reason for reason in report.reasons)


def test_resubmitter_and_understated_cost(tmp_path: Path, problem: Problem) -> None:
    """One request, two cheats of the books: the same artifact again, and a claim of one FLOP."""
    judging.train(tmp_path / "w.pt", problem, steps=4)
    request = judging.request(tmp_path / "round", problem.env, tmp_path / "w.pt")
    claimed = RoundMetrics(
        status="ok", delta_ler=0.01, checkpoint_path="checkpoint.pt", flops_per_syndrome=1, n_params=10**6
    )
    report = judge(replace(request, judged_before={artifact_sha256(request): 1}, claimed=claimed))
    assert report.verdict == "FAILED" and failed(report) == {"first_draw", "cost"}
    assert "claims 1 FLOPs" in next(guard.evidence for guard in report.guards if guard.name == "cost")
    assert report.cost is not None and report.cost.counted_by == "baseline compiler"


def test_without_a_sandbox_branch_code_is_refused(
    tmp_path: Path, problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sandbox, "probe", lambda: "none")
    with pytest.raises(InputError, match="setup-sandbox"):
        verdict_of("constant_prior", tmp_path, problem)


def test_checkpoint_of_another_env_is_refused_with_both_hashes(tmp_path: Path, problem: Problem) -> None:
    judging.train(tmp_path / "w.pt", problem, steps=1)
    other = make_problem(3, 0.02)
    with pytest.raises(ContractError, match=f"{problem.circuit_sha256[:12]}.*{other.circuit_sha256[:12]}"):
        judge(judging.request(tmp_path / "round", other.env, tmp_path / "w.pt"))
