"""What runs inside a SLURM job: the call of a function, and `measure_round`, which measures the round of an order.

It returns nothing: the files of the round are its result, because the run that submitted the job may have ended.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from autoqec.contracts.job import JobOrder
from autoqec.errors import AutoqecError
from autoqec.runner import runner
from autoqec.store import atomic
from autoqec.store.layout import RoundLayout, pointer_on_branch
from autoqec.store.round_files import read_contract
from autoqec.system import machine, sandbox

KILL_WAIT_S = 60.0  # after SIGTERM until SLURM kills a job; 30 s unless configured otherwise


class JobTerminated(BaseException):  # as KeyboardInterrupt, not an error of the work
    """SLURM is ending this job: it was cancelled or preempted, or is over its time limit."""


def own_job_id() -> str:
    """Return the id of the job that this process runs in; of an element of an array `JOB_INDEX`."""
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        return f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return os.environ["SLURM_JOB_ID"]


def is_time_limit(error: BaseException) -> bool:
    """Return whether submitit raised this error in a job, because SLURM is going to end it at its time limit."""
    from submitit.core.utils import UncompletedJobError

    return isinstance(error, UncompletedJobError)


def call_element(work: Callable[..., None], arguments: Sequence[tuple[Any, ...]]) -> None:
    """Call `work`, in its job, with the arguments of the element that this process runs in.

    SLURM sends SIGTERM to all processes of a job that it is going to kill. What the work makes of the end of its own
    processes would be recorded as a result, so that it is ended first.

    Raises:
        JobTerminated: SLURM sent SIGTERM.
    """

    def end_work(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        raise JobTerminated

    previous = signal.signal(signal.SIGTERM, end_work)
    try:
        work(*arguments[int(os.environ.get("SLURM_ARRAY_TASK_ID", "0"))])
    except JobTerminated:
        time.sleep(KILL_WAIT_S)  # until SLURM kills this process: the state would else be FAILED after a preemption
        raise
    finally:
        signal.signal(signal.SIGTERM, previous)


def measure_round(round_dir: str, number: int) -> None:
    """Measure the round that the order in `round_dir` describes, unless it is cancelled or claimed by another job.

    A job that SLURM requeued leaves a round that it has finished as it is. Removing the order cancels the round, also
    while it runs: `scancel` may not have reached the job.
    """
    layout = RoundLayout(Path(round_dir), number)
    order = read_contract(layout.job, JobOrder)
    if order is None or not _claim(layout, own_job_id()):
        return
    if layout.metrics.exists():  # written before this job was requeued
        pointer = Path(order.config.code_cwd or layout.dir, pointer_on_branch(layout.round))
        if pointer.parents[1].is_dir() and order.config.code_cwd is not None and not pointer.exists():
            reason = "the job ended before it had written the pointer"
            runner.record_failed_round(order.config, "train_error", reason)
        return
    if machine.code_sha256() != order.code_sha256:
        reason = "the node has different trusted code than the run, so nothing was measured"
        runner.record_failed_round(order.config, "train_error", reason)
        return
    if order.needs_sandbox and sandbox.probe() == "none":
        reason = f"the branch changes code, and the node has no sandbox; hint: {sandbox.INSTALL}"
        runner.record_failed_round(order.config, "killed_by_safety", reason, "no sandbox")
        return
    is_cancelled = partial(_is_cancelled, layout)
    try:
        runner.run_round(order.config, is_cancelled=is_cancelled)
    except runner.CancelledError:
        return
    except Exception as error:
        if not is_cancelled() and is_time_limit(error):
            reason = f"SLURM job {own_job_id()}: time limit, --slurm time={order.options['time']}, reached"
            runner.record_failed_round(order.config, "killed_by_safety", reason, "time limit")
        elif not is_cancelled() and isinstance(error, AutoqecError):
            runner.record_failed_round(order.config, "train_error", str(error))
        raise


def claiming_job_id(layout: RoundLayout) -> str | None:
    """Return the id of the job that claimed the round; None if none has."""
    try:
        return atomic.read_bytes(layout.job_claim).decode().strip() or None
    except FileNotFoundError:
        return None


def _is_cancelled(layout: RoundLayout) -> bool:
    """Return whether the order was removed. It opens the file: a stat may be cached by NFS."""
    try:
        layout.job.open("rb").close()
    except OSError as error:
        return isinstance(error, FileNotFoundError)  # of any other error assume that the order stands
    return False


def _claim(layout: RoundLayout, job_id: str) -> bool:
    """Claim the round for this job; True also if this job claimed it before a requeue."""
    try:
        fd = os.open(layout.job_claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return claiming_job_id(layout) == job_id
    with os.fdopen(fd, "w", encoding="utf-8") as stream:
        stream.write(job_id)
    atomic.fsync_dir(layout.dir)
    return True
