"""Executor that measures each round, and verifies each candidate, in a SLURM job of its own.

The order of a round is written before its job is submitted, so that a later process finds the job; the round's files
decide whether it finished. The run's secret stays in the process that holds the run: the job of a verification gets
seeds derived for its candidate.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoqec.contracts.events import JobReported, OnEvent
from autoqec.contracts.job import JobOrder
from autoqec.contracts.profiles import Profile, profile_of
from autoqec.contracts.round import FailureCause, RoundMetrics, RunnerConfig
from autoqec.errors import UsageError
from autoqec.extensions.slurm import job as work
from autoqec.extensions.slurm import submission
from autoqec.extensions.slurm.container import Image
from autoqec.extensions.slurm.jobs import LIMIT_STATES, Job, Polling, WatchedJob, cancel, find_jobs
from autoqec.orchestrator import worktree
from autoqec.orchestrator.executors import JobsLeftError
from autoqec.orchestrator.failpoint import failpoint
from autoqec.runner import runner
from autoqec.runner.collect import EventForwarder
from autoqec.runner.round_process import last_log_line
from autoqec.runner.spec import SCRATCH_DIR
from autoqec.store import atomic
from autoqec.store.layout import RoundLayout, pointer_on_branch, shared_with_jobs
from autoqec.store.round_files import read_contract
from autoqec.system import machine, sandbox

if TYPE_CHECKING:
    from autoqec.contracts.verdict import VerifyReport
    from autoqec.verification.request import VerifyRequest

NAME = "slurm"
ARRAY_WAIT_S = 2.0  # that the first of several rounds waits for the proposals of further ones
_CAUSES: dict[str, FailureCause] = {
    "TIMEOUT": "time limit",
    "DEADLINE": "time limit",
    "OUT_OF_MEMORY": "out of memory",
}


def fill_job_options(options: Mapping[str, str], profile: Profile, threads: int = 1) -> dict[str, str]:
    """Return the `--slurm` options, completed by the time, CPUs and memory that a round of this profile needs."""
    defaults = {
        "time": str(math.ceil(profile.round_wallclock_s / 60) + submission.MARGIN_MIN),
        "cpus": str(threads),
        "mem": f"{math.ceil(1000 * (profile.memory_gb + submission.MARGIN_GB))}M",
    }
    return {**defaults, **options}


def job_reported(number: int, job_id: str | None, state: Job, phase: str) -> JobReported:
    """Return the event about the state of a job of round `number`."""
    return JobReported(round=number, job=job_id, state=state.state or state.life, why=state.why, phase=phase)


class SlurmExecutor:
    """Measures rounds in up to `slots` SLURM jobs at once; rounds that are ready together are one job array.

    Args:
        slots: Jobs at once.
        options: Options of `--slurm`, as `parse_options` returns them.
        image: Container image in which jobs run.
        leave: Of a detached run, whose jobs are never cancelled by an interrupt: called while a job is awaited; if it
            returns True, JobsLeftError is raised, and the next process awaits the job.
        polling: How often jobs are looked at.
    """

    def __init__(
        self,
        slots: int = 1,
        options: Mapping[str, str] | None = None,
        *,
        image: Image | None = None,
        leave: Callable[[], bool] | None = None,
        polling: Polling | None = None,
    ) -> None:
        self.slots, self.options, self.image, self.leave = slots, dict(options or {}), image, leave
        self.polling = polling or Polling()
        self.active: list[SlurmRound] = []
        self.answers = True  # whether SLURM did when a job was cancelled
        self._ready: list[SlurmRound] = []  # those of the active rounds that are not submitted
        self._ready_since = 0.0
        self._unanswered_at = float("-inf")  # when SLURM did not say which rounds have a job

    @cached_property
    def _code_sha256(self) -> str:
        return machine.code_sha256()

    @property
    def capacity(self) -> int:
        """Rounds in progress: those of jobs, and up to as many that are complete and wait for an earlier one.

        Rounds are recorded in the order of their start, so that slots would else stay empty while the oldest round is
        measured.
        """
        complete = [future.is_complete() for future in self.active]
        return self.slots + (0 if complete[:1] == [True] else min(self.slots, sum(complete)))

    def submit(self, config: RunnerConfig, on_event: OnEvent) -> SlurmRound:
        """Submit the round, at the latest when its result is requested."""
        options = fill_job_options(self.options, profile_of(config.profile, config.scale), config.threads)
        if self.image is not None:
            config = config.model_copy(update={"container": self.image.sha256})
        changes_code = config.modules_dir is not None and not worktree.is_config_only(Path(config.modules_dir))
        order = JobOrder(
            executor=NAME,
            name=f"autoqec-{config.round_idx}-{config.round_attempt_id}",
            options=options,
            code_sha256=self._code_sha256,
            needs_sandbox=changes_code and not sandbox.opted_out(),
            config=config,
        )
        future = SlurmRound(self, order, on_event)
        self.active.append(future)
        if not self._ready:
            self._ready_since = time.monotonic()
        self._ready.append(future)
        if time.monotonic() - self._ready_since >= ARRAY_WAIT_S:
            self.flush()
        return future

    def attach(self, order: JobOrder, on_event: OnEvent) -> SlurmRound:
        """Return the future of a round that an earlier process submitted, or was about to."""
        future = SlurmRound(self, order, on_event)
        self.active.append(future)
        if future.job is None:
            future.may_have_job = True
            self._ready.append(future)
        return future

    def flush(self) -> None:
        """Submit the rounds that are ready. A refusal is raised by `result` of each of them."""
        if time.monotonic() - self._unanswered_at < self.polling.slurm_s:
            return
        for future in [future for future in self._ready if future.may_have_job]:
            try:
                job_id = work.claiming_job_id(future.layout) or find_jobs(future.order.name).get(
                    future.order.array_index
                )
            except ConnectionError as error:
                future.report(Job("unreachable", why=str(error)))
                self._unanswered_at = time.monotonic()
                return
            if job_id is not None:
                self._ready.remove(future)
                future.watch(job_id)
        while self._ready:
            same = [future for future in self._ready if future.order.options == self._ready[0].order.options]
            self._submit_array(same[: submission.MAX_ARRAY])

    def _submit_array(self, rounds: list[SlurmRound]) -> None:
        self._ready = [future for future in self._ready if future not in rounds]
        first = rounds[0]
        name = f"autoqec-{first.layout.round}-{first.order.config.round_attempt_id}"
        placed: dict[str, Any] = {"name": name, "job_id": None, "log_dir": str(first.layout.job_dir)}
        for index, future in enumerate(rounds):
            future.write_order(**placed, array_index=index if len(rounds) > 1 else None)
        failpoint("job_ordered")
        try:
            job_ids = submission.submit(
                work.measure_round,
                [(str(future.layout.dir), future.layout.round) for future in rounds],
                folder=first.layout.job_dir,
                name=name,
                options=first.order.options,
                python=self.python(first.layout.dir, first.order.options),
            )
        except BaseException as error:
            for future in rounds:
                future.withdraw_order()
                future.refusal = error
            if not isinstance(error, UsageError):
                raise
            return
        failpoint("job_queued")
        for future, job_id in zip(rounds, job_ids, strict=True):
            future.watch(job_id)
        failpoint("job_numbered")

    def python(self, round_dir: Path, options: Mapping[str, str]) -> str | None:
        """Return the command of the Python in the container; None without one."""
        if self.image is None:
            return None
        self.image.require_unchanged()
        return self.image.python(shared_with_jobs(round_dir), gpu="gpus" in options or "gres" in options)

    def while_waiting(self) -> None:
        """Submit rounds that are ready, and forward the progress of the others.

        Raises:
            JobsLeftError: `leave` says so.
        """
        if self.leave is not None and self.leave():
            raise JobsLeftError
        self.flush()
        for future in self.active:
            future.forward_events()

    def verify(self, request: VerifyRequest, on_event: OnEvent) -> VerifyReport:
        """Verify a candidate in a job, write its report and return it; an existing report is replayed here."""
        from autoqec.extensions.slurm import verification  # imports torch

        self.flush()
        return verification.verify(self, request, on_event)


class SlurmRound:
    """A round that a SLURM job measures.

    Attributes:
        job: Its job; None: not known to be submitted.
        may_have_job: Whether an earlier process may have submitted it without noting it.
        refusal: Why no job was submitted; None: one was, or will be.
    """

    def __init__(self, executor: SlurmExecutor, order: JobOrder, on_event: OnEvent) -> None:
        self._executor, self.order, self._on_event = executor, order, on_event
        self.layout = RoundLayout(Path(order.config.round_dir), order.config.round_idx)
        self.job: WatchedJob | None = None
        self.may_have_job = False
        self.refusal: BaseException | None = None
        self._events = EventForwarder(self.layout.dir / SCRATCH_DIR / "out", self.layout.round, on_event)
        if order.job_id is not None:
            self.watch(order.job_id)

    def write_order(self, **changes: Any) -> None:
        """Write the order, with changed fields, to the round's directory."""
        self.order = self.order.model_copy(update=changes)
        atomic.write_json(self.layout.job, self.order.dump())

    def watch(self, job_id: str) -> None:
        """Await this job from now on, and note its id in the order."""
        if job_id != self.order.job_id:
            self.write_order(job_id=job_id)
        self.job = WatchedJob(job_id, self._executor.polling, self.report)

    def withdraw_order(self) -> None:
        """Delete the order: a job that starts later exits at once, and recovery closes the round."""
        with atomic.storage_errors(self.layout.job):
            self.layout.job.unlink(missing_ok=True)
        atomic.fsync_dir(self.layout.dir)

    def result(self, may_start: Callable[[], bool] = lambda: False) -> RoundMetrics | None:
        """Wait for the round and return its metrics; without complete files, the state of its job decides.

        Args:
            may_start: Called meanwhile; None is returned once it says that a further round may start.

        Raises:
            UsageError: SLURM rejected the job; its order is withdrawn.
        """
        executor = self._executor
        while (metrics := self._finished_metrics()) is None:
            executor.while_waiting()
            if self.refusal is not None:
                executor.active.remove(self)
                raise self.refusal
            if self.job is not None and self.job.poll() is not None and (metrics := self._failed_metrics(self.job)):
                break
            if may_start():
                return None
            time.sleep(executor.polling.files_s)
        executor.active.remove(self)
        return metrics

    def cancel(self) -> None:
        """Cancel the job and withdraw its order; a completed round, or any of a detached run, is left as it is.

        If SLURM does not answer, it is not asked for the other rounds: each question may take a minute.
        """
        executor = self._executor
        if executor.leave is not None or self._finished_metrics() is not None:
            return
        job_id = work.claiming_job_id(self.layout) or self.order.job_id
        if job_id is not None and executor.answers and not cancel(job_id):
            executor.answers = False
            self.report(Job("unreachable", why="jobs end by themselves, their orders are withdrawn"))
        self.withdraw_order()

    def forward_events(self) -> None:
        """Forward the progress of the round's child, as far as visible here."""
        self._events.forward()

    def is_complete(self) -> bool:
        """Return whether the round left all of its files; the last one is the pointer in the worktree."""
        worktree_dir = self.order.config.code_cwd
        return worktree_dir is not None and atomic.is_visible(Path(worktree_dir) / pointer_on_branch(self.layout.round))

    def _finished_metrics(self) -> RoundMetrics | None:
        return read_contract(self.layout.metrics, RoundMetrics) if self.is_complete() else None

    def report(self, state: Job) -> None:
        """Emit an event about the state of the job."""
        phases = {"PENDING": "queued", "RUNNING": "running"}
        phase = phases.get(state.state, state.state.lower() or state.life)
        self._on_event(job_reported(self.layout.round, self.order.job_id, state, phase))

    def _failed_metrics(self, job: WatchedJob) -> RoundMetrics | None:
        """Record a round whose job has ended and left no files.

        None: another job began the round, and is awaited from now on, because a submission without an answer may be
        accepted after all, so that there are two jobs.
        """
        claim = work.claiming_job_id(self.layout)
        if claim is not None and claim != self.order.job_id:
            self.watch(claim)
            return None
        ended, options = job.ended, self.order.options
        assert ended is not None
        limits = {"TIMEOUT": f"; --slurm time={options['time']}", "OUT_OF_MEMORY": f"; --slurm mem={options['mem']}"}
        log = Path(self.order.log_dir or self.layout.job_dir) / f"{job.job_id}_0_log.out"
        return runner.record_failed_round(
            self.order.config,
            "killed_by_safety" if ended.state in LIMIT_STATES else "train_error",
            f"{job.describe_end()}{limits.get(ended.state, '')}{last_log_line(log)}",
            _CAUSES.get(ended.state, "crash"),
        )
