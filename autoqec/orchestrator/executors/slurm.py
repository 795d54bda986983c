"""Executor with one SLURM job per round, or per batch of short rounds; what is ready together is one job array.

A verification is a job of its own (`slurm_verification`); the run's secret stays in the process that holds the run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from autoqec.contracts.events import OnEvent
from autoqec.contracts.job import JobOrder
from autoqec.contracts.profiles import Profile, profile_of
from autoqec.contracts.round import RunnerConfig
from autoqec.orchestrator import worktree
from autoqec.orchestrator.executors.batches import batch_options, batch_size, begin_within_s
from autoqec.orchestrator.executors.local import JobsLeftError
from autoqec.orchestrator.executors.slurm_round import SlurmRoundFuture, enqueue, own_name
from autoqec.orchestrator.executors.slurm_verification import SlurmVerification
from autoqec.orchestrator.failpoint import failpoint
from autoqec.store.layout import shared_with_jobs
from autoqec.system import machine, sandbox, slurm
from autoqec.system.container import Image

if TYPE_CHECKING:
    from autoqec.contracts.verdict import VerifyReport
    from autoqec.verification.request import VerifyRequest

MAX_ARRAY = 500  # elements; clusters allow 1,001 unless configured otherwise
ARRAY_WAIT_S = 2.0  # that the first of several rounds waits for the proposals of further ones
BATCH_WAIT = 1 / 20  # of `batch_below_s`, likewise for a batch: in this time a slot may be empty
POLL_FILES_S, POLL_SLURM_S = 0.5, 5.0  # SLURM less often, since all users share its controller
SUBMIT_EVERY_S = 1.0  # at least, while the run waits: rounds for slots that get free within a second share an array
AHEAD = 1 / 8  # rounds per slot that wait for a free one; each is one that the next proposal does not know
FILE_LAG_S = 10.0  # after a job ended, until files that its node wrote are visible here
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
    """Measures rounds in up to `slots` SLURM jobs at once.

    Rounds that are predicted to be shorter than `batch_below_s` share a job, up to that duration together. They wait
    until their number is complete, for `BATCH_WAIT` of that duration, or until the run waits for a result; then those
    that are ready share the free slots, since an empty slot costs more than a further job.

    Args:
        slots: Jobs at once.
        options: Options of `--slurm`, as returned by `system.slurm.parse`.
        image: Container image in which jobs run.
        leave: Of a detached run, whose jobs are never cancelled by an interrupt: called while a job is awaited; if it
            returns True, JobsLeftError is raised, and the next process awaits the job.
        stop_reason: Called before rounds are submitted; if it returns a reason, `result` raises NotStartedError.
        batch_below_s: Seconds below which rounds share a job; 0: each round has a job of its own.
        predict_s: Predicts the seconds of a round; None: not known.
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
        stop_reason: Callable[[], str | None] = lambda: None,
        batch_below_s: float = 0.0,
        predict_s: Callable[[], float | None] = lambda: None,
        poll_files_s: float = POLL_FILES_S,
        poll_slurm_s: float = POLL_SLURM_S,
        file_lag_s: float = FILE_LAG_S,
    ) -> None:
        self.slots, self.options, self.image, self.leave = slots, dict(options or {}), image, leave
        self.stop_reason, self._batch_below_s, self._predict_s = stop_reason, batch_below_s, predict_s
        self.poll_files_s, self.poll_slurm_s, self.file_lag_s = poll_files_s, poll_slurm_s, file_lag_s
        self.active: list[SlurmRoundFuture] = []  # in the order of their rounds
        self.ready: list[SlurmRoundFuture] = []  # those that are not submitted
        self.answers = True  # whether SLURM did when a job was cancelled
        self._ready_since = self._submitted_at = 0.0
        self._unanswered_at = float("-inf")  # when SLURM did not say which rounds have a job

    @property
    def capacity(self) -> int:
        """Rounds in progress: a batch per job, and while the oldest round is measured, some in place of others.

        Rounds are recorded in the order in which they started. Without further ones, slots would stay empty until the
        oldest round ends: 26% of the time with 64 slots and rounds of 2 to 5 units of time. At most twice as many are
        in progress as fit the slots, because proposals do not know their results.
        """
        size = self._batch_size()
        if not self.active or self.slots == 1 or self.active[0].is_complete():
            return self.slots * size
        wanted = (self.slots + math.ceil(self.slots * AHEAD)) * size + sum(one.complete for one in self.active)
        return min(wanted, 2 * self.slots * size)

    def _batch_size(self) -> int:
        return batch_size(self._batch_below_s, self._predict_s()) if self._batch_below_s else 1

    def submit(self, config: RunnerConfig, on_event: OnEvent) -> SlurmRoundFuture:
        """Write the order of a round. Its job is submitted by `flush`, together with those of further rounds."""
        self._look_at_jobs()
        waited_s = time.monotonic() - self._ready_since
        if self.ready and waited_s >= ARRAY_WAIT_S:
            self.flush(partial=waited_s >= BATCH_WAIT * self._batch_below_s)
        options = fill_job_options(self.options, profile_of(config.profile, config.scale), config.threads)
        if self.image is not None:
            config = config.model_copy(update={"container": self.image.sha256})
        changes_code = config.modules_dir is not None and not worktree.is_config_only(Path(config.modules_dir))
        order = JobOrder(
            name=own_name(config),
            options=options,
            code_sha256=machine.code_sha256(),
            needs_sandbox=changes_code and not sandbox.opted_out(),
            config=config,
        )
        future = SlurmRoundFuture(self, order, on_event)
        future.write()
        failpoint("job_ordered")
        self.active.append(future)
        self._add_ready(future)
        return future

    def _add_ready(self, future: SlurmRoundFuture) -> None:
        if not self.ready:
            self._ready_since = time.monotonic()
        self.ready.append(future)
        self.ready.sort(key=lambda one: one.layout.round)

    def flush(self, *, partial: bool = False, awaited: SlurmRoundFuture | None = None, is_last: bool = False) -> None:
        """Submit the rounds that are ready, while there are less than `slots` jobs; not if the run is to end.

        A refusal is raised by `result` of each of them.

        Args:
            partial: Also submit batches that are not complete.
            awaited: The round for whose result the run waits; once it is complete, a further round will be ready.
            is_last: Whether no further round will be ready.
        """
        if not self._find_jobs_of_ready() or self.stop_reason() is not None:
            return
        while self.ready and (elements := self._next_elements(partial, awaited, is_last)):
            self.ready = [future for future in self.ready if not any(future in element for element in elements)]
            options, is_batch = elements[0][0].order.options, any(len(element) > 1 for element in elements)
            below_s = self._batch_below_s if is_batch else 0.0
            self._submitted_at = time.monotonic()
            enqueue(elements, batch_options(options, below_s), begin_within_s(below_s))

    def _next_elements(
        self, partial: bool, awaited: SlurmRoundFuture | None, is_last: bool
    ) -> list[list[SlurmRoundFuture]]:
        """Return the rounds of each element of the next array, spread so that early rounds end first."""
        same = [future for future in self.ready if future.order.options == self.ready[0].order.options]
        size, free_slots = self._batch_size(), self._free_slots()
        if is_last:  # or a few slots would have all that is left
            size = min(size, math.ceil(len(same) / self.slots))
        count = len(same) // size
        if partial and not (awaited is not None and awaited.is_complete()):
            count = max(count, min(len(same), free_slots))
        count = min(count, free_slots, MAX_ARRAY)
        rounds = same[: count * size]
        return [rounds[index::count] for index in range(count)]

    def _free_slots(self) -> int:
        ready = set(self.ready)
        jobs = {future.job_key for future in self.active if future not in ready and not future.complete}
        # The oldest round is awaited, and jobs of later ones may have ended without their files.
        awaited = bool(self.ready) and self.ready[0] is self.active[0]
        return max(self.slots - len(jobs), int(awaited))

    def _find_jobs_of_ready(self) -> bool:
        """Find out which rounds an earlier process submitted without noting it; return whether SLURM answers."""
        unknown = [future for future in self.ready if future.may_have_job]
        if unknown and time.monotonic() - self._unanswered_at < self.poll_slurm_s:
            return False
        for future in unknown:
            try:
                number = future.find_job()
            except ConnectionError as error:
                future.report_state(slurm.Job("unreachable", why=str(error)))
                self._unanswered_at = time.monotonic()
                return False
            if number is None:
                future.may_have_job = False
            else:
                self.ready.remove(future)
                future.store_job_id(number)
        return True

    def submit_rest_of_batch(self, job_id: str) -> None:
        """Make those rounds ready again that a job which has ended did not begin."""
        for future in self.active:
            unfinished = future.order.job_id == job_id and future not in self.ready and not future.is_complete()
            if unfinished and future.claiming_job_id() is None:
                future.may_have_job = False
                self._add_ready(future)

    def attach(self, order: JobOrder, on_event: OnEvent) -> SlurmRoundFuture:
        """Return the future of a round that an earlier process submitted, or was about to."""
        future = SlurmRoundFuture(self, order, on_event)
        future.may_have_job = True
        self.active.append(future)
        if order.job_id is None:
            self._add_ready(future)
        return future

    def verify(self, request: VerifyRequest, on_event: OnEvent) -> VerifyReport:
        """Verify a candidate in a job, write its report and return it; an existing report is replayed here."""
        from autoqec.verification import verifier

        self.flush(partial=True)
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

    def while_waiting(self, awaited: SlurmRoundFuture | None = None, is_last: bool = False) -> None:
        """Forward the progress of all rounds in jobs, submit those that are ready if there is a free slot.

        Args:
            awaited: See `flush`.
            is_last: See `flush`.

        Raises:
            JobsLeftError: `leave` says so.
        """
        if self.leave is not None and self.leave():
            raise JobsLeftError
        self._look_at_jobs()
        if self.ready and time.monotonic() - self._submitted_at >= min(SUBMIT_EVERY_S, self.poll_slurm_s):
            self.flush(partial=True, awaited=awaited, is_last=is_last)

    def _look_at_jobs(self) -> None:
        """Forward progress, and note which rounds are complete.

        A job measures its rounds in their order, so that only the first one that is not complete can have news.
        """
        ready, seen = set(self.ready), set[tuple[str, int | None]]()
        for future in self.active:
            if not future.complete and future not in ready and future.job_key not in seen and not future.look():
                seen.add(future.job_key)
