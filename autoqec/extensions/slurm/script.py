"""SLURM jobs that run a command which can be continued: requeued if preempted, and warned before their time limit."""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

from autoqec.extensions.slurm import programs as slurm_commands
from autoqec.extensions.slurm import submission as slurm
from autoqec.system.process import child

WARNING_S = 120  # between SIGTERM and the time limit, of jobs of four minutes and more


def submit_command(
    command: Sequence[str],
    *,
    name: str,
    options: Mapping[str, str],
    directory: Path,
    log: Path,
    package: Path,
    exported: Sequence[str] = (),
    variables: Mapping[str, str] | None = None,
    after: str | None = None,
) -> str:
    """Queue a job that runs a command, which receives SIGTERM before the time limit.

    Args:
        command: Program and arguments.
        name: Unique name of the job.
        options: Options of `--slurm`.
        directory: Working directory of the command.
        log: Output, to which each start appends; `%j` is the id of the job.
        package: Directory that holds the package.
        exported: Variables of this process that the command sees, besides those of every job.
        variables: Further variables.
        after: Id of the job that has to end first, in any way.

    Returns:
        The id of the job.

    Raises:
        UsageError: SLURM refuses, or does not answer.
    """
    names = [variable for variable in (*slurm.EXPORTED_VARIABLES, *exported) if variable in os.environ]
    threads = {key: options.get("cpus", "1") for key in child.DEFAULT_ENVIRONMENT if key.endswith("_NUM_THREADS")}
    fixed = {**child.DEFAULT_ENVIRONMENT, **threads, "PYTHONPATH": str(package), **(variables or {})}
    exports = "".join(f"export {key}={shlex.quote(value)}; " for key, value in fixed.items())
    warning_s = min(WARNING_S, 30 * slurm.minutes(options["time"]))
    flags = [
        f"--job-name={name}",
        f"--chdir={directory}",
        f"--output={log}",
        "--open-mode=append",
        "--requeue",
        "--wckey=",
        f"--export={','.join(names)}",
        f"--signal=B:TERM@{warning_s}",  # to the shell, which the command replaces
        *([] if after is None else [f"--dependency=afterany:{after}"]),
        *slurm.sbatch_flags(options),
        f"--wrap={exports}{slurm.NODE_SCRATCH}; exec {shlex.join(command)}",
    ]

    def submit_once() -> list[str]:
        status, output = slurm_commands.run_sbatch(*flags, exported=names)
        accepted = re.search(r"Submitted batch job (\d+)", output)
        if status != 0 or accepted is None:
            raise slurm.submission_error(output, options)
        return [accepted[1]]

    (number,) = slurm.until_accepted(name, submit_once)
    return number


def any_alive(*job_ids: str | None) -> bool | None:
    """Return whether any of these jobs is queued or running; None if SLURM does not answer on this machine."""
    if shutil.which("squeue") is None:
        return None
    lives = [slurm.query_job(job_id).life for job_id in job_ids if job_id is not None]
    if "alive" in lives:
        return True
    return None if "unreachable" in lives else False


def is_cancelled(own_id: str) -> bool:
    """Return whether the job that this process runs in was cancelled, which is not over its time limit or requeued.

    SLURM calls each of them COMPLETING while this process runs: the first has no reason, and no further restart.

    Args:
        own_id: Id of the job.
    """
    job = slurm.query_job(own_id)
    if job.state != "COMPLETING":
        return job.state == "CANCELLED"
    _, output = slurm_commands.run_command("scontrol", "--oneliner", "show", "job", own_id)
    restarts = re.search(r"\bRestarts=(\d+)", output)
    was_requeued = restarts is not None and int(restarts[1]) > int(os.environ.get("SLURM_RESTART_COUNT") or 0)
    return not job.why and not was_requeued


def live_jobs(name: str, *job_ids: str | None) -> dict[str, str] | None:
    """Return id -> SLURM's state of jobs that are queued or running, oldest first.

    Args:
        name: How the names of the jobs begin; those of this user are found by it.
        job_ids: Ids of jobs, which may be those of another user.

    Returns:
        The jobs; None if SLURM does not answer on this machine.
    """
    if shutil.which("squeue") is None:
        return None
    status, output = slurm_commands.run_command("squeue", "--me", "--noheader", "--format=%i|%T|%j")
    if status != 0:
        return None
    lines = [line.strip().split("|", 2) for line in output.splitlines() if line.count("|") >= 2]
    states = {job_id: state for job_id, state, found in lines if found.startswith(name)}
    for job_id in job_ids:
        if job_id is not None and job_id not in states:
            job = slurm.query_job(job_id)
            if job.life == "unreachable":
                return None
            if job.life == "alive":
                states[job_id] = job.state
    return dict(sorted(states.items(), key=lambda item: int(item[0].partition("_")[0])))
