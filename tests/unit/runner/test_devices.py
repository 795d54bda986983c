"""Device selection with and without GPUs, with a torch that reports a given number of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from pydantic import ValidationError

from autoqec.contracts.dsl import PolicyConfig, SyncConfig, TrainingConfig, parse_dsl
from autoqec.contracts.pins import apply_pins, validate_pins
from autoqec.contracts.profiles import PROFILES
from autoqec.errors import UsageError
from autoqec.runner import devices, round_process, runner
from autoqec.runner.devices import require_available, resolve_device, resolve_rank_device
from autoqec.runner.round_process import ChildOutcome, failed_result
from autoqec.runner.spec import ChildResult
from autoqec.store.layout import RoundLayout
from autoqec.system import machine, sandbox

from .conftest import SMALL, config_for


@pytest.fixture
def gpus(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    count: int = request.param
    monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
    return count


def nccl(ranks: int, device: str = "auto", loop: str = "sync") -> TrainingConfig:
    blocks = {"replay": {}} if loop == "async" else {}
    return TrainingConfig.model_validate(
        {"loop": loop, "device": device, "sync": {"ranks": ranks, "backend": "nccl"}, **blocks}
    )


@pytest.mark.parametrize("gpus", [2], indirect=True)
def test_devices_of_a_machine_with_two_gpus(gpus: int) -> None:
    assert [resolve_device(name) for name in ("auto", "cpu", "cuda", "cuda:1")] == ["cuda:0", "cpu", "cuda:0", "cuda:1"]
    assert [resolve_rank_device(nccl(2), rank) for rank in (0, 1)] == ["cuda:0", "cuda:1"]
    assert resolve_rank_device(nccl(1, "cuda:1"), 0) == "cuda:1"
    require_available(nccl(2))
    with pytest.raises(UsageError, match="GPU 2 is not available: torch finds 2 CUDA GPUs.*training.sync.ranks"):
        require_available(nccl(3))
    with pytest.raises(UsageError, match="GPU 7 is not available.*hint: set `training.device: cpu`"):
        resolve_device("cuda:7")


@pytest.mark.parametrize("gpus", [0], indirect=True)
def test_devices_of_a_machine_without_gpus(gpus: int) -> None:
    assert [resolve_device(name) for name in ("auto", "cpu")] == ["cpu", "cpu"]
    require_available(TrainingConfig())
    with pytest.raises(UsageError, match="torch finds 0 CUDA GPUs.*hint: set `training.sync.backend: gloo`"):
        require_available(nccl(2))
    with pytest.raises(UsageError, match="torch finds 0 CUDA GPUs.*hint: set `training.sync.backend: gloo`"):
        require_available(nccl(2, loop="async"))
    with pytest.raises(UsageError, match="torch finds 0"):
        require_available(TrainingConfig(device="cuda"))


def test_ranks_of_gloo_are_on_the_cpu() -> None:
    training = TrainingConfig.model_validate({"loop": "sync", "sync": {}})
    assert resolve_rank_device(training, 1) == "cpu"


@pytest.mark.parametrize(
    "training",
    [
        {"device": "gpu"},
        {"device": "cuda:x"},
        {"loop": "sync", "sync": {"backend": "nccl"}, "device": "cpu"},
        {"loop": "sync", "sync": {"backend": "gloo"}, "device": "cuda"},
        {"loop": "async", "replay": {}, "sync": {"backend": "gloo"}, "device": "cuda"},
        {"loop": "minibatch", "sync": {}},
        {"loop": "sync", "sync": {}, "replay": {}},
        {"loop": "async", "sync": {}},
        {"snapshot_mode": "some"},
        {"snapshot_gap": 0},
    ],
)
def test_invalid_machine_settings_are_refused(training: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        TrainingConfig.model_validate(training)


def test_machine_settings_at_their_default_do_not_change_hash_or_config() -> None:
    """Hashes of configs of earlier versions stay valid: the verifier's shots depend on them."""
    plain = parse_dsl({"type": "mlp", "mlp": {}})
    assert plain.sha256() == "e8f60e1021ed5bf9cfbee7709189a574298e48cbe5909028a8851a2fdf557bc8"
    assert "device" not in plain.config()["training"]
    moved = parse_dsl({"type": "mlp", "mlp": {}, "training": {"device": "cpu", "snapshot_mode": "all"}})
    assert moved.config()["training"] | {"device": "cpu", "snapshot_mode": "all"} == moved.config()["training"]
    assert moved.training_signature() == plain.training_signature(), "they do not change what is learned"


def test_machine_settings_can_be_pinned() -> None:
    pins = {"training.device": "auto", "training.snapshot_mode": "gap", "training.snapshot_gap": "3"}
    assert validate_pins(pins) == {**pins, "training.snapshot_gap": 3}


def test_ranks_of_an_asynchronous_optimizer_can_be_pinned() -> None:
    pins = validate_pins({"training.loop": "async", "training.sync.ranks": "3"})
    training = parse_dsl(apply_pins({"type": "mlp", "mlp": {}}, pins)).training
    assert training.sync is not None and training.sync.ranks == 3 and training.replay is not None


@pytest.mark.parametrize(("gpu", "device"), [(True, "auto"), (True, "cpu"), (False, "auto")])
def test_round_gets_the_gpus_of_its_job(
    env_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpu: bool, device: str
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter([Path("/dev/nvidia3")] if gpu else []))
    policies: list[sandbox.SandboxPolicy] = []
    monkeypatch.setattr(sandbox, "wrap", lambda argv, policy: policies.append(policy))
    config = config_for(env_text, tmp_path, {**SMALL, "training": {"device": device}})
    spec = round_process._child_spec(config, PROFILES["smoke"], tmp_path, RoundLayout(tmp_path, 1))
    round_process.wrap_in_sandbox(config, spec, tmp_path / "spec.json", tmp_path)
    allowed = gpu and device == "auto"
    assert policies[0].gpu == allowed and ("CUDA_VISIBLE_DEVICES" in policies[0].env) == allowed


def test_slot_decides_which_gpu_a_round_sees(env_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training over several GPUs keeps all that the process sees."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    monkeypatch.setattr(Path, "glob", lambda self, pattern: iter([Path("/dev/nvidia3")]))
    policies: list[sandbox.SandboxPolicy] = []
    monkeypatch.setattr(sandbox, "wrap", lambda argv, policy: policies.append(policy))
    several = {"loop": "sync", "sync": {"backend": "nccl", "ranks": 2}}
    for training, gpus in (({}, "5"), ({}, None), (several, "5")):
        config = config_for(env_text, tmp_path, {**SMALL, "training": training})
        config = config.model_copy(update={"visible_gpus": gpus})
        spec = round_process._child_spec(config, PROFILES["smoke"], tmp_path, RoundLayout(tmp_path, 1))
        round_process.wrap_in_sandbox(config, spec, tmp_path / "spec.json", tmp_path)
    assert [policy.env["CUDA_VISIBLE_DEVICES"] for policy in policies] == ["5", "3,5", "3,5"]


@pytest.mark.parametrize("gpus", [2], indirect=True)
def test_metrics_name_the_devices_that_trained(
    gpus: int, env_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "may_use_gpu", lambda training: training.device != "cpu")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: f"GPU\nkind {index}")
    assert devices.trained_on(TrainingConfig()) == {"device": "GPU kind 0", "gpus": 1}
    assert devices.trained_on(TrainingConfig(device="cuda:1")) == {"device": "GPU kind 1", "gpus": 1}
    assert devices.trained_on(nccl(2)) == {"device": "GPU kind 0 + GPU kind 1", "gpus": 2}
    assert devices.trained_on(TrainingConfig(device="cpu")) == {"device": None, "gpus": 0}
    config = config_for(env_text, tmp_path, {**SMALL, "training": {"device": "auto"}})
    killed = failed_result("killed_by_safety", "too slow", "time limit", seconds=60.0)
    on_cpu = ChildResult(status="train_error", reason="it broke", gpus=0)
    made = [
        runner.build_metrics(config, RoundLayout(tmp_path, 1), ChildOutcome(result), None)
        for result in (killed, on_cpu)
    ]
    assert (made[0].gpus, made[0].device) == (1, None), "a killed child held the GPU that its config requests"
    assert (made[1].gpus, made[1].device) == (0, machine.cpu_model())


@pytest.mark.parametrize(("variable", "expected"), [(None, ("0", "1")), ("2,GPU-ab", ("2", "GPU-ab")), ("", ())])
def test_visible_gpus_follow_the_scheduler(
    variable: str | None, expected: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if variable is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", variable)
    for name in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"):
        (tmp_path / name).touch()
    assert machine.visible_gpus(tmp_path) == expected


def test_missing_loop_is_refused_with_the_installed_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"'turbo' is not installed.*async_eval") as refusal:
        require_available(TrainingConfig(loop="turbo"))
    assert refusal.value.location == "training.loop"
    monkeypatch.setattr("autoqec.plugins.names", lambda group: ())
    for training in (TrainingConfig(loop="sync", sync=SyncConfig()), TrainingConfig(policy_gradient=PolicyConfig())):
        with pytest.raises(UsageError):
            require_available(training)
    require_available(TrainingConfig(loop="minibatch_eval"))
