"""Many rounds, one after another or several at once. The loop keeps nothing in memory that the disk does not hold."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from autoqec.contracts.history import HistoryRow
from autoqec.errors import InputError
from autoqec.orchestrator.budget import Budget, Clock, Interrupts
from autoqec.orchestrator.executors.local import Executor, NotBegun, Parallel, Pending, Serial
from autoqec.orchestrator.rounds import OnEvent, Opened, open_round, refuse, runner_config, settle, under_way
from autoqec.orchestrator.run import Roles, Run, check_start, resume_run, start_run
from autoqec.store import run_log

__all__ = ["Budget", "Executor", "Outcome", "Roles", "Run", "check_start", "resume_run", "run_rounds", "start_run"]


@dataclass(frozen=True)
class Outcome:
    """What one call of the loop did. rows: the rounds it recorded. stopped: why no further one was begun."""

    rows: tuple[HistoryRow, ...]
    stopped: str
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
) -> Outcome:
    """Go on until the run has `rounds` finished rows (resumed ones count), a limit is reached or a person says stop.

    executor: where rounds are measured; without one here, `parallel` at once. Rounds that an earlier start had handed
    to a cluster's job are gone on with first, whatever the executor.

    Ctrl-C or SIGTERM once: rounds under way are finished, but for one that waits for its turn, and no further one
    begins; twice: KeyboardInterrupt, jobs of a cluster are ended, and the next start recovers. Rows are in the order
    in which the rounds began, however many run at once, and what a proposal knows of the others depends on no clock.
    Raises InputError where a cluster refuses a job.
    """
    tell, clock, recorded, person = _one_at_a_time(run_log.logged(on_event)), Clock(), list[HistoryRow](), Interrupts()
    limits = [Budget(rounds=rounds), budget or Budget()]
    if executor is None and parallel > 1:
        executor = Parallel(parallel, stopped=lambda: person.stopped() or limits[1].late(clock.elapsed()))
    executor = executor or Serial()
    with person:
        pending: deque[tuple[Opened, Pending]] = deque(_gone_on_with(run, executor, tell))
        try:
            while True:
                stopped = _stopped(run, limits, clock, person, len(pending))
                if stopped is None and len(pending) < executor.room:
                    opened = open_round(run, tell)
                    if opened.row is not None:
                        recorded.append(opened.row)
                    else:
                        pending.append((opened, _handed_over(run, opened, executor, tell)))
                elif pending:
                    recorded.append(_recorded(run, pending, tell))
                else:
                    run_log.event("run_stopped", {"why": str(stopped)})
                    return Outcome(tuple(recorded), str(stopped), person.asked)
        except KeyboardInterrupt:
            for _, measuring in pending:
                measuring.cancel()
            raise


def _gone_on_with(run: Run, executor: Executor, tell: OnEvent) -> Iterator[tuple[Opened, Pending]]:
    found = under_way(run)
    if found:
        from autoqec.orchestrator.executors.slurm import Slurm

        cluster = executor if isinstance(executor, Slurm) else Slurm()
        for opened, order in found:
            tell("round_begun", {"round": opened.attempt.round, "phase": "found again", "job": order.job_id})
            yield opened, cluster.attach(order, tell)


def _handed_over(run: Run, opened: Opened, executor: Executor, tell: OnEvent) -> Pending:
    try:
        return executor.submit(runner_config(run, opened), tell)
    except InputError as error:
        refuse(run, opened, str(error), tell)
        raise


def _recorded(run: Run, pending: deque[tuple[Opened, Pending]], tell: OnEvent) -> HistoryRow:
    """The round that began first, waited for."""
    opened, measuring = pending[0]
    try:
        metrics = measuring.result()
    except NotBegun as reason:
        pending.popleft()
        return refuse(run, opened, f"never measured, it waited for its turn: {reason}", tell)
    pending.popleft()  # there is nothing to cancel any more
    return settle(run, opened, metrics, tell)


def _stopped(run: Run, limits: list[Budget], clock: Clock, person: Interrupts, under_way: int) -> str | None:
    if person.asked:
        return "interrupted; --resume goes on"
    state = run.memory.state
    return next(filter(None, (limit.spent(state, clock.elapsed(), under_way) for limit in limits)), None)


def _one_at_a_time(on_event: OnEvent) -> OnEvent:
    """Rounds that run at once tell their events one by one."""
    lock = threading.Lock()

    def tell(kind: str, payload: dict[str, Any]) -> None:
        with lock:
            on_event(kind, payload)

    return tell
