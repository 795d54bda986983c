"""run_round: the trusted parent of one round. It starts the child, collects, and alone says what was measured."""

from __future__ import annotations

import json
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import autoqec
from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.profiles import PROFILES, Profile
from autoqec.contracts.round import RoundMetrics, RunnerConfig
from autoqec.contracts.timing import utc_now
from autoqec.errors import ContractError, UsageError
from autoqec.runner import collect
from autoqec.runner.artifact_manifest import find_worktree, resolve_modules_dir, write_artifact_manifest
from autoqec.runner.collect import Artifact, OnEvent
from autoqec.runner.pointer import write_round_pointer
from autoqec.runner.spec import ChildResult, ChildSpec, ChildStatus, one_line
from autoqec.store import atomic, files
from autoqec.store.layout import RoundLayout, hidden_from_branch_code
from autoqec.system import git, sandbox
from autoqec.system.process import child

SCRATCH_DIR = "child.tmp"  # in the round directory while the child runs; recovery may remove it
LOG_TAIL_BYTES = 2_000
MAX_PROCESSES = 64


class CancelledError(Exception):
    """Nobody wants the round any more; no result of it was written."""


@dataclass(frozen=True)
class ChildOutcome:
    """How the child ended, and what of it was kept."""

    result: ChildResult
    artifacts: list[Artifact] = field(default_factory=list)
    rss_peak_gb: float | None = None
    sandbox: dict[str, Any] = field(default_factory=dict)


def run_round(
    config: RunnerConfig, *, on_event: OnEvent | None = None, is_cancelled: Callable[[], bool] | None = None
) -> RoundMetrics:
    """Run one round and write config.yaml, artifacts, metrics.json, manifest and pointer.

    Every way a round can fail ends in metrics with its status and reason. Raises UsageError, with nothing written,
    where the env's text is wrong, the directory holds a finished round, or is gone by the end; StorageError where a
    file
    can't be written.
    on_event("training", {round, phase, step, steps, loss, eta_s, and the counts of val shots so far}): its progress.
    called_off: asked while the child works and before anything of its result is written; CancelledError once it says
    so.
    """
    started_at = utc_now()
    share = files.parse_env(config.env_yaml, location="env").protocol.shots_share
    repo_root, config = resolve_config(config)
    layout = RoundLayout(Path(config.round_dir), config.round_idx)

    def check_cancelled() -> None:
        if is_cancelled is not None and is_cancelled():
            raise CancelledError

    if layout.metrics.exists():
        raise UsageError("a finished round stands here", location=str(layout.dir), hint="name another round directory")
    atomic.make_dir(layout.dir)
    atomic.write_text(layout.config, files.dump_config(config.predecoder_config))
    try:
        parse_dsl(config.predecoder_config)
    except ContractError as error:
        outcome = ChildOutcome(failed_result("compile_error", str(error)))
    else:
        outcome = run_in_child(config, PROFILES[config.profile].scaled(share), layout, on_event, check_cancelled)
    check_cancelled()
    metrics = build_metrics(config, layout, outcome, started_at)
    atomic.write_json(layout.metrics, metrics.dump())
    if metrics.status == "ok":
        write_artifact_manifest(config, metrics, artifacts=outcome.artifacts, sandbox=outcome.sandbox)
    check_cancelled()  # its worktree may be gone, and must not come back
    if repo_root is not None:
        write_round_pointer(config, metrics, repo_root=repo_root)
    return metrics


def record_failed_round(config: RunnerConfig, status: ChildStatus, reason: str) -> RoundMetrics:
    """What run_round would have left, where it was itself cut off: metrics, unless they are there already, and
    pointer. For whoever knows that it runs no more."""
    repo_root, config = resolve_config(config)
    layout = RoundLayout(Path(config.round_dir), config.round_idx)
    shutil.rmtree(layout.dir / SCRATCH_DIR, ignore_errors=True)
    metrics = load_metrics(layout)
    if metrics is None:
        atomic.make_dir(layout.dir)
        atomic.write_text(layout.config, files.dump_config(config.predecoder_config))
        metrics = build_metrics(config, layout, ChildOutcome(failed_result(status, reason)))
        atomic.write_json(layout.metrics, metrics.dump())
    if repo_root is not None:
        write_round_pointer(config, metrics, repo_root=repo_root)
    return metrics


def load_metrics(layout: RoundLayout) -> RoundMetrics | None:
    """metrics.json; None where it is not there."""
    try:
        return RoundMetrics.read(json.loads(layout.metrics.read_bytes()), location=str(layout.metrics))
    except FileNotFoundError:
        return None


def resolve_config(config: RunnerConfig) -> tuple[Path | None, RunnerConfig]:
    """The lab repository of a round on a branch, and the config with absolute paths and the code commit named."""
    updates: dict[str, Any] = {"round_dir": str(Path(config.round_dir).resolve())}
    if config.branch is None or config.code_cwd is None:
        return None, config.model_copy(update=updates)
    repo = git.Repo.discover(config.code_cwd)
    updates["code_cwd"] = str(Path(config.code_cwd).resolve())
    updates["commit_sha"] = config.commit_sha or repo.head_sha(find_worktree(config, repo))
    return repo.root, config.model_copy(update=updates)


def run_in_child(
    config: RunnerConfig,
    profile: Profile,
    layout: RoundLayout,
    on_event: OnEvent | None,
    check_cancelled: Callable[[], None] = lambda: None,
) -> ChildOutcome:
    """Start the child in a scratch directory of its own, watch it, collect what it left, remove the rest.

    ask: called meanwhile; what it raises ends the child."""
    scratch = layout.dir / SCRATCH_DIR
    shutil.rmtree(scratch, ignore_errors=True)
    out, private = scratch / "out", scratch / "private"
    atomic.make_dir(out)
    atomic.make_dir(private)
    try:
        spec = ChildSpec(
            env_yaml=config.env_yaml,
            predecoder_config=config.predecoder_config,
            profile=profile,
            seed=config.seed,
            modules_dir=None if config.modules_dir is None else str(resolve_modules_dir(config)),
            parent_checkpoint=None if config.parent_checkpoint is None else _absolute(config.parent_checkpoint),
            threads=config.threads,
            out_dir=str(out),
        )
        spec_path, log = scratch / "spec.json", scratch / "output.log"
        atomic.write_json(spec_path, spec.dump())
        events = collect.EventForwarder(out, config.round_idx, on_event)

        def tick(seconds: float) -> None:
            check_cancelled()
            events.forward()

        wrapped = wrap_in_sandbox(config, spec, spec_path, private)
        process_result = child.run(
            wrapped.argv,
            cwd=out,
            env=wrapped.env,
            limits=limits(profile, scratch),
            stdout=log,
            on_tick=tick,
        )
        check_cancelled()
        if not out.is_dir():
            what = "the round's directory was moved or deleted while it was measured"
            raise UsageError(what, location=str(layout.dir), hint="put it back where it was, then start with --resume")
        events.forward()
        kept, child_result = collect_result(process_result, out, log, layout, profile)
        return ChildOutcome(child_result, kept, round(process_result.rss_peak_gb, 4), {"tier": wrapped.sandbox_backend})
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def wrap_in_sandbox(config: RunnerConfig, spec: ChildSpec, spec_path: Path, private: Path) -> sandbox.SandboxedCommand:
    """The child behind the strongest walls this machine has: it writes its own directory and reads what it needs.

    It runs this process's own package, whatever is installed elsewhere, on as many threads as the round may use.
    """
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(config.threads))
    inputs = [path for path in (spec.modules_dir, spec.parent_checkpoint) if path is not None]
    ranks = parse_dsl(spec.predecoder_config).training.sync
    policy = sandbox.SandboxPolicy(
        read_only=(spec_path, *map(Path, inputs)),
        writable=(Path(spec.out_dir),),
        scratch=private,
        hidden_paths=hidden_from_branch_code(Path(config.round_dir)),
        env={"PYTHONPATH": str(Path(autoqec.__file__).resolve().parents[1]), **threads},
        loopback=ranks is not None,
        gpu=ranks is not None and ranks.backend == "nccl",
    )
    return sandbox.wrap([sys.executable, "-P", "-s", "-m", "autoqec.runner.child", str(spec_path)], policy)


def limits(profile: Profile, scratch: Path) -> child.Limits:
    """The profile's limits; its disk limit covers results, log and private files together."""
    return child.Limits(
        wallclock_s=profile.round_wallclock_s,
        memory_gb=profile.memory_gb,
        disk_mb=profile.disk_mb,
        disk_dir=scratch,
        processes=MAX_PROCESSES,
    )


def collect_result(
    process_result: child.Result, out: Path, log: Path, layout: RoundLayout, profile: Profile
) -> tuple[list[Artifact], ChildResult]:
    """What is kept of the child's files, and what the round's end was."""
    try:
        kept = collect.artifacts(out, layout, max_bytes=int(profile.disk_mb * 1e6))
        child_result = collect.result(out)
    except collect.ArtifactRejectedError as refusal:
        return [], failed_result("train_error", f"what the child left was refused: {refusal}")
    if process_result.limit_broken is not None:
        return kept, failed_result("killed_by_safety", process_result.limit_broken, seconds=process_result.wallclock_s)
    if child_result is None:
        return kept, failed_result(
            "train_error",
            f"the child ended with {_exit_description(process_result.returncode)} and left no "
            f"result{last_log_line(log)}",
            seconds=process_result.wallclock_s,
        )
    if child_result.status == "ok":
        missing = [name for name in ("val", "n_params", "flops_per_syndrome") if getattr(child_result, name) is None]
        missing += [name for name in ("checkpoint.pt", "train.log") if name not in {item.name for item in kept}]
        if missing:
            return kept, failed_result("train_error", f"the child claims success but left no {', '.join(missing)}")
    return kept, child_result


def build_metrics(
    config: RunnerConfig, layout: RoundLayout, outcome: ChildOutcome, started_at: datetime | None = None
) -> RoundMetrics:
    """RoundMetrics from what the child counted; rates and differences are ours.

    Args:
        began: when the measurement began; None if its process was cut off, so that neither time is known.
    """
    result, kept = outcome.result, {item.name for item in outcome.artifacts}
    figures: dict[str, Any] = {}
    if result.status == "ok" and result.val is not None:
        val = result.val
        delta = (val.errors_reference - val.errors_candidate) / val.shots
        figures = {
            "delta_ler": delta,
            "ler_plain_classical": val.errors_reference / val.shots,
            "ler_predecoder": val.errors_candidate / val.shots,
            "delta_vs_parent": compute_delta_vs_parent(config, delta),
            "val_shots": val.shots,
            "val_errors_plain": val.errors_reference,
            "val_errors_predecoder": val.errors_candidate,
            "val_fixed": val.fixed,
            "val_broken": val.broken,
        }
    return RoundMetrics(
        status=result.status,
        status_reason=result.reason,
        n_params=result.n_params,
        flops_per_syndrome=result.flops_per_syndrome,
        train_seed=config.seed,
        train_steps=result.train_steps,
        train_shots=result.train_shots,
        final_loss=result.final_loss,
        train_wallclock_s=result.train_wallclock_s,
        eval_wallclock_s=result.eval_wallclock_s,
        vram_peak_gb=result.vram_peak_gb,
        rss_peak_gb=outcome.rss_peak_gb,
        checkpoint_path=str(layout.checkpoint) if layout.checkpoint.name in kept else None,
        training_log_path=str(layout.train_log) if layout.train_log.name in kept else None,
        measurement_started_at=started_at,
        measurement_finished_at=utc_now() if started_at is not None else None,
        **figures,
    )


def compute_delta_vs_parent(config: RunnerConfig, delta: float) -> float | None:
    """The child's delta minus the parent's on the same val shots; the baseline's is 0. None: not known."""
    if config.parent_delta_ler is not None:
        return delta - config.parent_delta_ler
    return delta if config.fork_from == "baseline" else None


def failed_result(status: ChildStatus, reason: str, *, seconds: float | None = None) -> ChildResult:
    """seconds: how long the child worked, for the budget; where it ended by itself, it says so itself."""
    return ChildResult(status=status, reason=one_line(reason), train_wallclock_s=seconds)


def last_log_line(log: Path) -> str:
    """The last words of the child, for a reason."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
            lines = stream.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return f": {lines[-1]}" if lines else ""


def _exit_description(returncode: int) -> str:
    """Walls pass a signal on as a status above 128."""
    if 128 < returncode < 128 + signal.NSIG:
        returncode = 128 - returncode
    return f"signal {-returncode}" if returncode < 0 else f"status {returncode}"


def _absolute(path: str) -> str:
    return str(Path(path).resolve())
