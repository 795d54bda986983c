"""Many rounds, one after another or several at once. The loop keeps nothing in memory that the disk does not hold."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from autoqec.contracts.events import Event, OnEvent, RoundStarted, RunStopped
from autoqec.contracts.history import HistoryRow
from autoqec.errors import UsageError
from autoqec.orchestrator.budget import Budget, Clock, InterruptHandler
from autoqec.orchestrator.executors.local import (
    Executor,
    NotStartedError,
    ParallelExecutor,
    RoundFuture,
    SerialExecutor,
)
from autoqec.orchestrator.rounds import (
    StartedRound,
    finish_round,
    reject_round,
    runner_config,
    start_round,
    under_way,
)
from autoqec.orchestrator.run import Roles, Run, check_start, resume_run, start_run
from autoqec.store import run_log

__all__ = ["Budget", "Executor", "LoopResult", "Roles", "Run", "check_start", "resume_run", "run_rounds", "start_run"]


@dataclass(frozen=True)
class LoopResult:
    """What one call of the loop did. rows: the rounds it recorded. stopped: why no further one was begun."""

    rows: tuple[HistoryRow, ...]
    stop_reason: str
    interrupted: bool = False

    @property
    def ok(self) -> bool:
        """Whether a round ended ok."""
        return any(row.status == "ok" for row in self.rows)


def run_rounds(
    run: Run,
    rounds: int | None,
    on_event: OnEvent | None = None,
    *,
    budget: Budget | None = None,
    parallel: int = 1,
    executor: Executor | None = None,
) -> LoopResult:
    """Go on until the run has `rounds` finished rows (resumed ones count), a limit is reached or a person says stop.

    executor: where rounds are measured; without one here, `parallel` at once. Rounds that an earlier start had handed
    to a cluster's job are gone on with first, whatever the executor.

    Ctrl-C, SIGTERM or SIGHUP once: rounds under way are finished, but for one that waits for its turn, and no further
    one begins; twice: KeyboardInterrupt, jobs of a cluster are ended, and the next start recovers. Rows are in the
    order in which the rounds began, however many run at once, and what a proposal knows of the others depends on no
    clock.

    Raises UsageError where a cluster refuses a job.
    """
    emit, clock, recorded, interrupts = (
        _serialize_events(run_log.logged(on_event)),
        Clock(),
        list[HistoryRow](),
        InterruptHandler(),
    )
    limits = [Budget(rounds=rounds), budget or Budget()]
    if executor is None and parallel > 1:
        executor = ParallelExecutor(
            parallel, stop_reason=lambda: interrupts.stop_reason() or limits[1].hours_exhausted(clock.elapsed())
        )
    executor = executor or SerialExecutor()
    with interrupts:
        pending: deque[tuple[StartedRound, RoundFuture]] = deque(_resume_cluster_rounds(run, executor, emit))
        try:
            while True:
                stop_reason = _stop_reason(run, limits, clock, interrupts, len(pending))
                if stop_reason is None and len(pending) < executor.capacity:
                    started = start_round(run, emit)
                    if started.row is not None:
                        recorded.append(started.row)
                    else:
                        pending.append((started, _submit(run, started, executor, emit)))
                elif pending:
                    recorded.append(_record_oldest(run, pending, emit))
                else:
                    run_log.record(RunStopped(why=str(stop_reason)))
                    return LoopResult(tuple(recorded), str(stop_reason), interrupts.requested)
        except KeyboardInterrupt:
            for _, future in pending:
                future.cancel()
            raise


def _resume_cluster_rounds(run: Run, executor: Executor, emit: OnEvent) -> Iterator[tuple[StartedRound, RoundFuture]]:
    cluster_rounds = under_way(run)
    if cluster_rounds:
        from autoqec.orchestrator.executors.slurm import SlurmExecutor

        cluster = executor if isinstance(executor, SlurmExecutor) else SlurmExecutor()
        for started, order in cluster_rounds:
            emit(RoundStarted(round=started.attempt.round, phase="found again", job=order.job_id))
            yield started, cluster.attach(order, emit)


def _submit(run: Run, started: StartedRound, executor: Executor, emit: OnEvent) -> RoundFuture:
    try:
        return executor.submit(runner_config(run, started), emit)
    except UsageError as error:
        reject_round(run, started, str(error), emit)
        raise


def _record_oldest(run: Run, pending: deque[tuple[StartedRound, RoundFuture]], emit: OnEvent) -> HistoryRow:
    """The round that began first, waited for."""
    started, future = pending[0]
    try:
        metrics = future.result()
    except NotStartedError as reason:
        pending.popleft()
        return reject_round(run, started, f"never measured, it waited for its turn: {reason}", emit)
    pending.popleft()  # there is nothing to cancel any more
    return finish_round(run, started, metrics, emit)


def _stop_reason(
    run: Run, limits: list[Budget], clock: Clock, interrupts: InterruptHandler, under_way: int
) -> str | None:
    if interrupts.requested:
        return "interrupted; --resume goes on"
    state = run.memory.state
    return next(filter(None, (limit.exhausted(state, clock.elapsed(), under_way) for limit in limits)), None)


def _serialize_events(on_event: OnEvent) -> OnEvent:
    """Rounds that run at once tell their events one by one."""
    lock = threading.Lock()

    def emit(event: Event) -> None:
        with lock:
            on_event(event)

    return emit
