"""What measures rounds: the protocol of executors, and those of this machine, one round after another or several."""

from __future__ import annotations

import queue
import shutil
import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

from autoqec.contracts.events import OnEvent, RoundWaiting
from autoqec.contracts.round import RoundMetrics, RunnerConfig

if TYPE_CHECKING:
    from autoqec.contracts.verdict import VerifyReport
    from autoqec.verification.request import VerifyRequest

MeasureRound = Callable[[RunnerConfig, OnEvent], RoundMetrics]


class RoundFuture(Protocol):
    """A submitted measurement."""

    def result(self, may_start: Callable[[], bool] = lambda: False) -> RoundMetrics | None:
        """Wait for the measurement and return its result; raises what the measurement raised.

        Args:
            may_start: Whether a further round may start; where `capacity` grows meanwhile, None is returned then.
        """
        ...

    def cancel(self) -> None:
        """Cancel the measurement if it would outlive this process."""
        ...


class NotStartedError(Exception):
    """The measurement was cancelled while it waited for a free slot; the message says why."""


class JobsLeftError(KeyboardInterrupt):
    """This process was asked to end, and leaves jobs of a cluster to the next one; handled like a second Ctrl-C."""


class Executor(Protocol):
    """Measures and verifies rounds."""

    @property
    def capacity(self) -> int:
        """Measurements that it accepts at once, waiting ones included."""
        ...

    def submit(self, config: RunnerConfig, on_event: OnEvent) -> RoundFuture:
        """Submit the measurement of a round; `on_event` receives its progress."""
        ...

    def verify(self, request: VerifyRequest, on_event: OnEvent) -> VerifyReport:
        """Verify a candidate, write its report and return it; raises what `verifier.verify` raises."""
        ...


def run_round(config: RunnerConfig, on_event: OnEvent) -> RoundMetrics:
    """Measure a round in a child of this process. Thread-safe: it only uses the files of the round."""
    from autoqec.runner import runner

    return runner.run_round(config, on_event=on_event)


def verify_here(request: VerifyRequest, on_event: OnEvent) -> VerifyReport:
    """Verify a candidate in this process and its children; an unfinished verification in a job is withdrawn."""
    from autoqec.verification import verifier

    shutil.rmtree(request.round.verification_dir, ignore_errors=True)
    return verifier.verify(request, on_event=on_event)


class _LazyFuture:
    def __init__(self, task: Callable[[], RoundMetrics]) -> None:
        self._task = task

    def result(self, may_start: Callable[[], bool] = lambda: False) -> RoundMetrics:
        return self._task()

    def cancel(self) -> None:
        pass


class SerialExecutor:
    """Measures one round at a time, in the thread that waits for the result."""

    capacity = 1

    def __init__(self, measure: MeasureRound = run_round) -> None:
        self._measure = measure

    def submit(self, config: RunnerConfig, on_event: OnEvent) -> RoundFuture:
        """Return a future that measures the round when its result is requested."""
        return _LazyFuture(lambda: self._measure(config, on_event))

    verify = staticmethod(verify_here)


class _ThreadFuture:
    """Runs the measurement in a daemon thread, so that an abandoned one does not keep the process from exiting."""

    def __init__(self, task: Callable[[], RoundMetrics]) -> None:
        self._outcome: queue.SimpleQueue[RoundMetrics | BaseException] = queue.SimpleQueue()
        threading.Thread(target=self._run, args=(task,), daemon=True).start()

    def _run(self, task: Callable[[], RoundMetrics]) -> None:
        try:
            self._outcome.put(task())
        except BaseException as error:
            self._outcome.put(error)

    def result(self, may_start: Callable[[], bool] = lambda: False) -> RoundMetrics:
        outcome = self._outcome.get()
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def cancel(self) -> None:
        pass


class ParallelExecutor:
    """Measures up to `slots` rounds at once; one further round waits for the first free slot.

    Rounds are recorded in the order in which they started, so without the waiting round a slot would stay empty while
    an early round takes long.

    Args:
        slots: Measurements at once.
        measure: Measures one round.
        stop_reason: Called before a waiting round starts; if it returns a reason, `result` raises NotStartedError.
        gpus: Names of GPUs as in CUDA_VISIBLE_DEVICES. A slot has one of them, which it shares if there are fewer GPUs
            than slots; without any, rounds see what this process sees.
    """

    def __init__(
        self,
        slots: int,
        measure: MeasureRound = run_round,
        stop_reason: Callable[[], str | None] = lambda: None,
        gpus: Sequence[str] = (),
    ) -> None:
        self.capacity, self._measure, self._stop_reason = slots + 1, measure, stop_reason
        self._gpus: list[str | None] = [*gpus] or [None]
        self._free_slots: queue.SimpleQueue[int] = queue.SimpleQueue()
        for slot in range(slots):
            self._free_slots.put(slot)

    def submit(self, config: RunnerConfig, on_event: OnEvent) -> RoundFuture:
        """Start a thread that measures the round as soon as a slot is free."""
        return _ThreadFuture(lambda: self._run_when_free(config, on_event))

    verify = staticmethod(verify_here)

    def _run_when_free(self, config: RunnerConfig, on_event: OnEvent) -> RoundMetrics:
        try:
            slot = self._free_slots.get_nowait()
        except queue.Empty:
            on_event(RoundWaiting(round=config.round_idx, phase="queued"))
            slot = self._free_slots.get()
            reason = self._stop_reason()
            if reason is not None:
                self._free_slots.put(slot)
                raise NotStartedError(reason) from None
        gpu = self._gpus[slot % len(self._gpus)]
        try:
            return self._measure(config if gpu is None else config.model_copy(update={"visible_gpus": gpu}), on_event)
        finally:
            self._free_slots.put(slot)
