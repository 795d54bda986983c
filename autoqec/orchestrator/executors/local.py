"""Where rounds are measured: in this process one after another, or several at once, each in a child of its own.

`orchestration.slurm` is the third: a cluster's job a round.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Protocol

from autoqec.contracts.events import OnEvent, RoundWaiting
from autoqec.contracts.round import RoundMetrics, RunnerConfig

MeasureRound = Callable[[RunnerConfig, OnEvent], RoundMetrics]


class RoundFuture(Protocol):
    """A measurement that was asked for."""

    def result(self) -> RoundMetrics:
        """What was measured, waited for; raises what the measurement raised."""
        ...

    def cancel(self) -> None:
        """Have it end where it would not end with this process."""
        ...


class NotStartedError(Exception):
    """The measurement was cancelled while it waited for a free slot; the message says why."""


class Executor(Protocol):
    """Where rounds are measured. capacity: how many measurements it accepts, waiting ones included."""

    capacity: int

    def submit(self, config: RunnerConfig, on_event: OnEvent) -> RoundFuture: ...


def run_round(config: RunnerConfig, on_event: OnEvent) -> RoundMetrics:
    """The Runner, here. Safe to call for several rounds at once: it touches nothing of the run's."""
    from autoqec.runner import runner

    return runner.run_round(config, on_event=on_event)


class _LazyFuture:
    def __init__(self, task: Callable[[], RoundMetrics]) -> None:
        self._work = task

    def result(self) -> RoundMetrics:
        return self._work()

    def cancel(self) -> None:
        pass


class SerialExecutor:
    """One at a time, in the caller's own thread, when the result is asked for."""

    capacity = 1

    def __init__(self, measure: MeasureRound = run_round) -> None:
        self._measure = measure

    def submit(self, config: RunnerConfig, on_event: OnEvent) -> RoundFuture:
        return _LazyFuture(lambda: self._measure(config, on_event))


class _ThreadFuture:
    """A daemon thread, so that an abandoned measurement does not keep the process from exiting."""

    def __init__(self, task: Callable[[], RoundMetrics]) -> None:
        self._outcome: queue.SimpleQueue[RoundMetrics | BaseException] = queue.SimpleQueue()
        threading.Thread(target=self._run, args=(task,), daemon=True).start()

    def _run(self, task: Callable[[], RoundMetrics]) -> None:
        try:
            self._outcome.put(task())
        except BaseException as error:
            self._outcome.put(error)

    def result(self) -> RoundMetrics:
        outcome = self._outcome.get()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def cancel(self) -> None:
        pass


class ParallelExecutor:
    """Up to `slots` at once, and one more that takes the place of the first to end, whichever that is: rounds are
    recorded in the order in which they began, and behind an early one that takes long another place is kept busy.

    stopped: asked before one that waited begins; `result` raises NotStartedError with the reason that it gives.
    """

    def __init__(
        self, slots: int, measure: MeasureRound = run_round, stop_reason: Callable[[], str | None] = lambda: None
    ) -> None:
        self.capacity, self._measure, self._stop_reason = slots + 1, measure, stop_reason
        self._free_slots = threading.Semaphore(slots)

    def submit(self, config: RunnerConfig, on_event: OnEvent) -> RoundFuture:
        return _ThreadFuture(lambda: self._run_when_free(config, on_event))

    def _run_when_free(self, config: RunnerConfig, on_event: OnEvent) -> RoundMetrics:
        if not self._free_slots.acquire(blocking=False):
            on_event(RoundWaiting(round=config.round_idx, phase="queued"))
            self._free_slots.acquire()
            reason = self._stop_reason()
            if reason is not None:
                self._free_slots.release()
                raise NotStartedError(reason)
        try:
            return self._measure(config, on_event)
        finally:
            self._free_slots.release()
