"""State of SLURM jobs from squeue, and from sacct once they have left the queue; accounting may be off."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, NamedTuple

from autoqec.extensions.slurm.commands import error_summary, is_transient, run_command

LIMIT_STATES = ("TIMEOUT", "OUT_OF_MEMORY", "DEADLINE")
_ACTIVE_STATES = (
    "PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "REQUEUED", "REQUEUE_FED",
    "REQUEUE_HOLD", "RESIZING", "RESV_DEL_HOLD", "SIGNALING", "SPECIAL_EXIT", "STAGE_OUT",
)  # fmt: skip


class Job(NamedTuple):
    """State of a job.

    Attributes:
        life: alive: in the queue; ended: `state` says how; gone: SLURM does not know it any more; unreachable: SLURM
            does not answer.
        state: SLURM's name of the state.
        why: SLURM's message.
    """

    life: Literal["alive", "ended", "gone", "unreachable"]
    state: str = ""
    why: str = ""


def find_jobs(name: str) -> dict[int | None, str]:
    """Return index -> id of the elements of the oldest job of this name; the index of a job of its own is None.

    Raises:
        ConnectionError: SLURM does not answer.
    """
    command = ("squeue", "--noheader", "--array", f"--name={name}", "--states=all", "--format=%F|%K")
    status, output = run_command(*command)
    if status != 0:
        raise ConnectionError(output)
    lines = [[part.strip() for part in line.split("|")] for line in output.splitlines() if "|" in line]
    oldest = min((number for number, _ in lines), key=int, default="")
    indices = sorted((int(index) if index.isdigit() else -1) for number, index in lines if number == oldest)
    return {(None if index < 0 else index): oldest if index < 0 else f"{oldest}_{index}" for index in indices}


def query_job(job_id: str) -> Job:
    """Return the state of a job."""
    form = "--format=%T|%r|ran %M|limit %l"
    status, output = run_command("squeue", "--noheader", f"--jobs={job_id}", "--states=all", form)
    if status != 0 and "Invalid job id" not in output:
        return Job("unreachable", why=error_summary(output))
    lines = [line for line in output.splitlines() if "|" in line] if status == 0 else []
    if not lines:
        return _accounted_state(job_id)
    state, reason, *times = lines[0].strip().split("|")
    reasons = [] if reason == "None" else [reason]
    if state in _ACTIVE_STATES:
        return Job("alive", state, "".join(reasons))
    return Job("ended", state, ", ".join([*reasons, *times]))


def _accounted_state(job_id: str) -> Job:
    """Return the state of a job that has left the queue, from accounting if there is any."""
    if shutil.which("sacct") is None:
        return Job("gone")
    fields = "--format=State,ExitCode,Elapsed"
    status, output = run_command("sacct", "--noheader", "--allocations", "--parsable2", f"--jobs={job_id}", fields)
    lines = [line for line in output.splitlines() if line.count("|") == 2] if status == 0 else []
    if not lines:
        return Job("gone", why=error_summary(output))
    state, code, elapsed = lines[-1].split("|")
    state = state.partition(" ")[0]  # "CANCELLED by 1000"
    if not state or state in _ACTIVE_STATES:
        return Job("gone", why=f"its accounting still says {state or 'nothing'}")
    return Job("ended", state, f"exit code {code}, {elapsed} long")


def cancel(job_id: str) -> bool:
    """End a job, queued or running, without grace; return whether SLURM answered.

    Other errors of scancel are ignored, because the job has ended then.
    """
    status, output = run_command("scancel", "--signal=KILL", "--full", job_id)
    if status != 0 and is_transient(output):
        return False
    run_command("scancel", job_id)
    return True


@dataclass(frozen=True)
class Polling:
    """How often jobs are looked at, in seconds.

    Attributes:
        files_s: Between two looks for results.
        slurm_s: Between two queries of SLURM, whose controller all users share.
        lag_s: After a job ended, until files that its node wrote are visible here.
    """

    files_s: float = 0.5
    slurm_s: float = 5.0
    lag_s: float = 10.0


class WatchedJob:
    """A job whose result is files, so that SLURM is asked about it only until it has ended.

    Args:
        job_id: The id of the job.
        polling: How often SLURM is asked.
        on_state: Called with each new state.
    """

    def __init__(self, job_id: str, polling: Polling, on_state: Callable[[Job], None] = lambda job: None) -> None:
        self.job_id, self._polling, self._on_state = job_id, polling, on_state
        self._asked_at = float("-inf")
        self._state = Job("alive")
        self._ended_at: float | None = None

    def ask(self) -> None:
        """Ask SLURM, unless the job is known to have ended."""
        if self._ended_at is None:
            self._asked_at, before = time.monotonic(), self._state
            self._state = query_job(self.job_id)
            if self._state != before:
                self._on_state(self._state)
            if self._state.life in ("ended", "gone"):
                self._ended_at = time.monotonic()

    @property
    def ended(self) -> Job | None:
        """How the job ended, once the files that its node wrote must be visible here; None before."""
        is_visible = self._ended_at is not None and time.monotonic() - self._ended_at >= self._polling.lag_s
        return self._state if is_visible else None

    def poll(self) -> Job | None:
        """Ask SLURM if that is due, and return `ended`."""
        if time.monotonic() - self._asked_at >= self._polling.slurm_s:
            self.ask()
        return self.ended

    def describe_end(self) -> str:
        """Return a sentence about the job, which has ended and left no result."""
        why = self._state.why
        if self._state.life == "gone":
            return f"SLURM no longer knows job {self.job_id}, which left no result" + (f" ({why})" if why else "")
        return f"SLURM job {self.job_id} ended {self._state.state} ({why or 'no reason given'}) and left no result"
