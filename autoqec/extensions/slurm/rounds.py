"""A round that a SLURM job measures, alone or one after another with further rounds.

The job order is written before the job is submitted, so that a later process finds the job; the round's files decide
whether it finished.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from autoqec.contracts.events import JobReported, OnEvent
from autoqec.contracts.job import JobOrder
from autoqec.contracts.round import FailureCause, RoundMetrics, RunnerConfig
from autoqec.errors import UsageError
from autoqec.extensions.slurm import submission as slurm
from autoqec.installation import IMPORT_DIR
from autoqec.orchestrator.executors.local import NotStartedError
from autoqec.orchestrator.failpoint import failpoint
from autoqec.store import atomic
from autoqec.store.layout import RoundLayout, pointer_on_branch
from autoqec.store.round_files import read_contract

if TYPE_CHECKING:
    from autoqec.runner.collect import EventForwarder

_CAUSES: dict[str, FailureCause] = {
    "TIMEOUT": "time limit",
    "DEADLINE": "time limit",
    "OUT_OF_MEMORY": "out of memory",
}


class RoundJobs(Protocol):
    """What a round needs of its executor, which is documented in `executors.slurm`."""

    leave: Callable[[], bool] | None
    stop_reason: Callable[[], str | None]
    poll_files_s: float
    poll_slurm_s: float
    file_lag_s: float
    active: list[SlurmRoundFuture]
    ready: list[SlurmRoundFuture]
    answers: bool

    def flush(self) -> None:
        """Give the rounds that are ready to running jobs, or submit jobs for them."""
        ...

    def while_waiting(self) -> None:
        """Do what is due while the run waits for a round."""
        ...

    def note_end_of_job(self, future: SlurmRoundFuture, *, is_cancelled: bool) -> None:
        """Note that the job of a round has ended."""
        ...

    def python(self, round_dir: Path, options: Mapping[str, str]) -> str | None:
        """Return the command of the Python in the container; None without one."""
        ...


class SlurmRoundFuture:
    """A round that a SLURM job measures.

    Attributes:
        complete: Whether `look` found the round complete.
        awaited_since: When the run began to wait for the round, by the monotonic clock; infinity before.
    """

    def __init__(self, executor: RoundJobs, order: JobOrder, on_event: OnEvent) -> None:
        self.executor, self.order, self._on_event = executor, order, on_event
        self.layout = RoundLayout(Path(order.config.round_dir), order.config.round_idx)
        self.refusal: UsageError | None = None
        self.may_have_job = self.complete = self._begun = False
        self._last_query, self.awaited_since = float("-inf"), float("inf")
        self._last_event: JobReported | None = None
        self._events: EventForwarder | None = None

    def write(self) -> None:
        """Write the job order to the round directory."""
        atomic.write_json(self.layout.job, self.order.dump())

    def place(self, **placed: Any) -> None:
        """Write to the order which job is going to have the round; `placed` are fields of it."""
        if placed != self.order.model_dump(include=set(placed)):
            self.order = self.order.model_copy(update=placed)
            self.write()

    @property
    def job_key(self) -> tuple[str, int | None]:
        """The job, or element of an array, that has the round."""
        return self.order.name, self.order.array_index

    def result(self) -> RoundMetrics:
        """Wait for the round and return its metrics; raises as `wait`."""
        metrics = self.wait(lambda: False)
        assert metrics is not None
        return metrics

    def wait(self, may_start: Callable[[], bool]) -> RoundMetrics | None:
        """Wait for the round and return its metrics; without complete files, the state of the job decides.

        Args:
            may_start: Called meanwhile; None is returned once it says that a further round may start.

        Raises:
            UsageError: SLURM rejected the job; its order is withdrawn.
            NotStartedError: The run was asked to end before a job had the round; its order is withdrawn.
        """
        executor = self.executor
        executor.flush()
        self.awaited_since = min(self.awaited_since, time.monotonic())
        while (metrics := self._finished_metrics()) is None:
            executor.while_waiting()
            if self.refusal is not None:
                executor.active.remove(self)
                raise self.refusal
            if self in executor.ready:
                self._require_wanted()
            elif self._is_query_due():
                job_status = self._query_job()
                if job_status.life in ("ended", "gone") and (metrics := self._final_metrics(job_status)) is not None:
                    break
            if may_start():
                return None
            time.sleep(executor.poll_files_s)
        executor.active.remove(self)
        return metrics

    def _is_query_due(self) -> bool:
        # A job that was given a further round was running then.
        last = self._last_query if self.order.position == 0 else max(self._last_query, self.awaited_since)
        return time.monotonic() - last >= self.executor.poll_slurm_s

    def _require_wanted(self) -> None:
        """Raise NotStartedError if the run was asked to end, since no job has this round."""
        reason = None if self.may_have_job else self.executor.stop_reason()
        if reason is not None:
            self.executor.ready.remove(self)
            self.executor.active.remove(self)
            self.withdraw_order()
            raise NotStartedError(reason)

    def cancel(self) -> None:
        """Cancel the job and withdraw its order; a completed round, or any of a detached run, is left as it is.

        If SLURM does not answer, it is not asked for the other rounds: each question may take a minute.
        """
        if self.executor.leave is not None or self._finished_metrics() is not None:
            return
        if self.executor.answers:
            self.executor.answers = self._cancel_job()
            if not self.executor.answers:
                self.report_state(slurm.Job("unreachable", why="jobs end by themselves, their orders are withdrawn"))
        self.withdraw_order()

    def _cancel_job(self) -> bool:
        """Cancel the job, if there is one; return whether SLURM answered."""
        try:
            number = self.find_job() if self.may_have_job else None
        except ConnectionError:
            return False
        return number is None or slurm.cancel(number)

    def find_job(self) -> str | None:
        """Return the id of the round's job; None if there is none.

        Raises:
            ConnectionError: SLURM does not answer.
        """
        known = self.claiming_job_id() or self.order.job_id
        return known or slurm.find_job(self.order.name, self.order.array_index)

    def claiming_job_id(self) -> str | None:
        """Return the id of the job that began the round; None if none has."""
        from autoqec.runner import job

        return job.claiming_job_id(self.layout)

    def withdraw_order(self) -> None:
        """Delete the job order: a job that starts later exits at once, and recovery closes the round."""
        with atomic.storage_errors(self.layout.job):
            self.layout.job.unlink(missing_ok=True)
        atomic.fsync_dir(self.layout.dir)

    def has_begun(self) -> bool:
        """Return whether a job has begun the round. The state of a job that began another round first is reported."""
        if not self._begun and self.claiming_job_id() is not None:
            self._begun = True
            if self.order.position > 0:
                self.report_state(slurm.Job("alive", "RUNNING"))
        return self._begun

    def look(self) -> bool:
        """Forward the progress of the round's child, as far as visible here; return whether the round is complete."""
        from autoqec.runner.collect import EventForwarder
        from autoqec.runner.spec import SCRATCH_DIR

        if self._events is None:
            self._events = EventForwarder(self.layout.dir / SCRATCH_DIR / "out", self.layout.round, self._on_event)
        self._events.forward()
        self.complete = self.is_complete()
        return self.complete

    def is_complete(self) -> bool:
        """Return whether the round left all of its files; the last one is the pointer in the worktree."""
        worktree_dir = self.order.config.code_cwd
        pointer = None if worktree_dir is None else Path(worktree_dir) / pointer_on_branch(self.layout.round)
        return pointer is not None and atomic.is_visible(pointer)

    def _finished_metrics(self) -> RoundMetrics | None:
        return read_contract(self.layout.metrics, RoundMetrics) if self.is_complete() else None

    def _query_job(self) -> slurm.Job:
        self._last_query = time.monotonic()
        claim = self.claiming_job_id()
        if claim is not None and claim != self.order.job_id:
            self.store_job_id(claim)
        job_status = slurm.query_job(str(self.order.job_id))
        self.report_state(job_status)
        return job_status

    def store_job_id(self, number: str) -> None:
        """Write the id of the job to the order."""
        self.order = self.order.model_copy(update={"job_id": number})
        self.write()

    def report_state(self, job_status: slurm.Job) -> None:
        """Emit an event if the state of the job changed."""
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

    def _final_metrics(self, job_status: slurm.Job) -> RoundMetrics | None:
        """Return the metrics of a job that has ended, once its files are visible; otherwise record a failed round.

        None: another job began the round, and is awaited from now on (a submission without an answer may be accepted
        after all, so that there are two jobs); or the job ended before it came to this further round, which another job
        will have. The job of a first round that was not begun cannot have worked, and a cancelled one is not to be
        repeated.
        """
        from autoqec.runner import runner

        deadline = time.monotonic() + self.executor.file_lag_s
        while (metrics := self._finished_metrics()) is None and time.monotonic() < deadline:
            time.sleep(self.executor.poll_files_s)
        claim = self.claiming_job_id()
        if metrics is None and claim is not None and claim != self.order.job_id:
            self.store_job_id(claim)
            return None
        is_cancelled = job_status.state == "CANCELLED"
        self.executor.note_end_of_job(self, is_cancelled=is_cancelled)
        if metrics is not None:
            return metrics
        if self.order.position > 0 and not is_cancelled and claim is None:
            return None
        over_limit = job_status.state in slurm.LIMIT_STATES
        return runner.record_failed_round(
            self.order.config,
            "killed_by_safety" if over_limit else "train_error",
            self._failure_reason(job_status),
            _CAUSES.get(job_status.state, "crash"),
        )

    def _failure_reason(self, job_status: slurm.Job) -> str:
        from autoqec.runner.round_process import last_log_line

        number, options, batch_time = self.order.job_id, self.order.options, self.order.batch_time
        if job_status.life == "gone":
            message = f"SLURM no longer knows job {number}, which left no result"
            return f"{message} ({job_status.why})" if job_status.why else message
        limits = {
            "TIMEOUT": f", --slurm time={options['time']}"
            if batch_time is None
            else f", {batch_time} minutes for a job with several rounds",
            "OUT_OF_MEMORY": f", --slurm mem={options['mem']}",
        }
        message = f"SLURM job {number} ended {job_status.state}{limits.get(job_status.state, '')} ({job_status.why})"
        if self.order.position > 0 and self.claiming_job_id() is None:
            return f"{message} before it began this round"
        shared_log = "" if batch_time is None else "; the log of this job of several rounds ends"
        log_line = last_log_line(Path(self.order.log_dir or self.layout.job_dir) / f"{number}_0_log.out")
        return f"{message} and left no result{log_line and shared_log}{log_line}"


def enqueue(
    rounds: Sequence[SlurmRoundFuture], options: Mapping[str, str], limits_s: tuple[float, float] | None
) -> None:
    """Submit rounds as one job, or as one array, and store the ids; a refusal withdraws all orders.

    Args:
        rounds: The first round of each job.
        options: SLURM options of the jobs.
        limits_s: Of jobs that take further rounds: until when they begin them, and how long they wait for one.
    """
    from autoqec.runner import job

    first, arguments = rounds[0], list[tuple[Any, ...]]()
    name, folder, is_array = own_name(first.order.config), first.layout.job_dir, len(rounds) > 1
    for index, future in enumerate(rounds):
        array_index = index if is_array else None
        further = None if limits_s is None else str(first.layout.further_rounds(array_index))
        future.may_have_job = True
        future.place(
            name=name,
            array_index=array_index,
            position=0,
            job_id=None,
            log_dir=str(folder) if is_array or limits_s else None,
            batch_time=options["time"] if limits_s else None,
            further_rounds=further,
        )
        arguments.append((str(future.layout.dir), future.layout.round, further, *(limits_s or ())))
    try:
        python = first.executor.python(first.layout.dir, options)
        numbers = slurm.submit(
            job.work_rounds, arguments, folder=folder, name=name, options=options, package=IMPORT_DIR, python=python
        )
    except BaseException as error:
        for future in rounds:
            future.withdraw_order()
            future.refusal = error if isinstance(error, UsageError) else None
        if isinstance(error, UsageError):
            return
        raise
    failpoint("job_queued")
    for future, number in zip(rounds, numbers, strict=True):
        future.store_job_id(number)
    failpoint("job_numbered")


def own_name(config: RunnerConfig) -> str:
    """Return the name of a job whose first round this is; a round is the first one of at most one accepted job."""
    return f"autoqec-{config.round_idx}-{config.round_attempt_id}"
