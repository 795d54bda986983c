"""Rounds in a SLURM job: `work_batch` is the function that the job calls.

It returns nothing: the files of the rounds are its result, because the run that submitted the job may have ended.
"""

from __future__ import annotations

import json
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from autoqec.contracts.job import JobOrder
from autoqec.errors import AutoqecError
from autoqec.runner import runner
from autoqec.store import atomic
from autoqec.store.round_layout import RoundLayout
from autoqec.system import machine, sandbox, slurm, slurm_job


class RoundTimeLimitError(Exception):
    """A round took longer than its own job would have been given; further rounds of the batch may begin."""


def work_batch(rounds: Sequence[tuple[str, int]], begin_within_s: float) -> None:
    """Measure rounds one after another; the failure of one does not end the others.

    Args:
        rounds: Directory and number of each round.
        begin_within_s: Seconds until which a round is begun, after the first one; the run submits the others again.

    Raises:
        Exception: The first one that a round raised, after the last round; or at once SLURM's warning that it is going
            to end the job.
    """
    from submitit.core.utils import UncompletedJobError

    began, errors = time.monotonic(), list[Exception]()
    for index, (round_dir, number) in enumerate(rounds):
        if index > 0 and time.monotonic() - began > begin_within_s:
            break
        try:
            work(round_dir, number)
        except UncompletedJobError:
            raise
        except Exception as error:
            traceback.print_exc()
            errors.append(error)
    if errors:
        raise errors[0]


def work(round_dir: str, number: int) -> None:
    """Measure the round that the order in `round_dir` describes, unless it is cancelled or claimed by another job.

    Removing the order cancels the round, also while it runs: `scancel` may not have reached the job.
    """
    layout = RoundLayout(Path(round_dir), number)
    order = read_order(layout)
    if order is None or not _claim(layout, slurm_job.own_job_id()):
        return
    is_cancelled = _cancel_check(layout)
    if machine.code_sha256() != order.code_sha256:
        reason = "the node has different trusted code than the run, so nothing was measured"
        runner.record_failed_round(order.config, "train_error", reason)
        return
    if order.needs_sandbox and sandbox.probe() == "none":
        reason = f"the branch changes code, and the node has no sandbox; hint: {sandbox.INSTALL}"
        runner.record_failed_round(order.config, "killed_by_safety", reason, "no sandbox")
        return
    try:
        with _time_limit(60 * slurm.minutes(order.options["time"])):
            runner.run_round(order.config, is_cancelled=is_cancelled)
    except runner.CancelledError:
        return
    except AutoqecError as error:
        if not is_cancelled():
            runner.record_failed_round(order.config, "train_error", str(error))
        raise
    except Exception as error:
        from submitit.core.utils import UncompletedJobError

        # submitit raises its error from the signal that SLURM sends before it kills the job.
        if isinstance(error, RoundTimeLimitError | UncompletedJobError) and not is_cancelled():
            minutes = slurm.minutes(order.options["time"])
            reason = f"SLURM job {slurm_job.own_job_id()}: time limit of {minutes} minutes reached"
            runner.record_failed_round(order.config, "killed_by_safety", reason, "time limit")
        raise


@contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    """Raise RoundTimeLimitError in the context after this time; the limit of a job with a batch is later."""

    def end_round(number: int, frame: FrameType | None) -> None:
        raise RoundTimeLimitError(f"time limit of {seconds} s reached")

    previous = signal.signal(signal.SIGALRM, end_round)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)


def read_order(layout: RoundLayout) -> JobOrder | None:
    """Read the round's order; None if it was cancelled.

    Raises:
        ContractError: The order is damaged.
    """
    try:
        return JobOrder.read(json.loads(atomic.read_bytes(layout.job)), location=str(layout.job))
    except FileNotFoundError:
        return None


def claiming_job_id(layout: RoundLayout) -> str | None:
    """Return the id of the job that claimed the round; None if none has."""
    try:
        return atomic.read_bytes(layout.job_claim).decode().strip() or None
    except FileNotFoundError:
        return None


def _cancel_check(layout: RoundLayout) -> Callable[[], bool]:
    """Return a function that tells whether the order was removed. It opens the file: a stat may be cached by NFS."""

    def order_is_gone() -> bool:
        try:
            with layout.job.open("rb"):
                return False
        except FileNotFoundError:
            return True
        except OSError:
            return False  # unknown; assume that the order stands

    return order_is_gone


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
