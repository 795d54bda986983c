"""Budget: every limit stops the run, counted from history; so does a stop request."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from autoqec.contracts.round import RoundMetrics
from autoqec.contracts.run_spec import RunSpec
from autoqec.errors import UsageError
from autoqec.orchestrator.budget import Budget, InterruptHandler, parse_limits
from autoqec.orchestrator.executors import ParallelExecutor, SerialExecutor
from autoqec.store.run_state import fold
from tests.support import rounds

KEYS = ("rounds", "hours", "plateau", "usd")
ABORTED = rounds.row(9, status="orphaned_branch", status_reason="x", verify_verdict=None)


def test_round_limit_counts_finished_and_running_rounds() -> None:
    rows = [rounds.row(1), rounds.row(2), ABORTED]
    assert Budget(rounds=3).exhausted(fold(rows), 0) is None
    assert Budget(rounds=3).exhausted(fold(rows), 0, n_running=1)
    assert Budget(rounds=2).exhausted(fold(rows), 0)


def test_hours_count_from_this_start() -> None:
    assert Budget(hours=1).exhausted(fold([]), 3599) is None and Budget(hours=1).exhausted(fold([]), 3600)


def test_compute_hours_are_summed_over_rounds() -> None:
    rows = [rounds.row(1, train_wallclock_s=3000.0, eval_wallclock_s=600.0)]
    assert Budget(compute_hours=1.1).exhausted(fold(rows), 0) is None and Budget(compute_hours=1).exhausted(
        fold(rows), 0
    )


def test_gpu_hours_count_rounds_that_used_a_gpu() -> None:
    hour = {"train_wallclock_s": 3600.0, "eval_wallclock_s": 0.0}
    rows = [rounds.row(1, vram_peak_gb=2.0, **hour), rounds.row(2, vram_peak_gb=0.0, **hour), rounds.row(3, **hour)]
    assert (
        Budget(gpu_hours=1.5).exhausted(fold(rows), 0) is None
        and Budget(cpu_hours=2.5).exhausted(fold(rows), 0) is None
    )
    assert Budget(gpu_hours=1).exhausted(fold(rows), 0) == "1.00 of 1 gpu hours"
    assert Budget(cpu_hours=2).exhausted(fold(rows), 0) == "2.00 of 2 cpu hours"


def test_round_on_two_gpus_counts_twice_in_gpu_hours() -> None:
    hour = {"train_wallclock_s": 3600.0, "eval_wallclock_s": 0.0}
    rows = [rounds.row(1, gpus=2, **hour), rounds.row(2, gpus=0, vram_peak_gb=0.0, **hour)]
    assert Budget(gpu_hours=2).exhausted(fold(rows), 0) == "2.00 of 2 gpu hours"
    assert Budget(cpu_hours=1).exhausted(fold(rows), 0) == "1.00 of 1 cpu hours"
    assert Budget(compute_hours=2).exhausted(fold(rows), 0) == "2.00 of 2 compute hours"


def test_plateau_is_rounds_that_did_not_change_the_front() -> None:
    still = [rounds.row(n, verify_verdict="SUSPICIOUS") for n in (2, 3)]
    assert Budget(plateau=3).exhausted(fold([rounds.row(1), *still]), 0) is None
    assert Budget(plateau=2).exhausted(fold([rounds.row(1), *still]), 0)
    assert Budget(plateau=2).exhausted(fold([*still, rounds.row(4)]), 0) is None


def test_limits_are_parsed_from_one_line() -> None:
    limits = parse_limits("rounds=20, hours=2.5,plateau=8,usd=3", KEYS)
    assert limits == {"rounds": 20, "hours": 2.5, "plateau": 8, "usd": 3.0}
    assert Budget.of(RunSpec(rounds=9, budget=limits)) == Budget(rounds=9, hours=2.5, plateau=8)


@pytest.mark.parametrize(
    "text",
    ["rounds", "rounds=0", "hours=nan", "days=3", "rounds=1.5", "hours=-1", "gpu_hours=0", ",", "rounds=1,",
     "hours=1,hours=2", "usd=free"],
)  # fmt: skip
def test_invalid_limit_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        parse_limits(text, KEYS)


def test_hours_of_trials_count_without_a_gpu() -> None:
    assert Budget(cpu_hours=1.0).exhausted(fold([]), 0, extra_hours=2.0) is not None
    assert Budget(gpu_hours=1.0).exhausted(fold([]), 0, extra_hours=2.0) is None


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_first_interrupt_finishes_the_round_and_second_stops_it(number: int) -> None:
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


@pytest.mark.parametrize("executor", [SerialExecutor, partial(ParallelExecutor, 2)], ids=["serial", "parallel"])
def test_executors_return_the_result_or_raise_the_exception(
    executor: Callable[..., SerialExecutor | ParallelExecutor],
) -> None:
    def broken(config: Any, on_event: Any) -> RoundMetrics:
        raise ValueError("no")

    config: Any = None
    assert executor(lambda *_: rounds.metrics(3)).submit(config, print).result() == rounds.metrics(3)
    with pytest.raises(ValueError, match="no"):
        executor(broken).submit(config, print).result()
