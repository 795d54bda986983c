"""Where rounds are measured: in this process one after another, or several at once, each in a child of its own.

`orchestration.slurm` is the third: a cluster's job a round.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from typing import Any, Protocol

from autoqec.contracts.round import RoundMetrics, RunnerConfig

OnEvent = Callable[[str, dict[str, Any]], None]
Measure = Callable[[RunnerConfig, OnEvent], RoundMetrics]


class Pending(Protocol):
    """A measurement that was asked for."""

    def result(self) -> RoundMetrics:
        """What was measured, waited for; raises what the measurement raised."""
        ...

    def cancel(self) -> None:
        """Have it end where it would not end with this process."""
        ...


class NotBegun(Exception):
    """The measurement waited for its turn until nobody wanted it any more; in words why."""


class Executor(Protocol):
    """room: how many measurements it takes, those that wait for their turn included."""

    room: int

    def submit(self, config: RunnerConfig, on_event: OnEvent) -> Pending: ...


def run_round(config: RunnerConfig, on_event: OnEvent) -> RoundMetrics:
    """The Runner, here. Safe to call for several rounds at once: it touches nothing of the run's."""
    from autoqec.runner import runner

    return runner.run_round(config, on_event=on_event)


class _Now:
    def __init__(self, work: Callable[[], RoundMetrics]) -> None:
        self._work = work

    def result(self) -> RoundMetrics:
        return self._work()

    def cancel(self) -> None:
        pass


class Serial:
    """One at a time, in the caller's own thread, when the result is asked for."""

    room = 1

    def __init__(self, measure: Measure = run_round) -> None:
        self._measure = measure

    def submit(self, config: RunnerConfig, on_event: OnEvent) -> Pending:
        return _Now(lambda: self._measure(config, on_event))


class _Later:
    """A daemon thread: leaving the process is never held up by a measurement that nobody waits for."""

    def __init__(self, work: Callable[[], RoundMetrics]) -> None:
        self._done: queue.SimpleQueue[RoundMetrics | BaseException] = queue.SimpleQueue()
        threading.Thread(target=self._run, args=(work,), daemon=True).start()

    def _run(self, work: Callable[[], RoundMetrics]) -> None:
        try:
            self._done.put(work())
        except BaseException as error:
            self._done.put(error)

    def result(self) -> RoundMetrics:
        found = self._done.get()
        if isinstance(found, BaseException):
            raise found
        return found

    def cancel(self) -> None:
        pass


class Parallel:
    """Up to `slots` at once, and one more that takes the place of the first to end, whichever that is: rounds are
    recorded in the order in which they began, and behind an early one that takes long another place is kept busy.

    stopped: asked before one that waited begins; `result` raises NotBegun with the reason that it gives.
    """

    def __init__(
        self, slots: int, measure: Measure = run_round, stopped: Callable[[], str | None] = lambda: None
    ) -> None:
        self.room, self._measure, self._stopped = slots + 1, measure, stopped
        self._places = threading.Semaphore(slots)

    def submit(self, config: RunnerConfig, on_event: OnEvent) -> Pending:
        return _Later(lambda: self._in_turn(config, on_event))

    def _in_turn(self, config: RunnerConfig, on_event: OnEvent) -> RoundMetrics:
        if not self._places.acquire(blocking=False):
            on_event("waiting", {"round": config.round_idx, "phase": "queued"})
            self._places.acquire()
            why = self._stopped()
            if why is not None:
                self._places.release()
                raise NotBegun(why)
        try:
            return self._measure(config, on_event)
        finally:
            self._places.release()
