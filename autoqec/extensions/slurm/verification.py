"""Verification of a candidate in a SLURM job, which gets seeds derived for this candidate and not the run's secret."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from autoqec.contracts.events import JobReported, OnEvent, ignore
from autoqec.errors import InfrastructureError
from autoqec.extensions.slurm import submission as slurm
from autoqec.installation import IMPORT_DIR
from autoqec.store.layout import RoundLayout

if TYPE_CHECKING:
    from autoqec.contracts.verdict import VerifyReport
    from autoqec.contracts.verification_job import VerificationOrder
    from autoqec.verification.request import VerifyRequest

VERIFICATION_CPUS = 2  # two candidate processes
REMOVALS, REMOVE_EVERY_S = 50, 0.02  # of the files of a verification


@dataclass(frozen=True)
class SlurmVerification:
    """Measures candidates in jobs, one at a time.

    Attributes:
        options: Options of the jobs.
        python: Command of the Python in a container; None without one.
        poll_files_s: Seconds between two checks for the result.
        poll_slurm_s: Seconds between two queries of SLURM.
        file_lag_s: Seconds to wait for the result of a job that has ended.
        while_waiting: Called between two checks.
        keeps_jobs: Whether an interrupt leaves the job to the next process instead of cancelling it.
    """

    options: Mapping[str, str]
    python: str | None
    poll_files_s: float
    poll_slurm_s: float
    file_lag_s: float
    while_waiting: Callable[[], None] = lambda: None
    keeps_jobs: bool = False

    def __call__(self, request: VerifyRequest, *, on_event: OnEvent | None = None) -> VerifyReport:
        """Verify in a job and return its report; the job of an earlier process for the same test is awaited.

        Raises:
            UsageError: SLURM rejects the job.
            InfrastructureError: The job ended without a result.
            ContractError: The result is not signed for this order, or the candidate's files do not belong together.
        """
        from autoqec.verification import job

        layout = request.round
        name = f"autoqec-verify-{layout.round}-{request.round_attempt_id}-{request.attempt_index}"
        unfinished = job.unfinished_order(request)
        if unfinished is not None and unfinished.name != name:
            _cancel(unfinished.name)
            unfinished = None
        order = unfinished or self._write(request, name)
        try:
            report = self._await(layout, order, job.signing_key(_secret_of(request), order), on_event or ignore)
        except BaseException as error:
            if self.keeps_jobs and isinstance(error, KeyboardInterrupt):
                raise
            _cancel(name)
            _remove(layout.verification_dir)
            raise
        _remove(layout.verification_dir)
        return report

    def _write(self, request: VerifyRequest, name: str) -> VerificationOrder:
        from autoqec.verification import job

        options = dict(self.options)
        options["cpus"] = str(max(VERIFICATION_CPUS, int(options.get("cpus", "1"))))
        order = job.make_order(request, name, options)
        job.write_order(request.round, order, job.derive_seeds(request, order))
        return order

    def _await(self, layout: RoundLayout, order: VerificationOrder, key: str, on_event: OnEvent) -> VerifyReport:
        from autoqec.verification import job

        number = self._submit_once(layout, order)
        last_query, last_state = float("-inf"), ""
        while (report := job.read_result(layout, order, key)) is None:
            self.while_waiting()
            if time.monotonic() - last_query >= self.poll_slurm_s:
                status, last_query = slurm.query_job(number), time.monotonic()
                if status.state != last_state:
                    last_state = status.state
                    state = status.state or status.life
                    on_event(
                        JobReported(round=layout.round, job=number, state=state, why=status.why, phase="verifying")
                    )
                if status.life in ("ended", "gone"):
                    return self._last_result(layout, order, key, number, status)
            time.sleep(self.poll_files_s)
        return report

    def _submit_once(self, layout: RoundLayout, order: VerificationOrder) -> str:
        """Return the id of the job of the order, which is submitted unless an earlier process did so."""
        from autoqec.verification import job

        while True:
            with suppress(ConnectionError):
                found = slurm.find_job(order.name)
                if found is not None:
                    return found
                (number,) = slurm.submit(
                    job.work,
                    [(str(layout.dir.resolve()), layout.round)],
                    folder=layout.verification_dir / job.LOGS,
                    name=order.name,
                    options=order.options,
                    package=IMPORT_DIR,
                    python=self.python,
                )
                return number
            time.sleep(self.poll_slurm_s)

    def _last_result(
        self, layout: RoundLayout, order: VerificationOrder, key: str, number: str, status: slurm.Job
    ) -> VerifyReport:
        """Return the report of a job that has ended, once its file is visible here."""
        from autoqec.runner.round_process import last_log_line
        from autoqec.verification import job

        deadline = time.monotonic() + self.file_lag_s
        while (report := job.read_result(layout, order, key)) is None:
            if time.monotonic() >= deadline:
                state = f"ended {status.state}" if status.life == "ended" else "is no longer known to SLURM"
                message = f"SLURM job {number} {state} ({status.why or 'no reason given'}) and left no report"
                raise InfrastructureError(
                    message + last_log_line(layout.verification_dir / job.LOGS / f"{number}_0_log.out"),
                    location=f"round {layout.round}",
                    hint=f"autoqec verify {layout.dir}",
                )
            time.sleep(self.poll_files_s)
        return report


def _remove(directory: Path) -> None:
    """Remove a directory to which the ending job may add the file that says so."""
    for _ in range(REMOVALS):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
        time.sleep(REMOVE_EVERY_S)


def _cancel(name: str) -> None:
    with suppress(ConnectionError):
        number = slurm.find_job(name)
        if number is not None:
            slurm.cancel(number)


def _secret_of(request: VerifyRequest) -> bytes:
    assert isinstance(request.secret, bytes)  # only the job has anything else
    return request.secret
