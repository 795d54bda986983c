"""Executor with one SLURM job per round; rounds that are ready together are elements of one job array.

The job order is written before the job is submitted, so that a later process finds the job; the round's files decide
whether it finished. A verification is a job of its own (`slurm_verification`); the run's secret stays in the process
that holds the run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from autoqec.contracts.events import JobReported, OnEvent
from autoqec.contracts.job import JobOrder
from autoqec.contracts.profiles import Profile, profile_of
from autoqec.contracts.round import FailureCause, RoundMetrics, RunnerConfig
from autoqec.errors import UsageError
from autoqec.installation import IMPORT_DIR
from autoqec.orchestrator import worktree
from autoqec.orchestrator.executors.local import JobsLeftError
from autoqec.orchestrator.executors.slurm_verification import SlurmVerification
from autoqec.orchestrator.failpoint import failpoint
from autoqec.store import atomic
from autoqec.store.layout import shared_with_jobs
from autoqec.store.round_files import read_contract
from autoqec.store.round_layout import RoundLayout, pointer_on_branch
from autoqec.system import machine, sandbox, slurm
from autoqec.system.container import Image

if TYPE_CHECKING:
    from autoqec.contracts.verdict import VerifyReport
    from autoqec.runner.collect import EventForwarder
    from autoqec.verification.request import VerifyRequest

MAX_ARRAY = 500  # elements; clusters allow 1,001 unless configured otherwise
BATCH_WAIT_S = 5.0  # that the first of several rounds waits for the proposals of further ones
POLL_FILES_S, POLL_SLURM_S = 0.5, 5.0  # SLURM less often, since all users share its controller
FILE_LAG_S = 10.0  # after a job ended, until files that its node wrote are visible here
_CAUSES: dict[str, FailureCause] = {
    "TIMEOUT": "time limit",
    "DEADLINE": "time limit",
    "OUT_OF_MEMORY": "out of memory",
}
MARGIN_MIN, MARGIN_GB = 15, 1.0  # so that the round's own limits apply before those of the job


def fill_job_options(options: Mapping[str, str], profile: Profile, threads: int = 1) -> dict[str, str]:
    """Return the `--slurm` options, completed by the time, CPUs and memory that a round of this profile needs."""
    defaults = {
        "time": str(math.ceil(profile.round_wallclock_s / 60) + MARGIN_MIN),
        "cpus": str(threads),
        "mem": f"{math.ceil(1000 * (profile.memory_gb + MARGIN_GB))}M",
    }
    return {**defaults, **options}


class SlurmExecutor:
    """Measures up to `slots` rounds at once, each in a SLURM job.

    Args:
        slots: Jobs at once.
        options: Options of `--slurm`, as returned by `system.slurm.parse`.
        image: Container image in which jobs run.
        leave: Of a detached run, whose jobs are never cancelled by an interrupt: called while a job is awaited; if it
            returns True, JobsLeftError is raised, and the next process awaits the job.
        poll_files_s: Seconds between two checks for the files of a round.
        poll_slurm_s: Seconds between two queries of SLURM.
        file_lag_s: Seconds to wait for the files of a job that has ended.
    """

    def __init__(
        self,
        slots: int = 1,
        options: Mapping[str, str] | None = None,
        *,
        image: Image | None = None,
        leave: Callable[[], bool] | None = None,
        poll_files_s: float = POLL_FILES_S,
        poll_slurm_s: float = POLL_SLURM_S,
        file_lag_s: float = FILE_LAG_S,
    ) -> None:
        self.capacity, self.options, self.image, self.leave = slots, dict(options or {}), image, leave
        self.poll_files_s, self.poll_slurm_s, self.file_lag_s = poll_files_s, poll_slurm_s, file_lag_s
        self.active: list[SlurmRoundFuture] = []
        self._ready: list[SlurmRoundFuture] = []
        self._ready_since = 0.0

    def submit(self, config: RunnerConfig, on_event: OnEvent) -> SlurmRoundFuture:
        """Write the order of a round. Its job is submitted by `flush`, together with those of further rounds."""
        if self._ready and time.monotonic() - self._ready_since >= BATCH_WAIT_S:
            self.flush()
        options = fill_job_options(self.options, profile_of(config.profile, config.scale), config.threads)
        if self.image is not None:
            config = config.model_copy(update={"container": self.image.sha256})
        changes_code = config.modules_dir is not None and not worktree.is_config_only(Path(config.modules_dir))
        order = JobOrder(
            name=_own_name(config),
            options=options,
            code_sha256=machine.code_sha256(),
            needs_sandbox=changes_code and not sandbox.opted_out(),
            config=config,
        )
        future = SlurmRoundFuture(self, order, on_event)
        future.write()
        failpoint("job_ordered")
        if not self._ready:
            self._ready_since = time.monotonic()
        self._ready.append(future)
        self.active.append(future)
        return future

    def flush(self) -> None:
        """Submit the rounds that are ready as one job or array; a refusal is raised by `result` of each of them."""
        while group := self._ready[:MAX_ARRAY]:
            del self._ready[: len(group)]
            enqueue(group)

    def attach(self, order: JobOrder, on_event: OnEvent) -> SlurmRoundFuture:
        """Return the future of a round that an earlier process submitted."""
        future = SlurmRoundFuture(self, order, on_event)
        self.active.append(future)
        return future

    def verify(self, request: VerifyRequest, on_event: OnEvent) -> VerifyReport:
        """Verify a candidate in a job, write its report and return it; an existing report is replayed here."""
        from autoqec.verification import verifier

        options = fill_job_options(self.options, request.profile)
        python = self.python(request.round.dir, options)
        in_job = SlurmVerification(
            options,
            python,
            self.poll_files_s,
            self.poll_slurm_s,
            self.file_lag_s,
            self.while_waiting,
            keeps_jobs=self.leave is not None,
        )
        return verifier.verify(request, on_event=on_event, measure=in_job)

    def python(self, round_dir: Path, options: Mapping[str, str]) -> str | None:
        """Return the command of the Python in the container; None without one.

        Raises:
            UsageError: The image changed since the start of the session.
        """
        if self.image is None:
            return None
        self.image.require_unchanged()
        return self.image.python(shared_with_jobs(round_dir), gpu="gpus" in options or "gres" in options)

    def while_waiting(self) -> None:
        """Forward the progress events of all rounds that jobs measure; raises JobsLeftError if `leave` says so."""
        if self.leave is not None and self.leave():
            raise JobsLeftError
        for future in self.active:
            future.forward()


class SlurmRoundFuture:
    """A round that a SLURM job measures."""

    def __init__(self, executor: SlurmExecutor, order: JobOrder, on_event: OnEvent) -> None:
        self.executor, self.order, self._on_event = executor, order, on_event
        self.layout = RoundLayout(Path(order.config.round_dir), order.config.round_idx)
        self.refusal: UsageError | None = None
        self._last_event: JobReported | None = None
        self._events: EventForwarder | None = None

    def write(self) -> None:
        """Write the job order to the round directory."""
        atomic.write_json(self.layout.job, self.order.dump())

    def result(self) -> RoundMetrics:
        """Wait for the round and return its metrics; without complete files, the state of the job decides.

        Raises:
            UsageError: SLURM rejected the job; its order is withdrawn.
        """
        self.executor.flush()
        last_query = float("-inf")
        while (metrics := self._finished_metrics()) is None:
            if self.refusal is not None:
                self.executor.active.remove(self)
                raise self.refusal
            self.executor.while_waiting()
            if time.monotonic() - last_query >= self.executor.poll_slurm_s:
                job_status = self._query_job()
                last_query = time.monotonic()
                if job_status.life in ("ended", "gone"):
                    metrics = self._final_metrics(job_status)
                    break
            time.sleep(self.executor.poll_files_s)
        self.executor.active.remove(self)
        return metrics

    def cancel(self) -> None:
        """Cancel the job and withdraw its order; a completed round, or any of a detached run, is left as it is."""
        if self.executor.leave is not None or self._finished_metrics() is not None:
            return
        with suppress(ConnectionError):
            number = self.order.job_id or slurm.find_job(self.order.name, self.order.array_index)
            if number is not None:
                slurm.cancel(number)
        self.withdraw_order()

    def withdraw_order(self) -> None:
        """Delete the job order: a job that starts later exits at once, and recovery closes the round."""
        with atomic.storage_errors(self.layout.job):
            self.layout.job.unlink(missing_ok=True)
        atomic.fsync_dir(self.layout.dir)

    def forward(self) -> None:
        """Forward the progress events of the round's child, if its files are visible on this machine."""
        from autoqec.runner.collect import EventForwarder
        from autoqec.runner.spec import SCRATCH_DIR

        if self._events is None:
            self._events = EventForwarder(self.layout.dir / SCRATCH_DIR / "out", self.layout.round, self._on_event)
        self._events.forward()

    def _finished_metrics(self) -> RoundMetrics | None:
        """Return the metrics if the round is complete: the pointer in the worktree is the last file that it writes."""
        worktree_dir = self.order.config.code_cwd
        if worktree_dir is None or not (Path(worktree_dir) / pointer_on_branch(self.layout.round)).exists():
            return None
        return read_contract(self.layout.metrics, RoundMetrics)

    def _query_job(self) -> slurm.Job:
        """Return the state of the job; an order without a job id gets the id of its job, or is submitted."""
        from autoqec.runner import job

        try:
            if self.order.job_id is None:
                found = slurm.find_job(self.order.name, self.order.array_index)
                number = job.claiming_job_id(self.layout) or found
                if number is None:
                    enqueue([self])
                else:
                    self.store_job_id(number)
        except ConnectionError as error:
            job_status = slurm.Job("unreachable", why=str(error))
        else:
            job_status = slurm.query_job(str(self.order.job_id))
        self._report_state(job_status)
        return job_status

    def store_job_id(self, number: str) -> None:
        """Write the id of the job to the order."""
        self.order = self.order.model_copy(update={"job_id": number})
        self.write()

    def _report_state(self, job_status: slurm.Job) -> None:
        phase = {"PENDING": "queued", "RUNNING": "running"}.get(
            job_status.state, job_status.state.lower() or job_status.life
        )
        event = JobReported(
            round=self.layout.round,
            job=self.order.job_id,
            state=job_status.state or job_status.life,
            why=job_status.why,
            phase=phase,
        )
        if event != self._last_event:
            self._last_event = event
            self._on_event(event)

    def _final_metrics(self, job_status: slurm.Job) -> RoundMetrics:
        """Return the metrics of a job that has ended, once its files are visible; otherwise record a failed round."""
        from autoqec.runner import runner

        deadline = time.monotonic() + self.executor.file_lag_s
        while (metrics := self._finished_metrics()) is None and time.monotonic() < deadline:
            time.sleep(self.executor.poll_files_s)
        if metrics is not None:
            return metrics
        over_limit = job_status.state in slurm.LIMIT_STATES
        return runner.record_failed_round(
            self.order.config,
            "killed_by_safety" if over_limit else "train_error",
            self._failure_reason(job_status),
            _CAUSES.get(job_status.state, "crash"),
        )

    def _failure_reason(self, job_status: slurm.Job) -> str:
        from autoqec.runner.round_process import last_log_line

        number, options = self.order.job_id, self.order.options
        if job_status.life == "gone":
            message = f"SLURM no longer knows job {number}, which left no result"
            return f"{message} ({job_status.why})" if job_status.why else message
        limits = {
            "TIMEOUT": f", asked for time={options['time']}",
            "OUT_OF_MEMORY": f", asked for mem={options['mem']}",
        }
        message = (
            f"SLURM job {number} ended {job_status.state}{limits.get(job_status.state, '')} "
            f"({job_status.why}) and left no result"
        )
        return message + last_log_line(Path(self.order.log_dir or self.layout.job_dir) / f"{number}_0_log.out")


def enqueue(group: list[SlurmRoundFuture]) -> None:
    """Submit rounds as one job, or as one array, and store the ids; a refusal withdraws all orders."""
    from autoqec.runner import job

    first = group[0]
    name, folder = _own_name(first.order.config), first.layout.job_dir
    for index, future in enumerate(group):
        element = index if len(group) > 1 else None
        placed = {"name": name, "array_index": element, "log_dir": None if element is None else str(folder)}
        if placed != future.order.model_dump(include=set(placed)):
            future.order = future.order.model_copy(update=placed)
            future.write()
    arguments = [(str(future.layout.dir), future.layout.round) for future in group]
    options = first.order.options
    try:
        python = first.executor.python(first.layout.dir, options)
        numbers = slurm.submit(
            job.work, arguments, folder=folder, name=name, options=options, package=IMPORT_DIR, python=python
        )
    except BaseException as error:
        for future in group:
            future.withdraw_order()
            future.refusal = error if isinstance(error, UsageError) else None
        if isinstance(error, UsageError):
            return
        raise
    failpoint("job_queued")
    for future, number in zip(group, numbers, strict=True):
        future.store_job_id(number)
    failpoint("job_numbered")


def _own_name(config: RunnerConfig) -> str:
    return f"autoqec-{config.round_idx}-{config.round_attempt_id}"
