"""Limits: each stops the run, counted on history; a person's word counts too."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from autoqec.contracts.round import RoundMetrics
from autoqec.errors import UsageError
from autoqec.orchestrator.budget import Budget, InterruptHandler
from autoqec.orchestrator.executors.local import ParallelExecutor, SerialExecutor
from autoqec.store.run_state import fold
from tests.support import rounds

ABORTED = rounds.row(9, status="orphaned_branch", status_reason="x", verify_verdict=None)


def test_rounds_count_finished_rows_and_those_under_way() -> None:
    rows = [rounds.row(1), rounds.row(2), ABORTED]
    assert Budget(rounds=3).exhausted(fold(rows), 0) is None
    assert Budget(rounds=3).exhausted(fold(rows), 0, n_running=1)
    assert Budget(rounds=2).exhausted(fold(rows), 0)


def test_hours_are_this_starts() -> None:
    assert Budget(hours=1).exhausted(fold([]), 3599) is None and Budget(hours=1).exhausted(fold([]), 3600)


def test_compute_hours_add_up_over_rounds() -> None:
    rows = [rounds.row(1, train_wallclock_s=3000.0, eval_wallclock_s=600.0)]
    assert Budget(compute_hours=1.1).exhausted(fold(rows), 0) is None and Budget(compute_hours=1).exhausted(
        fold(rows), 0
    )


def test_gpu_hours_are_those_of_rounds_that_used_one() -> None:
    hour = {"train_wallclock_s": 3600.0, "eval_wallclock_s": 0.0}
    rows = [rounds.row(1, vram_peak_gb=2.0, **hour), rounds.row(2, vram_peak_gb=0.0, **hour), rounds.row(3, **hour)]
    assert (
        Budget(gpu_hours=1.5).exhausted(fold(rows), 0) is None
        and Budget(cpu_hours=2.5).exhausted(fold(rows), 0) is None
    )
    assert Budget(gpu_hours=1).exhausted(fold(rows), 0) == "1.00 of 1 gpu hours"
    assert Budget(cpu_hours=2).exhausted(fold(rows), 0) == "2.00 of 2 cpu hours"


def test_a_plateau_is_rounds_that_left_the_front_as_it_was() -> None:
    still = [rounds.row(n, verify_verdict="SUSPICIOUS") for n in (2, 3)]
    assert Budget(plateau=3).exhausted(fold([rounds.row(1), *still]), 0) is None
    assert Budget(plateau=2).exhausted(fold([rounds.row(1), *still]), 0)
    assert Budget(plateau=2).exhausted(fold([*still, rounds.row(4)]), 0) is None


def test_a_budget_is_read_from_one_line() -> None:
    assert Budget.parse("rounds=20, hours=2.5,plateau=8") == Budget(rounds=20, hours=2.5, plateau=8)


@pytest.mark.parametrize(
    "text", ["rounds", "rounds=0", "hours=nan", "days=3", "rounds=1.5", "hours=-1", "gpu_hours=0", ",", "rounds=1,"]
)
def test_invalid_limits_are_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="not a limit"):
        Budget.parse(text)


def test_a_limit_that_is_given_twice_is_refused() -> None:
    with pytest.raises(UsageError, match="`hours` is given twice"):
        Budget.parse("hours=1,hours=2")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_first_signal_is_a_request_and_second_interrupts(number: int) -> None:
    inherited = signal.signal(number, signal.SIG_DFL)  # nohup and a shell's background jobs ignore some signals
    try:
        with InterruptHandler() as handler:
            assert not handler.requested
            os.kill(os.getpid(), number)
            assert handler.requested
            with pytest.raises(KeyboardInterrupt):
                os.kill(os.getpid(), number)
        assert signal.getsignal(number) is signal.SIG_DFL
    finally:
        signal.signal(number, inherited)


@pytest.mark.parametrize("place", [SerialExecutor, partial(ParallelExecutor, 2)], ids=["serial", "parallel"])
def test_executors_give_back_what_the_work_gave_or_raised(
    place: Callable[..., SerialExecutor | ParallelExecutor],
) -> None:
    def broken(config: Any, on_event: Any) -> RoundMetrics:
        raise ValueError("no")

    config: Any = None
    assert place(lambda *_: rounds.metrics(3)).submit(config, print).result() == rounds.metrics(3)
    with pytest.raises(ValueError, match="no"):
        place(broken).submit(config, print).result()
