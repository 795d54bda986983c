"""run_round: the trusted parent of one round, which alone writes metrics, manifest and pointer."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.profiles import profile_of
from autoqec.contracts.round import FailureCause, RoundMetrics, RunnerConfig, utc_now
from autoqec.errors import ContractError, UsageError
from autoqec.runner import devices
from autoqec.runner.provenance import find_worktree, write_artifact_manifest, write_round_pointer
from autoqec.runner.round_process import ChildOutcome, failed_result, run_in_child
from autoqec.runner.spec import SCRATCH_DIR, ChildResult, ChildStatus
from autoqec.store import atomic, files
from autoqec.store.layout import RoundLayout
from autoqec.store.round_files import read_contract
from autoqec.system import git, machine

if TYPE_CHECKING:
    from autoqec.contracts.events import OnEvent


class CancelledError(Exception):
    """The round was cancelled; none of its results was written."""


def run_round(
    config: RunnerConfig, *, on_event: OnEvent | None = None, is_cancelled: Callable[[], bool] | None = None
) -> RoundMetrics:
    """Run one round and write config.yaml, artifacts, metrics.json, manifest and pointer.

    Every failure of the round itself ends in metrics with a status and a reason.

    Args:
        config: The round.
        on_event: Receives `TrainingProgress` events.
        is_cancelled: Called while the child works and before anything of its result is written.

    Raises:
        UsageError: The env is invalid or the directory holds a finished round (nothing was written), or the directory
            was moved or deleted meanwhile.
        StorageError: A file cannot be written.
        CancelledError: `is_cancelled` returned True.
    """
    started_at = utc_now()
    share = files.parse_env(config.env_yaml, location="env").protocol.shots_share
    repo_root, config = resolve_config(config)
    layout = RoundLayout(Path(config.round_dir), config.round_idx)

    def check_cancelled() -> None:
        if is_cancelled is not None and is_cancelled():
            raise CancelledError

    if layout.metrics.exists():
        raise UsageError(
            "the directory holds a finished round", location=str(layout.dir), hint="choose another round directory"
        )
    atomic.make_dir(layout.dir)
    atomic.write_text(layout.config, files.dump_config(config.predecoder_config))
    try:
        parse_dsl(config.predecoder_config)
    except ContractError as error:
        outcome = ChildOutcome(failed_result("compile_error", str(error), "bad config"))
    else:
        profile = profile_of(config.profile, config.scale).scaled(share)
        outcome = run_in_child(config, profile, layout, on_event, check_cancelled)
    check_cancelled()
    metrics = build_metrics(config, layout, outcome, started_at)
    atomic.write_json(layout.metrics, metrics.dump())
    if metrics.status == "ok":
        write_artifact_manifest(config, metrics, artifacts=outcome.artifacts, sandbox=outcome.sandbox)
    check_cancelled()  # the worktree may have been removed and must not be created again
    if repo_root is not None:
        write_round_pointer(config, metrics, repo_root=repo_root)
    return metrics


def record_failed_round(
    config: RunnerConfig, status: ChildStatus, reason: str, cause: FailureCause = "crash"
) -> RoundMetrics:
    """Write the metrics (unless they exist) and the pointer of a round whose own process was cut off.

    The caller knows that the round is not running any more.
    """
    repo_root, config = resolve_config(config)
    layout = RoundLayout(Path(config.round_dir), config.round_idx)
    shutil.rmtree(layout.dir / SCRATCH_DIR, ignore_errors=True)
    metrics = read_contract(layout.metrics, RoundMetrics)
    if metrics is None:
        atomic.make_dir(layout.dir)
        atomic.write_text(layout.config, files.dump_config(config.predecoder_config))
        metrics = build_metrics(config, layout, ChildOutcome(failed_result(status, reason, cause)))
        atomic.write_json(layout.metrics, metrics.dump())
    if repo_root is not None:
        write_round_pointer(config, metrics, repo_root=repo_root)
    return metrics


def resolve_config(config: RunnerConfig) -> tuple[Path | None, RunnerConfig]:
    """Make the config's paths absolute and fill in the code commit.

    Returns:
        The workspace repository of a round on a branch (else None), and the config.
    """
    updates: dict[str, Any] = {"round_dir": str(Path(os.path.abspath(config.round_dir)))}
    if config.branch is None or config.code_cwd is None:
        return None, config.model_copy(update=updates)
    repo = git.Repo.discover(config.code_cwd)
    updates["code_cwd"] = str(Path(config.code_cwd).resolve())
    updates["commit_sha"] = config.commit_sha or repo.head_sha(find_worktree(config, repo))
    return repo.root, config.model_copy(update=updates)


def build_metrics(
    config: RunnerConfig, layout: RoundLayout, outcome: ChildOutcome, started_at: datetime | None = None
) -> RoundMetrics:
    """Build the metrics; rates and differences are computed here, from the child's counts.

    Args:
        config: The round.
        layout: Its directory.
        outcome: How the child ended.
        started_at: When the measurement began; None if its process was cut off, so that neither time is known.
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
            "val_members": result.val_members,
        }
    return RoundMetrics(
        status=result.status,
        status_reason=result.reason,
        failure_cause=result.cause if result.status != "ok" else None,
        n_params=result.n_params,
        flops_per_syndrome=result.flops_per_syndrome,
        scale=config.scale,
        train_seed=config.seed,
        train_steps=result.train_steps,
        train_shots=result.train_shots,
        final_loss=result.final_loss,
        train_wallclock_s=result.train_wallclock_s,
        eval_wallclock_s=result.eval_wallclock_s,
        vram_peak_gb=result.vram_peak_gb,
        rss_peak_gb=outcome.rss_peak_gb,
        device=result.device or (machine.cpu_model() if result.gpus == 0 else None),
        gpus=_used_gpus(config, result),
        checkpoint_path=str(layout.checkpoint) if layout.checkpoint.name in kept else None,
        training_log_path=str(layout.train_log) if layout.train_log.name in kept else None,
        measurement_started_at=started_at,
        measurement_finished_at=utc_now() if started_at is not None else None,
        **figures,
    )


def _used_gpus(config: RunnerConfig, result: ChildResult) -> int | None:
    """Return the GPUs that a round held; of a child that was killed, those that its config requests."""
    if result.gpus is not None or result.train_wallclock_s is None:
        return result.gpus
    return devices.requested_gpus(parse_dsl(config.predecoder_config).training)


def compute_delta_vs_parent(config: RunnerConfig, delta: float) -> float | None:
    """Return the gain over the fork parent on the same val shots (the baseline's delta is 0); None if unknown."""
    if config.parent_delta_ler is not None:
        return delta - config.parent_delta_ler
    return delta if config.fork_from == "baseline" else None
