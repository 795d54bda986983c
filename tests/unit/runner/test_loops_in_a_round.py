"""Loops over many processes, named in the DSL, behind the walls of a round."""

from __future__ import annotations

import csv
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from autoqec.contracts.profiles import PROFILES
from autoqec.contracts.round import RoundMetrics
from autoqec.runner.runner import SCRATCH_DIR, run_round
from autoqec.store.layout import RoundLayout
from autoqec.system import sandbox
from tests.support.processes import spawned

from .conftest import Ran, config_for

APART = {"loop": "async_eval", "replay": {"near_failure": 0.5}, "policy_gradient": {}}
RANKS = {"loop": "sync", "sync": {"ranks": 2}}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch, quick_smoke: None) -> None:
    """Processes come up slowly on a machine with more work than cores; these tests are not about the clock."""
    monkeypatch.setitem(PROFILES, "smoke", PROFILES["smoke"].model_copy(update={"round_wallclock_s": 900}))


def config(mode: str = "soft_priors", **training: Any) -> dict[str, Any]:
    return {
        "type": "mlp", "mlp": {"hidden": 16}, "output_mode": mode, "training": {"batch_size": 128, **training},
    }  # fmt: skip


def rows(layout: RoundLayout) -> list[dict[str, str]]:
    with layout.progress.open(encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


def ran(env_text: str, place: Path, mode: str, training: dict[str, Any]) -> Ran:
    return Ran(config_for(env_text, place / "round_1", config(mode, **training)))


def test_a_round_trains_apart_from_its_sampler_and_by_reward(env_text: str, tmp_path: Path) -> None:
    round_ = ran(env_text, tmp_path, "hard_flip", APART)
    assert round_.metrics.status == "ok", round_.metrics.status_reason
    assert round_.metrics.train_shots == 2048 + 128 and round_.metrics.train_steps == 17
    table = rows(round_.layout)
    assert {row["Phase"] for row in table} == {"training", "finetuning"}
    assert all(float(row["CumReplayRatio"]) <= 1.0 and row["ReplayRatioSet"] == "1.0" for row in table)
    assert [row["CumReplayRatio"] for row in table if row["Phase"] == "training"][-1] == "1.0"
    assert len(round_.layout.train_log.read_text().splitlines()) == 17
    assert not (round_.layout.dir / SCRATCH_DIR).exists()


@pytest.mark.skipif(
    not sandbox.is_available("bubblewrap"),
    reason=f"loopback in the sandbox needs bubblewrap; install: {sandbox.INSTALL}",
)
def test_a_round_trains_over_ranks(env_text: str, tmp_path: Path) -> None:
    round_ = ran(env_text, tmp_path, "soft_priors", {**RANKS, "finetune_share": 0.0})
    assert round_.metrics.status == "ok", round_.metrics.status_reason
    last = rows(round_.layout)[-1]
    assert (last["Ranks"], last["EffectiveBatchSize"], last["CumSteps"]) == ("2", "256", "2048")
    assert round_.metrics.train_shots == 2048 and round_.metrics.train_steps == 8


@pytest.mark.long
@pytest.mark.parametrize(("training", "status"), [(APART, "ok"), (RANKS, "train_error")], ids=["apart", "ranks"])
def test_landlock_has_pipes_but_no_loopback(
    env_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, training: dict[str, Any], status: str
) -> None:
    if not sandbox.is_available("landlock"):
        pytest.skip("Landlock is not available; install: Linux 5.13 or newer with Landlock enabled")
    monkeypatch.setattr(sandbox, "probe", lambda: "landlock")
    metrics = ran(env_text, tmp_path, "hard_flip", training).metrics
    assert metrics.status == status
    if status != "ok":
        assert "needs loopback sockets" in str(metrics.status_reason) and "hint:" in str(metrics.status_reason)


def test_a_round_whose_sampler_is_killed_says_so_and_leaves_nobody(
    env_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    profile = PROFILES["smoke"].model_copy(update={"train_shots": 400_000, "train_gflops": 10**6})
    monkeypatch.setitem(PROFILES, "smoke", profile)
    victims: list[int] = []

    def kill_the_sampler(kind: str, data: dict[str, Any]) -> None:
        if not victims and data.get("phase") == "training" and data.get("step"):
            victims.append(spawned()[-1])
            os.kill(victims[0], signal.SIGKILL)

    training = {"loop": "async", "replay": {"throttle": "both"}, "finetune_share": 0.0}
    settings = config_for(env_text, tmp_path / "round_1", config(**training))
    metrics: RoundMetrics = run_round(settings, on_event=kill_the_sampler)
    assert victims and metrics.status == "train_error"
    assert str(metrics.status_reason).startswith("sampler 0 (process ") and "signal 9" in str(metrics.status_reason)
    assert not spawned() and metrics.checkpoint_path is None


def test_nccl_without_a_gpu_is_a_failed_round_with_one_sentence(env_text: str, tmp_path: Path) -> None:
    round_ = ran(env_text, tmp_path, "soft_priors", {"loop": "sync", "sync": {"backend": "nccl"}})
    assert round_.metrics.status == "train_error"
    assert "nccl backend needs a GPU for rank 0" in str(round_.metrics.status_reason)


def test_a_ratio_of_nothing_is_a_failed_round_that_starts_nobody(env_text: str, tmp_path: Path) -> None:
    round_ = ran(env_text, tmp_path, "soft_priors", {"loop": "async", "replay": {"ratio": 0}})
    assert round_.metrics.status == "compile_error" and not round_.events
    assert "training.replay.ratio" in str(round_.metrics.status_reason)
