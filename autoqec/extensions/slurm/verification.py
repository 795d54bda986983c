"""Verification of a candidate in a SLURM job, which gets seeds derived for this candidate and not the run's secret."""

from __future__ import annotations

import shutil
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from autoqec.contracts.events import OnEvent, ignore
from autoqec.contracts.verdict import VerifyReport
from autoqec.errors import InfrastructureError
from autoqec.extensions.slurm import submission
from autoqec.extensions.slurm.executor import SlurmExecutor, fill_job_options, job_reported
from autoqec.extensions.slurm.jobs import Job, WatchedJob, cancel, find_jobs
from autoqec.runner.round_process import last_log_line
from autoqec.store.layout import RoundLayout
from autoqec.verification import job as work
from autoqec.verification import verifier

if TYPE_CHECKING:
    from autoqec.contracts.verification_job import VerificationOrder
    from autoqec.verification.request import VerifyRequest

VERIFICATION_CPUS = 2  # two candidate processes


def verify(executor: SlurmExecutor, request: VerifyRequest, on_event: OnEvent) -> VerifyReport:
    """Verify a candidate in a job of an executor, write its report and return it.

    Raises:
        UsageError: SLURM rejects the job.
        InfrastructureError: The job ended without a result.
        ContractError: The result is not signed for this order, or the candidate's files do not belong together.
    """
    return verifier.verify(request, on_event=on_event, measure=partial(_measure, executor))


def _measure(executor: SlurmExecutor, request: VerifyRequest, *, on_event: OnEvent | None = None) -> VerifyReport:
    """Return the report of a job; that of an earlier process for the same test is awaited."""
    layout = request.round
    name = f"autoqec-verify-{layout.round}-{request.round_attempt_id}-{request.attempt_index}"
    order = work.unfinished_order(request)
    if order is not None and order.name != name:
        _cancel(order.name)
        order = None
    if order is None:
        options = fill_job_options(executor.options, request.profile)
        options["cpus"] = str(max(VERIFICATION_CPUS, int(options["cpus"])))
        order = work.make_order(request, name, options)
        work.write_order(layout, order, work.derive_seeds(request, order))
    try:
        report = _await(executor, request, order, on_event or ignore)
    except BaseException as error:
        if executor.leave is None or not isinstance(error, KeyboardInterrupt):
            _cancel(name)
            shutil.rmtree(layout.verification_dir, ignore_errors=True)
        raise
    shutil.rmtree(layout.verification_dir, ignore_errors=True)
    return report


def _await(
    executor: SlurmExecutor, request: VerifyRequest, order: VerificationOrder, on_event: OnEvent
) -> VerifyReport:
    assert isinstance(request.secret, bytes)  # only the job has anything else
    layout, key = request.round, work.signing_key(request.secret, order)
    folder = layout.job_dir / "verification"
    job_id = _submit(executor, layout, order, folder)

    def report_state(state: Job) -> None:
        on_event(job_reported(layout.round, job_id, state, "verifying"))

    job = WatchedJob(job_id, executor.polling, report_state)
    while (report := work.read_result(layout, order, key)) is None:
        executor.while_waiting()
        if job.poll() is not None:
            message = job.describe_end() + last_log_line(folder / f"{job_id}_0_log.out")
            raise InfrastructureError(message, location=f"round {layout.round}", hint=f"autoqec verify {layout.dir}")
        time.sleep(executor.polling.files_s)
    return report


def _submit(executor: SlurmExecutor, layout: RoundLayout, order: VerificationOrder, folder: Path) -> str:
    """Return the id of the job of the order, which is submitted unless an earlier process did so."""
    while True:
        with suppress(ConnectionError):
            if (job_id := find_jobs(order.name).get(None)) is not None:
                return job_id
            (job_id,) = submission.submit(
                work.work,
                [(str(layout.dir.resolve()), layout.round)],
                folder=folder,
                name=order.name,
                options=order.options,
                python=executor.python(layout.dir, order.options),
            )
            return job_id
        executor.while_waiting()
        time.sleep(executor.polling.slurm_s)


def _cancel(name: str) -> None:
    """Cancel a job, unless SLURM does not know it or does not answer."""
    with suppress(ConnectionError):
        for job_id in find_jobs(name).values():
            cancel(job_id)
