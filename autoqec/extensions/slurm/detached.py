"""Detached runs: one SLURM job executes `autoqec run --resume RUN`, and is queued again before its time ends.

The job is found by its name. detached.json marks the run from its start until it is finished or stopped.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path

from autoqec.contracts.job import DetachedRun
from autoqec.contracts.round import utc_now
from autoqec.errors import RunInterruptedError, UsageError
from autoqec.extensions.slurm import submission
from autoqec.extensions.slurm.commands import EXPORTED_VARIABLES, NODE_SCRATCH, run_command
from autoqec.extensions.slurm.jobs import cancel
from autoqec.installation import IMPORT_DIR
from autoqec.orchestrator.plugin_protocols import Ended
from autoqec.qec.decoder_trust import trusted_functions
from autoqec.store import atomic, run_control
from autoqec.store.layout import RunLayout
from autoqec.store.round_files import read_contract
from autoqec.system import run_lock, sandbox
from autoqec.system.process import child

DEFAULTS = {"time": "60", "cpus": "1", "mem": "4G"}
INHERITED = ("partition", "account", "qos")  # from --slurm; GPUs and nodes of the rounds are not needed
WARNING_S = 120  # between the warning and the time limit, of jobs of four minutes and more
LOCK_POLL_S = 5.0
GONE, UNKNOWN = "gone", "unknown"  # in place of the state of a job: SLURM has none, or does not answer
_NO_ANSWER = "SLURM does not answer on this machine"
_OWN_RUN = "AUTOQEC_DETACHED"  # in the job of a detached run: its id
# `wait` returns early when the shell has caught a signal. SIGTERM, of `scancel`, also reaches the command itself.
_SCRIPT = """#!/bin/bash
{flags}
{exports}
{scratch}
trap 'ending=yes; kill -TERM "$run"' USR1
trap : TERM
{command} & run=$!
wait "$run"; status=$?
while [ "$status" -gt 128 ] && kill -0 "$run" 2>/dev/null; do wait "$run"; status=$?; done
if [ -n "$ending" ]; then
  wait "$run"; status=$?
  if [ "$status" -ge {interrupted} ]; then
    scontrol requeue "$SLURM_JOB_ID" || sbatch --dependency="afterany:$SLURM_JOB_ID" {script}
  fi
fi
exit "$status"
"""


def is_own_job(run_id: str | None) -> bool:
    """Return whether this process runs in the job of this detached run."""
    return run_id is not None and os.environ.get(_OWN_RUN) == run_id


def start(layout: RunLayout, options: Mapping[str, str], exported: Iterable[str]) -> str:
    """Queue the job of a run that this process does not hold, and return its id.

    Args:
        layout: The run.
        options: SLURM options of the job.
        exported: Variables of this process that the job sees, besides those of every job. No file holds their values.

    Raises:
        UsageError: SLURM refuses, or does not answer.
    """
    atomic.make_dir(layout.detached_logs)
    script = layout.detached_logs / "job.sh"
    names = [*EXPORTED_VARIABLES, sandbox.OPT_OUT_VARIABLE, *exported]
    names = [name for name in dict.fromkeys(names) if name in os.environ]
    atomic.write_bytes(script, _script(layout, options, names, script).encode())

    def submit_once() -> list[str]:
        status, output = run_command("sbatch", str(script), exported=names)
        accepted = re.search(r"Submitted batch job (\d+)", output)
        if status != 0 or accepted is None:
            raise submission.submission_error(output, options)
        return [accepted[1]]

    atomic.write_json(layout.detached, DetachedRun(began=utc_now()).dump())
    try:
        (job_id,) = submission.until_accepted(_name(layout), submit_once)
    except BaseException:
        layout.detached.unlink(missing_ok=True)
        raise
    return job_id


def _script(layout: RunLayout, options: Mapping[str, str], names: list[str], script: Path) -> str:
    trusted = [word for name in sorted(trusted_functions()) for word in ("--trust-decoder", name)]
    command = [sys.executable, "-P", "-s", "-m", "autoqec.cli", "run", "--resume", layout.run_id, *trusted]
    threads = {key: options["cpus"] for key in child.DEFAULT_ENVIRONMENT if key.endswith("_NUM_THREADS")}
    fixed = {**child.DEFAULT_ENVIRONMENT, **threads, "PYTHONPATH": str(IMPORT_DIR), _OWN_RUN: layout.run_id}
    flags = [
        f"--job-name={_name(layout)}",
        f"--chdir={layout.repo_root}",
        f"--output={layout.detached_logs / '%j.log'}",
        "--open-mode=append",
        "--requeue",  # also if it is preempted, or its node fails
        "--wckey=",
        f"--export={','.join(names)}",
        f"--signal=B:USR1@{min(WARNING_S, 30 * submission.minutes(options['time']))}",
        *submission.sbatch_flags(options),
    ]
    return _SCRIPT.format(
        flags="\n".join(f"#SBATCH {shlex.quote(flag)}" for flag in flags),
        exports="\n".join(f"export {name}={shlex.quote(value)}" for name, value in fixed.items()),
        scratch=NODE_SCRATCH,
        command=shlex.join(command),
        interrupted=RunInterruptedError.exit_code,
        script=shlex.quote(str(script)),
    )


def continue_run(layout: RunLayout, run_rounds: Callable[[datetime], Ended]) -> int:
    """Run rounds in the job of a detached run, and return the exit status.

    Args:
        layout: The run.
        run_rounds: Runs them; its argument is the time when the run was detached.
    """
    while run_lock.is_locked(layout.root):  # e.g. by `autoqec verify`; the time limit ends the wait
        time.sleep(LOCK_POLL_S)
    state = read_contract(layout.detached, DetachedRun)
    ended = run_rounds(datetime.now(UTC) if state is None else state.began)
    if not ended.interrupted or ended.stop_reason == run_control.STOPPED:
        layout.detached.unlink(missing_ok=True)
    return ended.exit_status


def find_job(layout: RunLayout) -> tuple[str, str]:
    """Return id and state of the queued or running job of a run; the state is GONE or UNKNOWN if none is found."""
    status, output = run_command("squeue", "--noheader", f"--name={_name(layout)}", "--format=%i|%T")
    if status != 0:
        return "", UNKNOWN
    job_id, _, state = next((line for line in output.split() if "|" in line), f"|{GONE}").partition("|")
    return job_id, state


def _name(layout: RunLayout) -> str:
    return f"autoqec-run-{layout.run_id}"


def require_free(layout: RunLayout) -> None:
    """Raise UsageError if a job executes the run, or will, and this process is not that job; else remove the mark."""
    if is_own_job(layout.run_id) or not layout.detached.exists():
        return
    job_id, state = find_job(layout)
    message = f"the run is detached: SLURM job {job_id} holds it, or will"
    hint = f"autoqec stop {layout.run_id}"
    if state == UNKNOWN:
        message = "the run is detached, and SLURM does not answer on this machine"
        hint += f" on a machine of the cluster; in a copy of the run delete {layout.detached}"
    if state != GONE:
        raise UsageError(message, location=f"run {layout.run_id}", hint=hint)
    layout.detached.unlink(missing_ok=True)


def stop(layout: RunLayout) -> str | None:
    """Ask a detached run to end; return when it does, None if it is not detached."""
    if not layout.detached.exists():
        return None
    job_id, state = find_job(layout)
    if state not in ("PENDING", GONE):
        run_control.request_stop(layout)  # the job removes the mark
        when = "after its rounds in progress"
        return f"{when}, when its job reads the request: {_NO_ANSWER}" if state == UNKNOWN else when
    layout.detached.unlink(missing_ok=True)
    if state == GONE:
        return "now: SLURM has no job of it"
    cancel(job_id)
    return f"now: its SLURM job {job_id}, which waited, is cancelled"


def describe(layout: RunLayout) -> str | None:
    """Return one line about the job of a detached run, and what to do; None for any other run."""
    if not layout.detached.exists():
        return None
    job_id, state = find_job(layout)
    if state == GONE:
        next_step = f"Its output: {layout.detached_logs}. Continue it: autoqec run --resume {layout.run_id}"
        return f"Detached run: SLURM has no job of it. {next_step}"
    job = _NO_ANSWER if state == UNKNOWN else f"job {job_id} ({state.lower()})"
    return f"Detached run: {job}. Stop it: autoqec stop {layout.run_id}"


def is_abandoned(layout: RunLayout) -> bool:
    """Return whether a detached run that is neither finished nor stopped has no job any more."""
    return layout.detached.exists() and find_job(layout)[1] == GONE
