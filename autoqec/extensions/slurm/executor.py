"""Executor that measures rounds in SLURM jobs: one per round, or shared jobs of short rounds, as job arrays.

A verification is a job of its own (`slurm_verification`); the run's secret stays in the process that holds the run.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from autoqec.contracts.events import OnEvent
from autoqec.contracts.job import JobOrder
from autoqec.contracts.profiles import Profile, profile_of
from autoqec.contracts.round import RunnerConfig
from autoqec.extensions.slurm import submission as slurm
from autoqec.extensions.slurm.container import Image
from autoqec.extensions.slurm.rounds import SlurmRoundFuture, enqueue, own_name
from autoqec.extensions.slurm.shared_jobs import (
    UNFINISHED,
    JobKey,
    SharedJobs,
    begin_within_s,
    idle_s,
    is_listed,
    shared_options,
)
from autoqec.extensions.slurm.verification import SlurmVerification
from autoqec.orchestrator import worktree
from autoqec.orchestrator.executors.local import JobsLeftError
from autoqec.orchestrator.failpoint import failpoint
from autoqec.store.layout import shared_with_jobs
from autoqec.system import machine, sandbox

if TYPE_CHECKING:
    from autoqec.contracts.verdict import VerifyReport
    from autoqec.verification.request import VerifyRequest

MAX_ARRAY = 500  # elements; clusters allow 1,001 unless configured otherwise
ARRAY_WAIT_S = 2.0  # that the first of several rounds waits for the proposals of further ones
AWAITED_S = 5.0  # after which the oldest round has a job of its own, although jobs of later ones seem to run
POLL_FILES_S, POLL_SLURM_S = 0.5, 5.0  # SLURM less often, since all users share its controller
LOOK_EVERY_S = 0.25  # at most: each look opens a few files of every job
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

    Rounds that are predicted to be shorter than `batch_below_s` share jobs: each job begins with one, and is given
    further ones while it runs. A job that waits for a round keeps its slot.

    Args:
        slots: Jobs at once.
        options: Options of `--slurm`, as returned by `system.slurm.parse`.
        image: Container image in which jobs run.
        leave: Of a detached run, whose jobs are never cancelled by an interrupt: called while a job is awaited; if it
            returns True, JobsLeftError is raised, and the next process awaits the job.
        stop_reason: Called before rounds are submitted; if it returns a reason, `result` raises NotStartedError.
        batch_below_s: Seconds below which rounds share jobs; 0: each round has a job of its own.
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
        self.shared = SharedJobs(batch_below_s)
        self.poll_files_s, self.poll_slurm_s, self.file_lag_s = poll_files_s, poll_slurm_s, file_lag_s
        self.active: list[SlurmRoundFuture] = []  # in the order of their rounds
        self.ready: list[SlurmRoundFuture] = []  # those that are not submitted
        self.answers = True  # whether SLURM did when a job was cancelled
        self._ready_since = self._submitted_at = 0.0
        self._looked_at = float("-inf")
        self._unanswered_at = float("-inf")  # when SLURM did not say which rounds have a job

    @cached_property
    def _code_sha256(self) -> str:
        return machine.code_sha256()

    @property
    def capacity(self) -> int:
        """Rounds in progress: those of jobs, a few ahead, and while the oldest is measured, some in place of others.

        A shared job has a round that it measures and the next one. Rounds are recorded in the order of their start.
        Without further ones, slots would stay empty until the oldest round ends: 26% of the time with 64 slots and
        rounds of 2 to 5 units of time. The number is limited, because proposals do not know the results of rounds in
        progress.
        """
        per_slot = UNFINISHED if self._shares_jobs() else 1
        if not self.active or self.active[0].is_complete():
            return self.slots * per_slot
        ahead = math.ceil(self.slots * AHEAD) if self.slots > 1 else 0
        wanted = self.slots * per_slot + ahead + sum(one.complete for one in self.active)
        return min(wanted, self.slots * (per_slot + 1))

    def _shares_jobs(self) -> bool:
        """Return whether rounds are predicted to be short enough to share jobs."""
        if not self._batch_below_s:
            return False
        predicted_s = self._predict_s()
        return predicted_s is not None and predicted_s < self._batch_below_s

    def submit(self, config: RunnerConfig, on_event: OnEvent) -> SlurmRoundFuture:
        """Give the round to a running job, or write its order; its job is submitted together with those of others."""
        self._look_at_jobs()
        options = fill_job_options(self.options, profile_of(config.profile, config.scale), config.threads)
        if self.image is not None:
            config = config.model_copy(update={"container": self.image.sha256})
        changes_code = config.modules_dir is not None and not worktree.is_config_only(Path(config.modules_dir))
        order = JobOrder(
            name=own_name(config),
            options=options,
            code_sha256=self._code_sha256,
            needs_sandbox=changes_code and not sandbox.opted_out(),
            config=config,
        )
        future = SlurmRoundFuture(self, order, on_event)
        others_are_ready = bool(self.ready)
        self.active.append(future)
        self._add_ready(future)
        if others_are_ready:  # they are given first; a round that is killed before it has an order is proposed again
            future.write()
            failpoint("job_ordered")
        if self.stop_reason() is None:
            self._give_to_running_jobs()
        if future in self.ready:
            if not others_are_ready:
                future.write()
                failpoint("job_ordered")
            # The others that are proposed soon will be elements of the same array, unless there is no slot for them.
            if time.monotonic() - self._ready_since >= ARRAY_WAIT_S or 0 < self._free_slots() <= len(self.ready):
                self.flush()
        return future

    def _add_ready(self, future: SlurmRoundFuture) -> None:
        if not self.ready:
            self._ready_since = time.monotonic()
        self.ready.append(future)
        self.ready.sort(key=lambda one: one.layout.round)

    def flush(self, *, may_submit: bool = True) -> None:
        """Give rounds that are ready to running jobs, then submit jobs while there are free slots.

        It does neither if the run is to end. A refusal is raised by `result` of each of the rounds.

        Args:
            may_submit: Whether to submit jobs.
        """
        if not self.ready or not self._find_jobs_of_ready() or self.stop_reason() is not None:
            return
        self._give_to_running_jobs()
        while may_submit and (rounds := self._next_array()):
            self.ready = [future for future in self.ready if future not in rounds]
            below_s = self._batch_below_s if self._shares_jobs() else 0.0
            self._submitted_at = time.monotonic()
            limits_s = (begin_within_s(below_s), idle_s(below_s)) if below_s else None
            enqueue(rounds, shared_options(rounds[0].order.options, below_s), limits_s)
            if below_s and rounds[0].refusal is None:
                for future in rounds:
                    self.shared.note(future.order)

    def _next_array(self) -> list[SlurmRoundFuture]:
        """Return the rounds, with the same options, that have a job each in the next array."""
        same = [future for future in self.ready if future.order.options == self.ready[0].order.options]
        return same[: min(self._free_slots(), MAX_ARRAY)]

    def _give_to_running_jobs(self) -> None:
        """Give rounds that are ready to shared jobs; if some fit no job, end the jobs that have no round."""
        unfinished = self._unfinished()
        if self._shares_jobs():
            given = self.shared.give([future for future in self.ready if not future.may_have_job], unfinished)
            self.ready = [future for future in self.ready if future not in given]
            for future in given:
                unfinished.setdefault(future.job_key, []).append(future)
        if self.ready:
            self.shared.end_idle(unfinished)

    def _unfinished(self) -> dict[JobKey, list[SlurmRoundFuture]]:
        """Return the rounds that each job has to measure or measures, in this order."""
        ready, found = set(self.ready), dict[JobKey, list[SlurmRoundFuture]]()
        for future in sorted(self.active, key=lambda one: one.order.position):
            if future not in ready and not future.complete:
                found.setdefault(future.job_key, []).append(future)
        return found

    def _free_slots(self) -> int:
        jobs = {*self._unfinished(), *self.shared}
        # The oldest round is awaited, and jobs of later ones, which SLURM is not asked for, may have ended.
        is_awaited = bool(self.ready) and time.monotonic() - self.ready[0].awaited_since >= AWAITED_S
        return max(self.slots - len(jobs), int(is_awaited))

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
                if future.order.further_rounds is not None:
                    self.shared.note(future.order)
        return True

    def note_end_of_job(self, future: SlurmRoundFuture, *, is_cancelled: bool) -> None:
        """Note the end of a round's job; unless it was cancelled, rounds that it did not begin are ready again."""
        self.shared.forget(future.job_key)
        rounds = [one for one in self.active if one.order.job_id == future.order.job_id and one.order.position > 0]
        if not is_cancelled:
            self._make_ready_again([one for one in rounds if not one.is_complete() and not one.has_begun()])

    def _make_ready_again(self, rounds: Sequence[SlurmRoundFuture]) -> None:
        for future in rounds:
            if future not in self.ready:
                future.may_have_job = False
                self._add_ready(future)

    def attach(self, order: JobOrder, on_event: OnEvent) -> SlurmRoundFuture:
        """Return the future of a round that an earlier process submitted, or was about to."""
        future = SlurmRoundFuture(self, order, on_event)
        future.may_have_job = True
        self.active.append(future)
        is_further = order.further_rounds is not None and order.position > 0
        if is_further and not is_listed(order) and not future.has_begun():
            self._make_ready_again([future])
        elif order.job_id is None:
            self._add_ready(future)
        elif order.further_rounds is not None:
            self.shared.note(order)
        return future

    def verify(self, request: VerifyRequest, on_event: OnEvent) -> VerifyReport:
        """Verify a candidate in a job, write its report and return it; an existing report is replayed here."""
        from autoqec.verification import verifier

        self.flush()
        self.release()  # the job of the verification may need the place of a job that waits for a round
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

    def release(self) -> None:
        """End the shared jobs that have no round."""
        self.shared.end_idle(self._unfinished())

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
        """Forward the progress of all rounds in jobs, and give or submit those that are ready.

        Raises:
            JobsLeftError: `leave` says so.
        """
        if self.leave is not None and self.leave():
            raise JobsLeftError
        self._look_at_jobs()
        self.flush(may_submit=time.monotonic() - self._submitted_at >= min(SUBMIT_EVERY_S, self.poll_slurm_s))

    def _look_at_jobs(self) -> None:
        """Forward progress, and note which rounds are complete and which jobs have begun or end.

        A job measures its rounds in their order, so that only the first one that is not complete can have news.
        """
        if time.monotonic() - self._looked_at < min(LOOK_EVERY_S, self.poll_files_s):
            return
        self._looked_at = time.monotonic()
        for rounds in self._unfinished().values():
            for future in rounds:
                if not future.look():
                    break
        self._make_ready_again(self.shared.look(self._unfinished()))
