"""The loop that runs rounds, one after another or several at once. All of its state is also on disk."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from autoqec import plugins
from autoqec.contracts.events import Event, OnEvent, RoundStarted, RunStopped
from autoqec.contracts.history import HistoryRow
from autoqec.contracts.round import RoundMetrics
from autoqec.errors import InfrastructureError, UsageError
from autoqec.orchestrator.budget import Budget, InterruptHandler
from autoqec.orchestrator.executors import (
    Executor,
    JobsLeftError,
    NotStartedError,
    ParallelExecutor,
    RoundFuture,
    SerialExecutor,
)
from autoqec.orchestrator.plugin_protocols import ExecutorPlugin
from autoqec.orchestrator.rounds import (
    StartedRound,
    finish_round,
    reject_round,
    runner_config,
    start_round,
    under_way,
)
from autoqec.orchestrator.run import Run
from autoqec.orchestrator.verify_round import verify_pending
from autoqec.store import run_control, run_log
from autoqec.system import machine

MAX_INFRASTRUCTURE_FAILURES = 2  # consecutive; more indicate a problem of the machine, not of the search


@dataclass(frozen=True)
class LoopResult:
    """The result of one call of the loop: the rows that it recorded, and why it started no further round."""

    rows: tuple[HistoryRow, ...]
    stop_reason: str
    interrupted: bool = False

    @property
    def ok(self) -> bool:
        """Whether any round ended with status `ok`."""
        return any(row.status == "ok" for row in self.rows)


def run_rounds(
    run: Run,
    rounds: int | None = None,
    on_event: OnEvent | None = None,
    *,
    executor: Executor | None = None,
    interrupts: InterruptHandler | None = None,
) -> LoopResult:
    """Run rounds until the run has `rounds` finished rows, a limit is reached or the user stops it.

    Unfinished work of an earlier process is completed first: candidates that were not verified, and rounds already
    submitted to a cluster, regardless of the executor. Rows are recorded in the order in which the rounds started, so
    that what a proposal knows of other rounds does not depend on timing.

    After the first Ctrl-C, SIGTERM or SIGHUP, or a request of `autoqec stop`, running rounds are completed, a waiting
    one is cancelled, and no further one starts. The second signal raises KeyboardInterrupt and cancels cluster jobs;
    the next start recovers. The executor of a detached run leaves them to the next start at the first signal.

    Args:
        run: The run, held by this process.
        rounds: Finished rows in total, including those of earlier starts; by default the run's own limit.
        on_event: Receives every event.
        executor: Measures the rounds; by default in children of this process.
        interrupts: Handles the signals.

    Returns:
        The recorded rows and the reason for stopping.

    Raises:
        UsageError: A cluster rejects a job.
    """
    emit = _serialize_events(run_log.logged(on_event))
    interrupts = interrupts or InterruptHandler()
    executor = executor or local_executor(run.info.parallel, partial(stop_of_waiting, run, interrupts))
    recorded: list[HistoryRow] = []
    pending: deque[tuple[StartedRound, RoundFuture]] = deque()
    with interrupts:
        try:
            recorded += verify_pending(run.memory, run.repo, emit, executor.verify)
            pending.extend(_resume_submitted(run, executor, emit))
            budget = Budget.of(run.info if rounds is None else run.info.model_copy(update={"rounds": rounds}))
            stop = partial(_stop_reason, run, budget, interrupts)
            stop_reason = _run_until(stop, run, pending, recorded, executor, emit)
        except JobsLeftError:
            stop_reason = "interrupted; the next start continues the rounds in jobs of the cluster"
        except KeyboardInterrupt:
            for _, future in pending:
                future.cancel()
            raise
        run_log.record(RunStopped(why=stop_reason))
        interrupted = interrupts.requested or stop_reason == run_control.STOPPED
        return LoopResult(tuple(recorded), stop_reason, interrupted)


def _run_until(
    stop: Callable[[int, int], str | None],
    run: Run,
    pending: deque[tuple[StartedRound, RoundFuture]],
    recorded: list[HistoryRow],
    executor: Executor,
    emit: OnEvent,
) -> str:
    """Start and record rounds until `stop(rounds in progress, failures)` gives a reason and none is in progress."""
    failures = 0
    while True:
        stop_reason = stop(len(pending), failures)
        if stop_reason is None and len(pending) < executor.capacity:
            started = start_round(run, emit)
            if started.row is not None:
                recorded.append(started.row)
            else:
                pending.append((started, executor.submit(runner_config(run, started), emit)))
        elif pending:

            def may_start(failures: int = failures) -> bool:
                return stop(len(pending), failures) is None and len(pending) < executor.capacity

            waiting = partial(pending[0][1].result, may_start)
            outcome = _record_oldest(run, pending, waiting, executor, emit)
            if outcome is not None:
                row, killed = outcome
                recorded.append(row)
                failures = failures + 1 if killed else 0
        else:
            return str(stop_reason)


def local_executor(parallel: int, stop_reason: Callable[[], str | None]) -> Executor:
    """Return the executor that measures rounds in children of this process, `parallel` at once."""
    if parallel == 1:
        return SerialExecutor()
    return ParallelExecutor(parallel, stop_reason=stop_reason, gpus=machine.visible_gpus())


def stop_of_waiting(run: Run, interrupts: InterruptHandler) -> str | None:
    """Return why a round that waits for a free slot is not to be measured any more; None: it is."""
    requested = run_control.STOPPED if run_control.stop_requested(run.layout) else None
    return interrupts.stop_reason() or requested or Budget.of(run.info).hours_exhausted(run.clock.elapsed())


def _resume_submitted(run: Run, executor: Executor, emit: OnEvent) -> Iterator[tuple[StartedRound, RoundFuture]]:
    for started, order in under_way(run):
        emit(RoundStarted(round=started.attempt.round, phase="found again", job=order.job_id))
        plugin: ExecutorPlugin = plugins.load("autoqec.executors", order.executor)
        yield started, plugin.attach(run, executor, order, emit)


def _record_oldest(
    run: Run,
    pending: deque[tuple[StartedRound, RoundFuture]],
    wait: Callable[[], RoundMetrics | None],
    executor: Executor,
    emit: OnEvent,
) -> tuple[HistoryRow, bool] | None:
    """Wait for the round that started first and record it; return its row and whether the machine killed it.

    None: `wait` returned without metrics, since a further round may start first.
    """
    started, _ = pending[0]
    try:
        metrics = wait()
        if metrics is None:
            return None
    except NotStartedError as reason:
        pending.popleft()
        return reject_round(run, started, f"not measured, it was waiting for a free slot: {reason}", emit), False
    except InfrastructureError as error:
        pending.popleft()
        return reject_round(run, started, f"infrastructure failure: {error.message}", emit), True
    except UsageError as error:  # of a cluster that rejects the job
        pending.popleft()
        reject_round(run, started, str(error), emit)
        raise
    pending.popleft()  # only now: until it has a result, an interrupt has to cancel it
    return finish_round(run, started, metrics, emit, executor.verify), False


def _stop_reason(run: Run, budget: Budget, interrupts: InterruptHandler, n_running: int, failures: int) -> str | None:
    if failures >= MAX_INFRASTRUCTURE_FAILURES:
        return f"{failures} consecutive rounds were killed by the machine (see `dmesg | tail`)"
    if interrupts.requested:
        return "interrupted; --resume continues"
    if run_control.stop_requested(run.layout):
        return run_control.STOPPED
    state = run.memory.state
    exhausted = budget.exhausted(state, run.clock.elapsed(), n_running, run.roles.extra_hours())
    return exhausted or run.roles.stop_reason(state)


def _serialize_events(on_event: OnEvent) -> OnEvent:
    """Return a callback that passes on events of concurrent rounds one at a time."""
    lock = threading.Lock()

    def emit(event: Event) -> None:
        with lock:
            on_event(event)

    return emit
