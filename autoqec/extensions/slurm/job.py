"""What runs inside a SLURM job: its own id, and the call of a function that ends when SLURM ends the job."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

KILL_WAIT_S = 60.0  # after SIGTERM until SLURM kills a job; 30 s unless configured otherwise


class JobTerminated(BaseException):  # as KeyboardInterrupt, not an error of the work
    """SLURM is ending this job: it was cancelled or preempted, or is over its time limit."""


class JobEndingError(Exception):
    """SLURM warned that it is going to end this job at its time limit."""


def own_job_id() -> str:
    """Return the id of the job that this process runs in; of an element of an array `JOB_INDEX`."""
    if "SLURM_ARRAY_JOB_ID" in os.environ:
        return f"{os.environ['SLURM_ARRAY_JOB_ID']}_{os.environ['SLURM_ARRAY_TASK_ID']}"
    return os.environ["SLURM_JOB_ID"]


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
