"""The untrusted process of a round: started in a sandbox, supervised, and its files collected."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.profiles import Profile
from autoqec.contracts.round import FailureCause, RunnerConfig
from autoqec.errors import InfrastructureError, UsageError
from autoqec.installation import IMPORT_DIR
from autoqec.runner import collect, devices
from autoqec.runner.collect import Artifact
from autoqec.runner.provenance import resolve_modules_dir
from autoqec.runner.spec import RESULT, SCRATCH_DIR, ChildResult, ChildSpec, ChildStatus, one_line
from autoqec.store import atomic, files
from autoqec.store.layout import RoundLayout, hidden_from_branch_code, visible_shots
from autoqec.store.run_log import LOGGER
from autoqec.system import sandbox
from autoqec.system.process import child

if TYPE_CHECKING:
    from autoqec.contracts.events import OnEvent

LOG_TAIL_BYTES = 8_000
MAX_PROCESSES = 64
GPU_VARIABLES = ("CUDA_VISIBLE_DEVICES",)  # which GPUs are this job's; SLURM sets it
CAUSES: dict[child.LimitName, FailureCause] = {
    "wall clock": "time limit",
    "memory": "out of memory",
    "disk": "disk limit",
    "processes": "process limit",
}
KEPT_SNAPSHOT_MODES = ("all", "gap")  # snapshots of other modes are kept only of a round without a checkpoint


@dataclass(frozen=True)
class ChildOutcome:
    """How the child process ended, the files kept of it, and the end of its output."""

    result: ChildResult
    log_tail: str = ""
    artifacts: list[Artifact] = field(default_factory=list)
    rss_peak_gb: float | None = None
    sandbox: dict[str, Any] = field(default_factory=dict)
    killed: bool = False  # by SIGKILL, although no limit of ours was broken


def run_in_child(
    config: RunnerConfig,
    profile: Profile,
    layout: RoundLayout,
    on_event: OnEvent | None,
    check_cancelled: Callable[[], None] = lambda: None,
) -> ChildOutcome:
    """Train and measure in a sandboxed child process with its own scratch directory, which is removed afterwards.

    Args:
        config: The round; its predecoder config is valid.
        profile: Shots and limits.
        layout: The round directory, which collects the child's files.
        on_event: Receives `TrainingProgress` events while the child works.
        check_cancelled: Called meanwhile; an exception of it ends the child.

    Raises:
        UsageError: The round directory was moved or deleted meanwhile.
        InfrastructureError: The child was killed from outside, and so was a second one.
    """
    outcome = _run_child(config, profile, layout, on_event, check_cancelled)
    if outcome.killed:
        message = "the round's process was killed from outside; it is started once more"
        LOGGER.warning(message, extra={"round": config.round_idx})
        outcome = _run_child(config, profile, layout, on_event, check_cancelled)
    if outcome.killed:
        what = "the process that trains the round was killed from outside twice (SIGKILL, or out of memory)"
        hint = "`dmesg | tail` names the reason; run fewer rounds at once (--parallel), or free memory"
        raise InfrastructureError(what, location=str(layout.dir), hint=hint)
    return outcome


def _run_child(
    config: RunnerConfig,
    profile: Profile,
    layout: RoundLayout,
    on_event: OnEvent | None,
    check_cancelled: Callable[[], None],
) -> ChildOutcome:
    scratch = layout.dir / SCRATCH_DIR
    shutil.rmtree(scratch, ignore_errors=True)
    out, private = scratch / "out", scratch / "private"
    atomic.make_dir(out)
    atomic.make_dir(private)
    try:
        spec = _child_spec(config, profile, out, layout)
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
            limits=_limits(profile, scratch),
            stdout=log,
            on_tick=tick,
        )
        check_cancelled()
        if not out.is_dir():
            raise UsageError(
                "the round directory was moved or deleted during the measurement",
                location=str(layout.dir),
                hint="move it back, then start with --resume",
            )
        events.forward()
        kept, child_result = _collect_result(process_result, out, log, layout, spec)
        return ChildOutcome(
            child_result,
            log_tail(log),
            kept,
            round(process_result.rss_peak_gb, 4),
            {"tier": wrapped.sandbox_backend},
            killed=process_result.sigkilled and not (out / RESULT).exists(),
        )
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _child_spec(config: RunnerConfig, profile: Profile, out: Path, layout: RoundLayout) -> ChildSpec:
    parent = config.parent_checkpoint
    own_shots = files.parse_env(config.env_yaml, location="env").code.own_shots
    return ChildSpec(
        env_yaml=config.env_yaml,
        predecoder_config=config.predecoder_config,
        profile=profile,
        seed=config.seed,
        modules_dir=None if config.modules_dir is None else str(resolve_modules_dir(config)),
        parent_checkpoint=None if parent is None else str(Path(parent).resolve()),
        threads=config.threads,
        out_dir=str(out),
        recorded_dir=str(visible_shots(layout.dir)) if own_shots else None,
    )


def wrap_in_sandbox(config: RunnerConfig, spec: ChildSpec, spec_path: Path, private: Path) -> sandbox.SandboxedCommand:
    """Return the command of the child in the strongest sandbox that this machine has.

    It writes only its own directories, imports this process's own package whatever else is installed, and uses as many
    threads as the round may.
    """
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(config.threads))
    inputs = [path for path in (spec.modules_dir, spec.parent_checkpoint, spec.recorded_dir) if path is not None]
    training = parse_dsl(spec.predecoder_config).training
    gpu = devices.may_use_gpu(training)
    visible = {name: os.environ[name] for name in GPU_VARIABLES if gpu and name in os.environ}
    if gpu and config.visible_gpus is not None and training.sync is None:
        visible["CUDA_VISIBLE_DEVICES"] = config.visible_gpus
    policy = sandbox.SandboxPolicy(
        read_only=(spec_path, *map(Path, inputs)),
        writable=(Path(spec.out_dir),),
        scratch=private,
        hidden_paths=hidden_from_branch_code(Path(config.round_dir)),
        env={"PYTHONPATH": str(IMPORT_DIR), **threads, **visible},
        loopback=training.sync is not None,
        gpu=gpu,
    )
    return sandbox.wrap([sys.executable, "-P", "-s", "-m", "autoqec.runner.child", str(spec_path)], policy)


def _limits(profile: Profile, scratch: Path) -> child.Limits:
    """Return the profile's limits; its disk limit covers results, log and private files together."""
    return child.Limits(
        wallclock_s=profile.round_wallclock_s,
        memory_gb=profile.memory_gb,
        disk_mb=profile.disk_mb,
        disk_dir=scratch,
        processes=MAX_PROCESSES,
    )


def _collect_result(
    process_result: child.Result, out: Path, log: Path, layout: RoundLayout, spec: ChildSpec
) -> tuple[list[Artifact], ChildResult]:
    """Copy the child's files into the round directory and determine how the round ended."""
    snapshots = parse_dsl(spec.predecoder_config).training.snapshot_mode in KEPT_SNAPSHOT_MODES
    try:
        kept = collect.artifacts(out, layout, max_bytes=int(spec.profile.disk_mb * 1e6), snapshots=snapshots)
        child_result = collect.result(out)
    except collect.ArtifactRejectedError as error:
        return [], failed_result("train_error", f"a file that the round's process left was rejected: {error}")
    if process_result.limit_broken is not None:
        cause = CAUSES[process_result.limit] if process_result.limit else None
        return kept, failed_result(
            "killed_by_safety", process_result.limit_broken, cause, seconds=process_result.wallclock_s
        )
    if child_result is None:
        ending = _exit_description(process_result.returncode)
        reason = f"the child ended with {ending} and left no result{last_log_line(log)}"
        return kept, failed_result("train_error", reason, seconds=process_result.wallclock_s)
    if child_result.status == "ok":
        missing = [name for name in ("val", "n_params", "flops_per_syndrome") if getattr(child_result, name) is None]
        missing += [name for name in ("checkpoint.pt", "train.log") if name not in {item.name for item in kept}]
        if missing:
            return kept, failed_result("train_error", f"the child reports success but left no {', '.join(missing)}")
    return kept, child_result


def failed_result(
    status: ChildStatus, reason: str, cause: FailureCause | None = "crash", *, seconds: float | None = None
) -> ChildResult:
    """Return the result of a round that failed outside the child; `seconds` of its work count in the budget."""
    return ChildResult(status=status, reason=one_line(reason), cause=cause, train_wallclock_s=seconds)


def log_tail(log: Path) -> str:
    """Return the end of the child's output; an empty string if there is none."""
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - LOG_TAIL_BYTES))
            return stream.read().decode(errors="replace").strip()
    except OSError:
        return ""


def last_log_line(log: Path) -> str:
    """Return `: <last line>` of the child's output, or an empty string."""
    lines = log_tail(log).splitlines()
    return f": {lines[-1]}" if lines else ""


def _exit_description(returncode: int) -> str:
    """Describe an exit status; the sandbox reports a signal as a status above 128."""
    if 128 < returncode < 128 + signal.NSIG:
        returncode = 128 - returncode
    return f"signal {-returncode}" if returncode < 0 else f"status {returncode}"
