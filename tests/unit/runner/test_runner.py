"""run_round with the real child: files of a successful round, every failure status, and reproducibility."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import autoqec.decoders
from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.events import Event
from autoqec.contracts.profiles import PROFILES
from autoqec.contracts.provenance import Manifest
from autoqec.contracts.round import RoundMetrics
from autoqec.decoders import checkpoint
from autoqec.decoders.gating import calibrate_gate
from autoqec.errors import ContractError, InfrastructureError, RoundError, UsageError
from autoqec.qec import sampling
from autoqec.qec.problem import Problem
from autoqec.runner import provenance, round_process, runner
from autoqec.runner.child import classify_failure
from autoqec.runner.spec import SCRATCH_DIR
from autoqec.store import files
from autoqec.system import machine

from .conftest import SMALL, Ran, config_for

UNREPEATED = {
    "measurement_started_at",
    "measurement_finished_at",
    "train_wallclock_s",
    "eval_wallclock_s",
    "rss_peak_gb",
    "vram_peak_gb",
}
PATHS = {"checkpoint_path", "training_log_path"}
ARTIFACTS = {"checkpoint_path", "training_log_path", "delta_ler", "ler_plain_classical", "ler_predecoder"}


def copy_modules(directory: Path, at_top: str = "", in_forward: str = "") -> str:
    """Copy the editable modules, with lines added to the dense network."""
    shutil.copytree(
        Path(autoqec.decoders.__file__).parent / "modules", directory, ignore=shutil.ignore_patterns("__pyc*")
    )
    path = directory / "mlp.py"
    text = path.read_text()
    mark = "        x = detections[:, self.index]\n"
    assert mark in text
    text = text.replace(mark, mark + "".join(f"        {line}\n" for line in in_forward.splitlines()))
    path.write_text(text + "\n" + at_top + "\n")
    return str(directory)


def run_failing_round(env_text: str, tmp_path: Path, config: dict[str, Any] | None = None, **more: Any) -> RoundMetrics:
    """Run a round that must fail, and check what every failed round leaves."""
    round_dir = tmp_path / "round_1"
    ran = Ran(config_for(env_text, round_dir, config, **more))
    metrics = ran.metrics
    assert metrics.status != "ok" and metrics.status_reason
    on_disk = json.loads((round_dir / "metrics.json").read_text())
    assert on_disk == metrics.dump() and set(on_disk) == set(RoundMetrics.model_fields)
    assert on_disk["checkpoint_path"] is None and on_disk["delta_ler"] is None
    assert (on_disk["training_log_path"] is not None) == (round_dir / "train.log").exists()
    assert not (round_dir / "artifact_manifest.json").exists()
    assert not (round_dir / SCRATCH_DIR).exists()
    assert not processes_of(round_dir), "a child outlived its round"
    return metrics


def processes_of(round_dir: Path) -> list[bytes]:
    """Command lines that name a round's directory: the child's, and those of its sandbox."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(path.read_bytes())
    return [command_line for command_line in found if str(round_dir).encode() in command_line]


# ---- successful rounds


def test_ok_round_leaves_exactly_its_files(ok_round: Ran) -> None:
    assert ok_round.metrics.status == "ok", ok_round.metrics.status_reason
    left = sorted(path.relative_to(ok_round.layout.dir).as_posix() for path in ok_round.layout.dir.rglob("*"))
    assert left == [
        "artifact_manifest.json", "checkpoint.pt", "config.yaml", "metrics.json", "train", "train.log",
        "train/progress.csv",
    ]  # fmt: skip


def test_metrics_are_exactly_the_contract_with_absolute_paths(ok_round: Ran) -> None:
    stored = json.loads(ok_round.layout.metrics.read_text(encoding="utf-8"))
    assert list(stored) == list(RoundMetrics.model_fields)
    assert RoundMetrics.model_validate(stored) == ok_round.metrics
    metrics = ok_round.metrics
    assert metrics.checkpoint_path == str(ok_round.layout.checkpoint) and os.path.isabs(metrics.checkpoint_path)
    assert metrics.training_log_path == str(ok_round.layout.train_log)
    assert metrics.val_shots == 1000 and metrics.train_seed == 7
    assert metrics.val_errors_plain is not None and metrics.val_errors_predecoder is not None
    assert metrics.delta_ler == pytest.approx((metrics.val_errors_plain - metrics.val_errors_predecoder) / 1000)
    assert metrics.delta_ler == pytest.approx((metrics.val_fixed - metrics.val_broken) / 1000)  # type: ignore[operator]
    assert metrics.delta_vs_parent == metrics.delta_ler, "the baseline's own delta is 0"
    assert metrics.train_steps == 8 + 3 and metrics.train_shots == 2048 + 192
    assert metrics.rss_peak_gb is not None and 0.05 < metrics.rss_peak_gb < 2


def test_config_is_the_literal_dict(ok_round: Ran) -> None:
    text = ok_round.layout.config.read_text(encoding="utf-8")
    assert files.load_yaml(text, location="config") == SMALL == ok_round.config.predecoder_config


def test_checkpoint_rebuilds_the_measured_network(ok_round: Ran, problem: Problem) -> None:
    payload = torch.load(ok_round.layout.checkpoint, weights_only=True)
    assert set(payload) == {"class_name", "state_dict", "output_mode", "dsl_config"}
    assert payload["dsl_config"] == SMALL and payload["output_mode"] == "soft_priors"
    assert not any(name.startswith("module.") for name in payload["state_dict"])
    model, _ = checkpoint.load(ok_round.layout.checkpoint, problem)
    from autoqec.runner.agents import PredecoderAgent
    from autoqec.runner.evaluate import val_counts

    counts = val_counts(problem, PredecoderAgent(model, 1000), 1000)
    assert counts.errors_candidate == ok_round.metrics.val_errors_predecoder


def test_share_of_shots_becomes_a_gate_in_nats_before_training(env_text: str, tmp_path: Path, problem: Problem) -> None:
    ran = Ran(config_for(env_text, tmp_path / "round_1", {**SMALL, "gate": {"share": 0.2}}))
    assert ran.metrics.status == "ok", ran.metrics.status_reason
    model, _ = checkpoint.load(ran.layout.checkpoint, problem)
    assert model.gate == calibrate_gate(problem, 0.2) > 0


def test_train_log_has_one_line_per_batch_of_both_phases(ok_round: Ran) -> None:
    lines = ok_round.layout.train_log.read_text(encoding="utf-8").splitlines()
    assert all(re.fullmatch(r"\d+\t-?\d+(\.\d+)?(e-?\d+)?", line) for line in lines)
    assert [int(line.split("\t")[0]) for line in lines] == list(range(ok_round.metrics.train_steps or 0))
    assert float(lines[-1].split("\t")[1]) == pytest.approx(ok_round.metrics.final_loss, rel=1e-8)


def test_progress_events_are_emitted_during_the_round(ok_round: Ran) -> None:
    assert {event.kind for event in ok_round.events} == {"training"}
    phases = list(dict.fromkeys(event.payload()["phase"] for event in ok_round.events))
    assert phases == ["training", "finetuning", "evaluating"]
    last = [data for data in (event.payload() for event in ok_round.events) if data["phase"] == "training"][-1]
    assert (last["step"], last["steps"], last["round"]) == (8, 8, 1) and math.isfinite(last["loss"])


def test_manifest_has_versions_and_artifact_hashes(ok_round: Ran, problem: Problem) -> None:
    manifest = Manifest.model_validate_json(ok_round.layout.manifest.read_text())
    from hashlib import sha256

    for artifact in manifest.artifacts:
        data = (ok_round.layout.dir / artifact.name).read_bytes()
        assert (artifact.bytes, artifact.sha256) == (len(data), sha256(data).hexdigest())
    assert {"checkpoint.pt", "metrics.json", "config.yaml", "train.log"} <= {item.name for item in manifest.artifacts}
    assert manifest.environment.circuit_sha256 == problem.circuit_sha256
    assert manifest.environment.env_yaml_sha256 == sha256(ok_round.config.env_yaml.encode()).hexdigest()
    assert manifest.packages["torch"] == torch.__version__
    assert manifest.environment.requirements_fingerprint == machine.requirements_fingerprint()
    assert manifest.round.dsl_config_sha256 == parse_dsl(ok_round.config.predecoder_config).sha256()
    assert manifest.repo.code_sha256 == machine.code_sha256()
    assert manifest.round.command_line and manifest.round.seed == 7
    assert manifest.sandbox["tier"] in ("bubblewrap", "landlock", "none")


def test_failed_manifest_is_recorded_and_the_round_stays_ok(
    ok_round: Ran, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> dict[str, str]:
        raise OSError("no packages here")

    monkeypatch.setattr(provenance.machine, "versions", broken)
    config = ok_round.config.model_copy(update={"round_dir": str(tmp_path)})
    shutil.copy(ok_round.layout.config, tmp_path)
    shutil.copy(ok_round.layout.metrics, tmp_path)
    assert provenance.write_artifact_manifest(config, ok_round.metrics, artifacts=[], sandbox={}) is None
    assert "no packages here" in (tmp_path / "manifest_error.txt").read_text()
    assert not (tmp_path / "artifact_manifest.json").exists()


def test_round_repeats_exactly_even_if_a_module_prints(
    ok_round: Ran, env_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    noisy = "print('{\"status\": \"ok\"}', flush=True)\nimport os; os.write(1, b'\\x00noise')"
    modules = copy_modules(tmp_path / "modules", in_forward=noisy)
    monkeypatch.chdir(tmp_path)
    again = Ran(config_for(env_text, Path("again"), modules_dir=modules))  # a relative directory
    mine, theirs = ok_round.metrics.dump(), again.metrics.dump()
    for name in UNREPEATED | PATHS:
        mine.pop(name), theirs.pop(name)
    assert mine == theirs
    assert again.layout.train_log.read_bytes() == ok_round.layout.train_log.read_bytes()
    first, second = (torch.load(ran.layout.checkpoint, weights_only=True)["state_dict"] for ran in (ok_round, again))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert again.metrics.checkpoint_path == str(tmp_path / "again" / "checkpoint.pt")


def test_init_parent_starts_from_the_parents_weights(ok_round: Ran, env_text: str, tmp_path: Path) -> None:
    heir = {**SMALL, "training": {**SMALL["training"], "init": "parent", "learning_rate": 1e-9, "finetune_share": 0.0}}  # type: ignore[dict-item]
    ran = Ran(
        config_for(
            env_text,
            tmp_path / "round_2",
            heir,
            seed=8,
            fork_from="exp/r/01-parent",
            parent_checkpoint=str(ok_round.layout.checkpoint),
            parent_delta_ler=0.25,
        )
    )
    assert ran.metrics.status == "ok", ran.metrics.status_reason
    before, after = (torch.load(r.layout.checkpoint, weights_only=True)["state_dict"] for r in (ok_round, ran))
    assert all(torch.allclose(before[name].float(), after[name].float(), atol=1e-6) for name in before)
    assert ran.metrics.train_steps == 8, "a finetune_share of 0 leaves the phase out"
    assert ran.metrics.delta_vs_parent == pytest.approx(ran.metrics.delta_ler - 0.25)  # type: ignore[operator]


def test_minibatch_eval_and_gnn_in_a_round(env_text: str, tmp_path: Path) -> None:
    gnn = {
        "type": "gnn",
        "gnn": {"hidden": 4, "layers": 1},
        "training": {"loop": "minibatch_eval", "batch_size": 256, "loss": "focal"},
    }
    half = env_text.replace("shots_share: 1.0", "shots_share: 0.5")
    ran = Ran(config_for(half, tmp_path / "round_1", gnn))
    assert ran.metrics.status == "ok", ran.metrics.status_reason
    assert ran.metrics.val_shots == PROFILES["smoke"].val_shots // 2, "the env's share of the profile's shots"
    table = ran.layout.progress.read_text().splitlines()
    assert "PredecoderFailAverage" in table[0] and table[1].startswith("training,0,")


# ---- rounds that fail


def test_invalid_config_fails_before_training(env_text: str, tmp_path: Path) -> None:
    metrics = run_failing_round(env_text, tmp_path, {"type": "mlp", "mlp": {"width": 3}})
    assert metrics.status == "compile_error" and "mlp.width" in (metrics.status_reason or "")
    assert files.load_yaml((tmp_path / "round_1/config.yaml").read_text(), location="") == {
        "type": "mlp",
        "mlp": {"width": 3},
    }
    assert metrics.train_steps is None


def test_network_above_the_envs_limits_fails_before_training(env_text: str, tmp_path: Path) -> None:
    metrics = run_failing_round(env_text, tmp_path, {"type": "mlp", "mlp": {"hidden": 1024}})
    assert metrics.failure_cause == "cost limit"
    assert metrics.status == "compile_error" and "exceeds" in (metrics.status_reason or "")
    assert metrics.n_params is not None and metrics.n_params > 200_000 and metrics.train_steps is None


def test_network_far_slower_than_the_env_allows_fails_before_training(env_text: str, tmp_path: Path) -> None:
    """No decoder takes a thousandth of the time of correlated matching."""
    limits = {"max_params": 200_000, "max_time_ratio": 1e-3}
    env = files.dump_config(files.load_yaml(env_text, location="") | {"constraints": limits})
    metrics = run_failing_round(env, tmp_path, {"type": "mlp", "mlp": {"hidden": 16}})
    assert metrics.failure_cause == "too slow" and metrics.status == "compile_error" and metrics.train_steps is None
    reason = metrics.status_reason or ""
    found = re.search(r"about (\S+) x the CPU time .*: (\S+) times the env's limit max_time_ratio = 0.001", reason)
    assert found is not None and float(found[2]) == pytest.approx(1000 * float(found[1]), rel=0.01)


@pytest.mark.parametrize(
    ("inserted", "status", "cause", "reason"),
    [
        (
            {"at_top": "raise RuntimeError('half a module')"},
            "compile_error",
            "module code",
            r"modules/mlp.py:\d+: RuntimeError: half",
        ),
        (
            {"in_forward": "if self.training and len(x) > 1: raise KeyError('lost')"},
            "train_error",
            "module code",
            r"modules/mlp.py:\d+: KeyError: 'lost'",
        ),
        (
            {"in_forward": "x = x * float('nan') if self.training and len(x) > 100 else x"},
            "killed_by_safety",
            "not finite",
            r"not finite at step 0",
        ),
        (
            {"in_forward": "if len(x) > 1: import os; os._exit(3)"},
            "train_error",
            "crash",
            "status 3 and left no result",
        ),
        (
            {"in_forward": "if len(x) > 1: import time; time.sleep(60)"},
            "killed_by_safety",
            "time limit",
            r"wall clock .* > 2 s",
        ),
        (
            {"in_forward": "if len(x) > 1: self.hoard = torch.ones(400_000_000)"},
            "killed_by_safety",
            "out of memory",
            r"memory 1\.\d+ GB",
        ),
        (
            {"in_forward": "for i in range(5 * (len(x) > 1)): open(f'f{i}', 'wb').write(b'x' * 4_000_000)"},
            "killed_by_safety",
            "disk limit",
            r"disk \d+ MB > 8 MB",
        ),
    ],
)
def test_failing_branch_code_has_a_status_and_reason(
    env_text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    inserted: dict[str, str],
    status: str,
    cause: str,
    reason: str,
) -> None:
    tight = {"round_wallclock_s": 2 if "wall" in reason else 60, "memory_gb": 1.2}
    monkeypatch.setitem(PROFILES, "smoke", PROFILES["smoke"].model_copy(update=tight))
    if "disk" in reason:
        inserted = {"in_forward": inserted["in_forward"] + "\nif len(x) > 1: import time; time.sleep(20)"}
    metrics = run_failing_round(env_text, tmp_path, modules_dir=copy_modules(tmp_path / "modules", **inserted))
    assert (metrics.status, metrics.failure_cause) == (status, cause), metrics.status_reason
    assert re.search(reason, metrics.status_reason or ""), metrics.status_reason
    assert metrics.train_wallclock_s is not None or status == "compile_error", "what it took counts in the budget"


def test_every_exception_has_a_status() -> None:
    assert classify_failure(SystemExit(0), building=False, modules_dir=None) == (
        "train_error",
        "SystemExit: 0",
        "crash",
    )
    assert classify_failure(KeyboardInterrupt(), building=True, modules_dir=None)[0] == "compile_error"
    for memory in (MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 9 bytes")):
        failure = classify_failure(memory, building=False, modules_dir=None)
        assert (failure.status, failure.cause) == ("killed_by_safety", "out of memory")
    other = RoundError("compile_error", "worded differently some day", cause="cost limit")
    assert classify_failure(other, building=True, modules_dir=None).cause == "cost limit"
    assert classify_failure(ContractError("no parent"), building=True, modules_dir=None).cause == "does not fit"


@pytest.mark.parametrize("parent", [None, "other"])
def test_parent_without_matching_weights_is_a_compile_error(
    ok_round: Ran, env_text: str, tmp_path: Path, parent: str | None
) -> None:
    heir = {"type": "mlp", "mlp": {"hidden": 32}, "training": {"init": "parent"}}
    path = None if parent is None else str(ok_round.layout.checkpoint)
    metrics = run_failing_round(env_text, tmp_path, heir, parent_checkpoint=path)
    assert metrics.status == "compile_error"
    reason = "needs a fork parent" if parent is None else r"\(16, \d+\) in the checkpoint and \(32, \d+\)"
    assert re.search(reason, metrics.status_reason or ""), metrics.status_reason


def test_interruption_leaves_no_child_and_no_metrics(env_text: str, tmp_path: Path) -> None:
    def stop(event: Event) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        runner.run_round(config_for(env_text, tmp_path / "round_1"), on_event=stop)
    assert sorted(path.name for path in (tmp_path / "round_1").iterdir()) == ["config.yaml"]


def test_invalid_input_writes_nothing(ok_round: Ran, tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        runner.run_round(config_for("name: smoke\n", tmp_path / "round_1"))
    assert not (tmp_path / "round_1").exists()
    before = ok_round.layout.metrics.read_bytes()
    with pytest.raises(UsageError, match="finished round"):
        runner.run_round(ok_round.config)
    assert ok_round.layout.metrics.read_bytes() == before


def test_val_shots_come_from_the_val_band(problem: Problem, ok_round: Ran) -> None:
    low, high = problem.env.seed_policy.val
    seed = sampling.band_seed((low, high), "val")
    shots = sampling.sample(problem, 1000, seed)
    from autoqec.qec import backends

    plain = backends.make_backend("mwpm", problem).decode(shots.detection_events)
    assert int(np.any(plain != shots.observables, axis=1).sum()) == ok_round.metrics.val_errors_plain


def kill_children(monkeypatch: pytest.MonkeyPatch, times: int) -> list[int]:
    """Kill the first `times` children of a round with SIGKILL; return the exit statuses of all."""
    real, statuses = round_process.child.run, list[int]()

    def run(argv: Any, **more: Any) -> Any:
        argv = ["sh", "-c", "kill -9 $$"] if "on_tick" in more and len(statuses) < times else argv
        result = real(argv, **more)
        statuses.append(result.returncode)
        return result

    monkeypatch.setattr(round_process.child, "run", run)
    return statuses


def test_child_killed_from_outside_is_started_once_more(
    env_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses = kill_children(monkeypatch, 1)
    metrics = runner.run_round(config_for(env_text, tmp_path / "round_1", SMALL))
    assert metrics.status == "ok" and statuses == [-signal.SIGKILL, 0]


def test_child_killed_twice_is_an_infrastructure_failure(
    env_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statuses = kill_children(monkeypatch, 2)
    with pytest.raises(InfrastructureError, match="killed from outside twice"):
        runner.run_round(config_for(env_text, tmp_path / "round_1", SMALL))
    assert statuses == [-signal.SIGKILL] * 2 and not (tmp_path / "round_1" / "metrics.json").exists()


def test_scale_of_the_run_changes_the_training_and_is_recorded(ok_round: Ran, env_text: str, tmp_path: Path) -> None:
    ran = Ran(config_for(env_text, tmp_path / "round_1", scale=0.5))
    assert ran.metrics.status == "ok", ran.metrics.status_reason
    assert (ok_round.metrics.scale, ran.metrics.scale) == (1.0, 0.5)
    assert ok_round.metrics.train_shots is not None and ran.metrics.train_shots is not None
    assert 0.4 < ran.metrics.train_shots / ok_round.metrics.train_shots < 0.6
    assert ran.metrics.val_shots == ok_round.metrics.val_shots
    assert json.loads(ran.layout.manifest.read_bytes())["round"]["scale"] == 0.5


def test_directory_moved_during_the_round_is_a_usage_error(
    env_text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, round_dir = round_process.child.run, tmp_path / "runs" / "round_1"

    def run(argv: Any, *, on_tick: Any = None, **more: Any) -> Any:
        if on_tick is not None:
            round_dir.parent.rename(tmp_path / "elsewhere")
        return real(argv if on_tick is None else ["true"], **{**more, "cwd": tmp_path, "stdout": tmp_path / "log"})

    monkeypatch.setattr(round_process.child, "run", run)
    with pytest.raises(UsageError, match="--resume"):
        runner.run_round(config_for(env_text, round_dir, SMALL))
    assert not round_dir.parent.exists()
