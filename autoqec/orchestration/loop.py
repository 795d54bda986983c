"""Many rounds, one after another or several at once. The loop keeps nothing in memory that the disk does not hold."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import Any

from autoqec.contracts.history import HistoryRow
from autoqec.orchestration.budget import Budget, Clock, Interrupts
from autoqec.orchestration.executor import Executor, Parallel, Serial
from autoqec.orchestration.rounds import OnEvent, Opened, measure, open_round, runner_config, settle
from autoqec.orchestration.run import Roles, Run, check_start, resume_run, start_run

__all__ = ["Budget", "Outcome", "Roles", "Run", "check_start", "resume_run", "run_rounds", "start_run"]


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
) -> Outcome:
    """Go on until the run has `rounds` finished rows (resumed ones count), a limit is reached or a person says stop.

    Ctrl-C or SIGTERM once: rounds under way are finished, no further one begins; twice: KeyboardInterrupt, and the
    next start recovers. Rows are in the order in which the rounds began, however many run at once.
    """
    tell, clock, recorded = _one_at_a_time(on_event), Clock(), list[HistoryRow]()
    executor: Executor = Serial() if parallel == 1 else Parallel(parallel)
    limits = [Budget(rounds=rounds), budget or Budget()]
    under_way: deque[tuple[Opened, Any]] = deque()
    with Interrupts() as person:
        while True:
            stopped = _stopped(run, limits, clock, person, len(under_way))
            if stopped is None and len(under_way) < executor.slots:
                opened = open_round(run, tell)
                if opened.row is not None:
                    recorded.append(opened.row)
                else:
                    config = runner_config(run, opened)
                    under_way.append((opened, executor.submit(partial(measure, config, tell))))
            elif under_way:
                opened, measuring = under_way.popleft()
                recorded.append(settle(run, opened, measuring.result(), tell))
            else:
                return Outcome(tuple(recorded), str(stopped), person.asked)


def _stopped(run: Run, limits: list[Budget], clock: Clock, person: Interrupts, under_way: int) -> str | None:
    if person.asked:
        return "interrupted; --resume goes on"
    rows = run.memory.history.rows()
    return next(filter(None, (limit.spent(rows, clock.elapsed(), under_way) for limit in limits)), None)


def _one_at_a_time(on_event: OnEvent | None) -> OnEvent:
    """Rounds that run at once tell their events one by one."""
    lock = threading.Lock()

    def tell(kind: str, payload: dict[str, Any]) -> None:
        if on_event is not None:
            with lock:
                on_event(kind, payload)

    return tell
