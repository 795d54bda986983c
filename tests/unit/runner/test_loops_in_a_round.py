"""Loops over several processes in a sandboxed round."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from autoqec.contracts.events import Event, TrainingProgress
from autoqec.contracts.profiles import PROFILES
from autoqec.contracts.round import RoundMetrics
from autoqec.runner.runner import run_round
from autoqec.runner.spec import SCRATCH_DIR
from autoqec.system import sandbox
from tests.support.processes import spawned
from tests.support.progress import progress_rows

from .conftest import Ran, config_for

APART = {"loop": "async_eval", "replay": {"near_failure": 0.5, "throttle": "both"}, "policy_gradient": {}}
RANKS = {"loop": "sync", "sync": {"ranks": 2}}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch, quick_smoke: None) -> None:
    """Raise the time limits: processes start slowly on a loaded machine, and these tests do not check time limits."""
    monkeypatch.setitem(PROFILES, "smoke", PROFILES["smoke"].model_copy(update={"round_wallclock_s": 900}))


def config(output_mode: str = "soft_priors", **training: Any) -> dict[str, Any]:
    return {
        "type": "mlp", "mlp": {"hidden": 16}, "output_mode": output_mode, "training": {"batch_size": 128, **training},
    }  # fmt: skip


def ran(env_text: str, place: Path, mode: str, training: dict[str, Any]) -> Ran:
    return Ran(config_for(env_text, place / "round_1", config(mode, **training)))


def test_round_trains_asynchronously_by_reward(env_text: str, tmp_path: Path) -> None:
    round_ = ran(env_text, tmp_path, "hard_flip", APART)
    assert round_.metrics.status == "ok", round_.metrics.status_reason
    assert round_.metrics.train_shots == 2048 + 128 and round_.metrics.train_steps == 17
    table = progress_rows(round_.layout)
    assert {row["Phase"] for row in table} == {"training", "finetuning"}
    assert all(float(row["CumReplayRatio"]) <= 1.0 and row["ReplayRatioSet"] == "1.0" for row in table)
    assert [row["CumReplayRatio"] for row in table if row["Phase"] == "training"][-1] == "1.0"
    assert len(round_.layout.train_log.read_text().splitlines()) == 17
    assert not (round_.layout.dir / SCRATCH_DIR).exists()


@pytest.fixture(params=["bubblewrap", "landlock"])
def backend(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Run with each sandbox backend."""
    name: str = request.param
    if not sandbox.is_available(name):  # type: ignore[arg-type]
        pytest.skip(f"{name}: {sandbox.unavailable_reason(name)}; install: {sandbox.INSTALL}")  # type: ignore[arg-type]
    monkeypatch.setattr(sandbox, "probe", lambda: name)
    return name


def test_round_trains_over_ranks_in_every_sandbox(env_text: str, tmp_path: Path, backend: str) -> None:
    """Landlock allows no sockets, so that the ranks share memory instead."""
    round_ = ran(env_text, tmp_path, "soft_priors", {**RANKS, "finetune_share": 0.0})
    assert round_.metrics.status == "ok", round_.metrics.status_reason
    last = progress_rows(round_.layout)[-1]
    assert (last["Ranks"], last["EffectiveBatchSize"], last["CumSteps"]) == ("2", "256", "2048")
    assert last["Collectives"] == ("gloo" if backend == "bubblewrap" else "shared_memory")
    assert round_.metrics.train_shots == 2048 and round_.metrics.train_steps == 8


def test_round_optimizes_over_ranks_beside_its_samplers_in_every_sandbox(
    env_text: str, tmp_path: Path, backend: str
) -> None:
    training = {"loop": "async", "replay": {"throttle": "both"}, "sync": {"ranks": 2}, "finetune_share": 0.0}
    round_ = ran(env_text, tmp_path, "soft_priors", training)
    assert round_.metrics.status == "ok", round_.metrics.status_reason
    last = progress_rows(round_.layout)[-1]
    assert (last["Ranks"], last["EffectiveBatchSize"], last["CumReplayRatio"]) == ("2", "256", "1.0")
    assert last["Collectives"] == ("gloo" if backend == "bubblewrap" else "shared_memory")
    assert round_.metrics.train_shots == 2048 and round_.metrics.train_steps == 8


@pytest.mark.long
def test_async_round_in_landlock(env_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not sandbox.is_available("landlock"):
        pytest.skip("Landlock is not available; install: Linux 5.13 or newer with Landlock enabled")
    monkeypatch.setattr(sandbox, "probe", lambda: "landlock")
    metrics = ran(env_text, tmp_path, "hard_flip", APART).metrics
    assert metrics.status == "ok", metrics.status_reason


@pytest.mark.parametrize("mode", ["gap", "last"])
def test_config_selects_which_snapshots_a_round_keeps(env_text: str, tmp_path: Path, mode: str) -> None:
    """All modes, without a round: loops/test_minibatch.py::test_snapshot_modes."""
    settings = {"batch_size": 256, "snapshot_mode": mode, "snapshot_gap": 2, "finetune_share": 0.0}
    round_ = ran(env_text, tmp_path, "soft_priors", settings)
    assert round_.metrics.status == "ok", round_.metrics.status_reason
    names = {path.name for path in round_.layout.train_dir.glob("*.pt")}
    itrs = {"gap": (0, 1, 3, 5, 7), "last": ()}[mode]
    assert names == {f"training_itr_{itr}.pt" for itr in itrs}


def test_killed_sampler_fails_the_round_and_leaves_no_process(
    env_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = PROFILES["smoke"].model_copy(update={"train_shots": 400_000, "train_gflops": 10**6})
    monkeypatch.setitem(PROFILES, "smoke", profile)
    victims: list[int] = []

    def kill_the_sampler(event: Event) -> None:
        if not victims and isinstance(event, TrainingProgress) and event.phase == "training" and event.step:
            victims.append(spawned()[-1])
            os.kill(victims[0], signal.SIGKILL)

    training = {"loop": "async", "replay": {"throttle": "both"}, "finetune_share": 0.0}
    settings = config_for(env_text, tmp_path / "round_1", config(**training))
    metrics: RoundMetrics = run_round(settings, on_event=kill_the_sampler)
    assert victims and metrics.status == "train_error"
    assert str(metrics.status_reason).startswith("sampler 0 (process ") and "signal 9" in str(metrics.status_reason)
    assert not spawned() and metrics.checkpoint_path is None


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is installed; CUDA_VISIBLE_DEVICES= hides it")
@pytest.mark.parametrize(
    ("training", "hint"),
    [
        ({"loop": "sync", "sync": {"backend": "nccl"}}, "hint: set `training.sync.backend: gloo`"),
        ({"device": "cuda:0"}, "hint: set `training.device: cpu`"),
    ],
    ids=["nccl", "cuda"],
)
def test_missing_gpu_fails_the_round_with_a_hint(
    env_text: str, tmp_path: Path, training: dict[str, Any], hint: str
) -> None:
    round_ = ran(env_text, tmp_path, "soft_priors", training)
    assert round_.metrics.status == "train_error"
    assert "GPU 0 is not available: torch finds 0" in str(round_.metrics.status_reason)
    assert hint in str(round_.metrics.status_reason)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU; install: a GPU and torch for CUDA")
@pytest.mark.parametrize(
    "training",
    [
        {},
        {"loop": "async", "replay": {"throttle": "both"}},
        {"loop": "sync", "sync": {"ranks": 1, "backend": "nccl"}},
        {"loop": "async", "replay": {"throttle": "both"}, "sync": {"ranks": 1, "backend": "nccl"}},
    ],
    ids=["minibatch", "async", "nccl", "async_nccl"],
)
def test_round_trains_on_a_gpu(env_text: str, tmp_path: Path, training: dict[str, Any]) -> None:
    round_ = ran(env_text, tmp_path, "soft_priors", training)
    assert round_.metrics.status == "ok", round_.metrics.status_reason
    assert {row["Device"] for row in progress_rows(round_.layout)} == {"cuda:0"} and round_.metrics.vram_peak_gb


def test_ratio_of_zero_fails_before_any_process_starts(env_text: str, tmp_path: Path) -> None:
    round_ = ran(env_text, tmp_path, "soft_priors", {"loop": "async", "replay": {"ratio": 0}})
    assert round_.metrics.status == "compile_error" and not round_.events
    assert "training.replay.ratio" in str(round_.metrics.status_reason)
