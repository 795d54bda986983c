"""Jobs of a cluster that measure several short rounds: which rounds share jobs, and which job gets which round.

A shared job begins with one round. While it runs, it is given further ones, so that it keeps its slot and its imports.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from autoqec.contracts.job import FurtherRound, JobOrder
from autoqec.contracts.round import RoundMetrics, seconds_between
from autoqec.extensions.slurm import submission as slurm
from autoqec.orchestrator.failpoint import failpoint
from autoqec.orchestrator.run import Run
from autoqec.store.further_rounds import END, FurtherRounds
from autoqec.store.layout import RoundLayout
from autoqec.store.round_files import load_contract

if TYPE_CHECKING:
    from autoqec.extensions.slurm.rounds import SlurmRoundFuture

RECENT = 16  # rounds from which the next one is predicted
UNFINISHED = 2  # rounds of a job: one is measured, and the next one begins at once when it ends
IDLE_MIN_S, IDLE_SHARE = 5.0, 0.1  # a job without a round ends after this share of `--batch-below`, but not before
IDLE_LAG_S = 10.0  # after that, until the list of a job that did not end it is ended here: it may be lost

JobKey = tuple[str, int | None]


def begin_within_s(below_s: float) -> float:
    """Return the seconds after its start until which a shared job begins a further round."""
    return 2 * below_s


def idle_s(below_s: float) -> float:
    """Return the seconds without a round after which a shared job ends."""
    return max(IDLE_MIN_S, IDLE_SHARE * below_s)


def shared_options(options: Mapping[str, str], below_s: float) -> dict[str, str]:
    """Return the options of a shared job: the last round that it begins has its whole time limit."""
    if not below_s:
        return dict(options)
    minutes = slurm.minutes(options["time"]) + math.ceil(begin_within_s(below_s) / 60)
    return {**options, "time": str(minutes)}


class SharedJob:
    """A job, or element of a job array, that takes further rounds.

    Attributes:
        is_open: Whether rounds can be added to its list.
        job_id: Its id once it has begun; None before.
        idle_since: When it was first seen without an unfinished round; None if it has any.
    """

    def __init__(self, order: JobOrder) -> None:
        assert order.further_rounds is not None
        self._order, self._list = order, FurtherRounds(Path(order.further_rounds))
        self._next = order.position + 1
        self._may_have_more = False
        self.is_open = True
        self.idle_since: float | None = None
        self.job_id = order.job_id if order.position > 0 else None

    def note_listed(self, order: JobOrder) -> None:
        """Note a round of this job. There may be further ones in its list: those that are recorded."""
        self._next, self._may_have_more = max(self._next, order.position + 1), True
        self.job_id = self.job_id or (order.job_id if order.position > 0 else None)

    def look_at_start(self, others: Iterable[SharedJob]) -> None:
        """Note whether the job has begun its first round, and with which id.

        Args:
            others: All shared jobs.
        """
        from autoqec.runner import job

        config = self._order.config
        claim = job.claiming_job_id(RoundLayout(Path(config.round_dir), config.round_idx))
        if claim is not None and any(other.job_id == claim for other in others):
            self.is_open = False  # another job measures the round as a further one, so that this one ends
        self.job_id = claim

    def look_at_end(self) -> None:
        """Note whether the job has ended its list."""
        while (entry := self._list.read(self._next)) is not None:
            if entry == END or not self._may_have_more:
                self.is_open = False
                return
            self._next += 1
        self._may_have_more = False

    def end(self) -> None:
        """End the list: the job ends when it comes to this entry."""
        self.look_at_end()
        if self.is_open:
            self._try_to_add(END)
            self.is_open = False

    def fits(self, order: JobOrder) -> bool:
        """Return whether the job can measure such a round: with its options, code and container."""
        own = self._order
        return (own.options, own.code_sha256, own.config.container) == (
            order.options,
            order.code_sha256,
            order.config.container,
        )

    def give(self, future: SlurmRoundFuture) -> bool:
        """Add a round to the list; return False if the list has ended.

        The order is written first, so that a later process finds out from the list whether the job has the round.
        """
        if self._may_have_more:
            self.look_at_end()
        if not self.is_open:
            return False
        own = self._order
        future.place(
            name=own.name,
            array_index=own.array_index,
            position=self._next,
            job_id=self.job_id,
            log_dir=own.log_dir,
            batch_time=own.batch_time,
            further_rounds=own.further_rounds,
        )
        failpoint("job_entry_ordered")
        self.is_open = self._try_to_add(FurtherRound(round_dir=str(future.layout.dir), round=future.layout.round))
        if self.is_open:
            self._next += 1
            future.may_have_job, self.idle_since = True, None
            failpoint("job_entry_added")
        return self.is_open

    def _try_to_add(self, entry: FurtherRound) -> bool:
        """Return whether this entry is the next one now; a list that cannot be written counts as ended."""
        try:
            return self._list.add(self._next, entry) == entry
        except OSError:
            return False


def is_listed(order: JobOrder) -> bool:
    """Return whether a round that was placed into the list of a shared job is in it."""
    assert order.further_rounds is not None
    entry = FurtherRounds(Path(order.further_rounds)).read(order.position)
    return entry == FurtherRound(round_dir=str(Path(order.config.round_dir)), round=order.config.round_idx)


class SharedJobs:
    """The shared jobs that may have rounds or take further ones.

    Args:
        below_s: Rounds that are predicted to be shorter share jobs; 0: none do.
    """

    def __init__(self, below_s: float) -> None:
        self.below_s = below_s
        self._jobs: dict[JobKey, SharedJob] = {}

    def __iter__(self) -> Iterator[JobKey]:
        return iter(self._jobs)

    def note(self, order: JobOrder) -> None:
        """Note the job of a round, which was submitted with it or has it in its list."""
        key = order.name, order.array_index
        if key not in self._jobs:
            self._jobs[key] = SharedJob(order)
        self._jobs[key].note_listed(order)

    def forget(self, key: JobKey) -> None:
        """Forget a job that has ended."""
        self._jobs.pop(key, None)

    def look(self, unfinished: Mapping[JobKey, Sequence[SlurmRoundFuture]]) -> list[SlurmRoundFuture]:
        """Find out which jobs have begun or ended their lists; return the rounds that an ended one did not begin.

        Args:
            unfinished: The unfinished rounds of each job, in the order of its list.
        """
        returned: list[SlurmRoundFuture] = []
        for key, shared in [*self._jobs.items()]:
            rounds = unfinished.get(key, ())
            if shared.job_id is None:
                shared.look_at_start(self._jobs.values())
            if shared.job_id is not None and not (rounds and rounds[0].has_begun()):
                shared.look_at_end()
            self._look_whether_idle(shared, bool(rounds))
            if not shared.is_open:
                self.forget(key)
                returned += [future for future in rounds if future.order.position > 0 and not future.has_begun()]
        return returned

    def _look_whether_idle(self, shared: SharedJob, has_rounds: bool) -> None:
        now = time.monotonic()
        if has_rounds:
            shared.idle_since = None
        elif shared.idle_since is None:
            shared.idle_since = now
        elif shared.is_open and now - shared.idle_since > idle_s(self.below_s) + IDLE_LAG_S:
            shared.end()

    def give(
        self, ready: Sequence[SlurmRoundFuture], unfinished: Mapping[JobKey, Sequence[SlurmRoundFuture]]
    ) -> list[SlurmRoundFuture]:
        """Give rounds to running jobs, first to those with the fewest; return the rounds that a job has now."""
        given: list[SlurmRoundFuture] = []
        self._look_at_starts_of_idle(unfinished)
        counts = {key: len(unfinished.get(key, ())) for key, shared in self._jobs.items() if shared.job_id is not None}
        for future in ready:
            free = [key for key, count in counts.items() if count < UNFINISHED and self._jobs[key].fits(future.order)]
            for key in sorted(free, key=lambda key: counts[key]):
                if self._jobs[key].is_open and self._jobs[key].give(future):
                    counts[key] += 1
                    given.append(future)
                    break
        return given

    def end_idle(self, unfinished: Mapping[JobKey, Sequence[SlurmRoundFuture]]) -> None:
        """End the jobs that have no round, so that a job for other rounds can have their slots."""
        self._look_at_starts_of_idle(unfinished)
        for key, shared in [*self._jobs.items()]:
            if key not in unfinished and shared.job_id is not None:
                shared.end()
                self.forget(key)

    def _look_at_starts_of_idle(self, unfinished: Mapping[JobKey, Sequence[SlurmRoundFuture]]) -> None:
        """Note the jobs that have begun and ended a round since the last look."""
        for key, shared in self._jobs.items():
            if key not in unfinished and shared.job_id is None:
                shared.look_at_start(self._jobs.values())


class RoundDuration:
    """Predicts the seconds that a job needs for a round: the mean of the latest measured ones of the run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._seconds: dict[str, float | None] = {}

    def __call__(self) -> float | None:
        """Return the predicted seconds; None while no round was measured."""
        latest: list[float] = []
        for attempt_id, state in reversed([*self._run.memory.state.rounds.items()]):
            if len(latest) == RECENT:
                break
            if attempt_id not in self._seconds:
                self._seconds[attempt_id] = _measured_seconds(self._run, state.row.round)
            seconds = self._seconds[attempt_id]
            if seconds is not None:
                latest.append(seconds)
        return fmean(latest) if latest else None


def _measured_seconds(run: Run, number: int) -> float | None:
    metrics = load_contract(run.layout.round(number).metrics, RoundMetrics)
    return None if metrics is None else seconds_between(metrics.measurement_started_at, metrics.measurement_finished_at)
