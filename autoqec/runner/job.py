"""Rounds in a SLURM job: `work_rounds` is the function that the job calls.

It returns nothing: the files of the rounds are its result, because the run that submitted the job may have ended.
"""

from __future__ import annotations

import json
import os
import signal
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

from autoqec.contracts.job import JobOrder
from autoqec.errors import AutoqecError
from autoqec.extensions.slurm import job as slurm_job
from autoqec.extensions.slurm import submission as slurm
from autoqec.runner import runner
from autoqec.store import atomic
from autoqec.store.further_rounds import END, FurtherRounds
from autoqec.store.layout import RoundLayout, pointer_on_branch
from autoqec.system import machine, sandbox

LIST_POLL_S = 0.2  # between two looks for the next round; one opens a directory and a file


class RoundTimeLimitError(Exception):
    """A round took longer than its own job would have been given; further rounds of the job may begin."""


def work_rounds(
    round_dir: str, number: int, further_dir: str | None = None, begin_within_s: float = 0.0, idle_s: float = 0.0
) -> None:
    """Measure a round, then those of the job's list one after another; the failure of one does not end the others.

    A job that SLURM requeued begins with the first round again, and leaves those that it has finished as they are.

    Args:
        round_dir: Directory of the first round.
        number: Number of the first round.
        further_dir: Directory of the list of further rounds; None: there are none.
        begin_within_s: Seconds after its start until which the job begins rounds of its list; the run has the others
            measured elsewhere.
        idle_s: Seconds without a round after which the job ends.

    Raises:
        Exception: The first one that a round raised, after the last round; or at once SLURM's warning that it is going
            to end the job.
    """
    begin_before, errors = time.monotonic() + begin_within_s, list[Exception]()
    rounds: Iterable[tuple[str, int]] = [(round_dir, number)]
    if further_dir is not None:
        rounds = _listed_rounds(RoundLayout(Path(round_dir), number), Path(further_dir), begin_before, idle_s)
    for place, index in rounds:
        try:
            work(place, index)
        except slurm_job.JobEndingError:
            raise
        except Exception as error:
            traceback.print_exc()
            errors.append(error)
    if errors:
        raise errors[0]


def _listed_rounds(
    first: RoundLayout, further_dir: Path, begin_before: float, idle_s: float
) -> Iterator[tuple[str, int]]:
    """Yield directory and number of the first round, then of the listed ones while they may begin; end the list.

    The list belongs to the job that claimed the first round: a submission that was repeated may have made two.
    """
    yield str(first.dir), first.round
    if claiming_job_id(first) != slurm_job.own_job_id():
        return
    further, index, idle_since = FurtherRounds(further_dir), 1, time.monotonic()
    while True:
        entry, now = further.read(index), time.monotonic()
        if entry is None and (now > begin_before or now - idle_since > idle_s):
            entry = further.add(index, END)
        if entry is None:
            time.sleep(LIST_POLL_S)
        elif entry.round_dir is None or entry.round is None:
            return
        else:
            index += 1
            if now <= begin_before:
                yield entry.round_dir, entry.round
                idle_since = time.monotonic()


def work(round_dir: str, number: int) -> None:
    """Measure the round that the order in `round_dir` describes, unless it is cancelled or claimed by another job.

    A round that this job finished before it was requeued is left as it is.

    Removing the order cancels the round, also while it runs: `scancel` may not have reached the job.
    """
    layout = RoundLayout(Path(round_dir), number)
    order = read_order(layout)
    if order is None or not _claim(layout, slurm_job.own_job_id()):
        return
    if layout.metrics.exists():
        _complete_pointer(order, layout)
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
        if isinstance(error, RoundTimeLimitError | slurm_job.JobEndingError) and not is_cancelled():
            minutes = slurm.minutes(order.options["time"])
            reason = f"SLURM job {slurm_job.own_job_id()}: time limit of {minutes} minutes reached"
            runner.record_failed_round(order.config, "killed_by_safety", reason, "time limit")
        raise


def _complete_pointer(order: JobOrder, layout: RoundLayout) -> None:
    """Write the pointer of a round that was measured before this job was requeued, unless the round is recorded."""
    worktree_dir = None if order.config.code_cwd is None else Path(order.config.code_cwd)
    if worktree_dir is None or not worktree_dir.is_dir() or (worktree_dir / pointer_on_branch(layout.round)).exists():
        return
    runner.record_failed_round(order.config, "train_error", "the job ended before it had written the pointer")


@contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    """Raise RoundTimeLimitError in the context after this time; the limit of a job with several rounds is later."""

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
