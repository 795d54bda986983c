"""Concurrent rounds: real runs in git, with a Runner and a verifier whose timing the test controls."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autoqec.cli.workspace import make_workspace
from autoqec.contracts.events import Event, RoundWaiting, ignore
from autoqec.contracts.history import HistoryRow
from autoqec.contracts.messages import IdeatorResponse
from autoqec.contracts.round import RoundMetrics, RunnerConfig
from autoqec.contracts.views import IdeatorView
from autoqec.orchestrator import loop as loop_module
from autoqec.orchestrator.executors import Executor, NotStartedError, ParallelExecutor, SerialExecutor
from autoqec.orchestrator.loop import run_rounds
from autoqec.orchestrator.recovery import inspect
from autoqec.orchestrator.recovery.plan import plan_recovery
from autoqec.orchestrator.run import Roles, Run
from autoqec.store.run_state import fold
from tests.crash import canned
from tests.crash.starts import ENV
from tests.support.starts import start_run

COUNT, PATIENCE_S = 4, 30
TIMES = ("started_at", "finished_at", "proposal_wallclock_s", "setup_wallclock_s")
LOOSE = ("round_attempt_id", "branch", "commit_sha", "checkpoint_path", *TIMES)


@pytest.fixture(autouse=True)
def verifier_of_odd_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Verify rounds 1 and 3; the front follows from them."""
    canned.install(monkeypatch.setattr, verdict=lambda number: "VERIFIED" if number % 2 else "SUSPICIOUS")


class Turns:
    """A Runner whose rounds end in pairs, the later one first: a round ends only if another runs at the same time."""

    def __init__(self) -> None:
        self.ended = {number: threading.Event() for number in range(1, COUNT + 1)}
        self.order: list[int] = []
        self.threads: list[int] = []

    def measure(self, config: RunnerConfig, on_event: Any) -> RoundMetrics:
        number = config.round_idx
        if number % 2:
            assert self.ended[number + 1].wait(PATIENCE_S), f"round {number + 1} was never begun"
        self.threads.append(config.threads)
        metrics = canned.run_round(config, on_event=on_event)
        self.order.append(number)
        self.ended[number].set()
        return metrics


def proposing(views: list[IdeatorView]) -> Callable[[IdeatorView], IdeatorResponse]:
    """An ideator that appends every view it receives to `views`."""

    def propose(view: IdeatorView) -> IdeatorResponse:
        views.append(view)
        number = len(view.history) + len(view.pending) + 1
        config = {"type": "mlp", "mlp": {"hidden": 4 + number}}
        return IdeatorResponse(hypothesis=f"net {number}", slug="net", proposal=config)

    return propose


def ran(workspace: Path, executor: Executor, views: list[IdeatorView], **more: Any) -> tuple[Run, list[HistoryRow]]:
    make_workspace(workspace, ENV)
    roles = Roles(proposing(views), analyst=canned.analyse)
    with start_run(workspace / "env.yaml", workspace, "smoke", 1, "tpe", roles=roles, **more) as run:
        run_rounds(run, COUNT, executor=executor)
        return run, run.memory.history.rows()


def loosely(rows: list[HistoryRow]) -> list[dict[str, Any]]:
    """Rows without the fields that name their run."""
    return [{key: value for key, value in row.dump().items() if key not in LOOSE} for row in rows]


def test_rows_and_front_equal_those_of_a_serial_run(tmp_path: Path) -> None:
    turns, views, alone = Turns(), list[IdeatorView](), list[IdeatorView]()
    _, together = ran(tmp_path / "two", ParallelExecutor(2, turns.measure), views)
    assert turns.order == [2, 1, 4, 3], "they did run at once"
    assert [row.round for row in together] == [1, 2, 3, 4], "rows are in the order in which rounds began"
    _, serial = ran(tmp_path / "one", SerialExecutor(lambda config, tell: canned.run_round(config)), alone)
    assert loosely(together) == loosely(serial)
    fronts = [[*fold(rows).front] for rows in (together, serial)]
    assert [entry.flops_per_syndrome for entry in fronts[0]] == [entry.flops_per_syndrome for entry in fronts[1]] != []
    assert [len(view.pending) for view in alone] == [0] * COUNT


def test_ideator_sees_running_rounds(tmp_path: Path) -> None:
    turns, views = Turns(), list[IdeatorView]()
    run, _ = ran(tmp_path / "two", ParallelExecutor(2, turns.measure), views)
    assert [len(view.pending) for view in views][:2] == [0, 1]
    assert views[1].pending[0]["dsl_config"] == run.memory.history.rows()[0].dsl_config


class Waits:
    """A Runner whose first round ends after the third has begun. most: largest number of concurrent rounds."""

    def __init__(self) -> None:
        self.began = {number: threading.Event() for number in range(1, COUNT + 1)}
        self.now, self.most, self.lock = 0, 0, threading.Lock()

    def measure(self, config: RunnerConfig, on_event: Any) -> RoundMetrics:
        with self.lock:
            self.now += 1
            self.most = max(self.most, self.now)
        self.began[config.round_idx].set()
        if config.round_idx == 1:
            assert self.began[3].wait(PATIENCE_S), "a place stood empty, and a round was ready"
        metrics = canned.run_round(config, on_event=on_event)
        with self.lock:
            self.now -= 1
        return metrics


def test_next_round_takes_the_first_free_worker(tmp_path: Path) -> None:
    waits, views = Waits(), list[IdeatorView]()
    _, rows = ran(tmp_path / "two", ParallelExecutor(2, waits.measure), views)
    assert waits.most == 2 and [row.round for row in rows] == [1, 2, 3, 4]
    known = [(len(view.history), len(view.pending)) for view in views]
    assert known == [(0, 0), (0, 1), (0, 2), (1, 2)], "by the order of rounds alone, whichever of them ended first"


class StopsRun:
    """A Runner whose rounds end after a stop request; the first round requests it."""

    def __init__(self) -> None:
        self.measured: list[int] = []
        self.waiting = threading.Event()

    def parallel(self, slots: int, *, stop_reason: Callable[[], str | None], gpus: tuple[str, ...]) -> ParallelExecutor:
        self.stop_reason = stop_reason
        return ParallelExecutor(slots, self.measure, stop_reason)

    def listen(self, event: Event) -> None:
        if isinstance(event, RoundWaiting) and event.phase == "queued":
            self.waiting.set()

    def measure(self, config: RunnerConfig, on_event: Any) -> RoundMetrics:
        self.measured.append(config.round_idx)
        assert self.waiting.wait(PATIENCE_S)
        if config.round_idx == 1:
            os.kill(os.getpid(), signal.SIGTERM)
        end = time.monotonic() + PATIENCE_S
        while self.stop_reason() is None:
            assert time.monotonic() < end
            time.sleep(0.01)
        return canned.run_round(config, on_event=on_event)


def test_waiting_round_is_quarantined_on_a_stop_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = StopsRun()
    monkeypatch.setattr(loop_module, "ParallelExecutor", runner.parallel)
    make_workspace(tmp_path, ENV)
    roles = Roles(proposing([]), analyst=canned.analyse)
    with start_run(tmp_path / "env.yaml", tmp_path, "smoke", 1, "tpe", roles=roles, parallel=2) as run:
        outcome = run_rounds(run, COUNT, runner.listen)
        assert outcome.interrupted and sorted(runner.measured) == [1, 2]
        ends = [(row.round, row.status) for row in run.memory.history.rows()]
        assert ends == [(1, "ok"), (2, "ok"), (3, "orphaned_branch")]
        aside = outcome.rows[-1]
        assert "interrupted" in str(aside.status_reason) and str(aside.branch).startswith("quarantine/")
        assert plan_recovery(inspect.inspect_run(run.repo, run.layout)) == [], "recovery has nothing left to do"
        monkeypatch.setattr(loop_module, "ParallelExecutor", ParallelExecutor)
        outcome = run_rounds(run, 3, executor=SerialExecutor(lambda config, tell: canned.run_round(config)))
        assert [(row.round, row.status) for row in outcome.rows] == [(4, "ok")], "its number is not used again"


class Clock:
    """The clock of the loop; it advances only when a test moves it."""

    def __init__(self) -> None:
        self.hours = 0.0

    def elapsed(self) -> float:
        return 3600 * self.hours


def test_waiting_round_is_quarantined_when_the_time_limit_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, waiting = Clock(), threading.Event()
    measured: list[int] = []

    def listen(event: Event) -> None:
        if isinstance(event, RoundWaiting):
            clock.hours = 2.0
            waiting.set()

    def measure(config: RunnerConfig, on_event: Any) -> RoundMetrics:
        measured.append(config.round_idx)
        assert waiting.wait(PATIENCE_S)
        return canned.run_round(config, on_event=on_event)

    monkeypatch.setattr(
        loop_module, "ParallelExecutor", lambda slots, stop_reason, gpus: ParallelExecutor(slots, measure, stop_reason)
    )
    make_workspace(tmp_path, ENV)
    roles = Roles(proposing([]), analyst=canned.analyse)
    chosen = {"parallel": 2, "budget": {"hours": 1.0}}
    with start_run(tmp_path / "env.yaml", tmp_path, "smoke", 1, "tpe", roles=roles, **chosen) as run:
        run.clock = clock
        outcome = run_rounds(run, COUNT, listen)
    assert sorted(measured) == [1, 2] and outcome.stop_reason == "2.00 of 1 hours"
    assert [row.status for row in outcome.rows] == ["ok", "ok", "orphaned_branch"]
    assert "2.00 of 1 hours" in str(outcome.rows[-1].status_reason)


def test_stop_request_is_checked_only_for_rounds_that_waited() -> None:
    """A round proposed during a stop request that has a free worker is measured, as it would be in a serial run."""
    measured, go_on = list[int](), threading.Event()

    def measure(config: RunnerConfig, on_event: Any) -> RoundMetrics:
        assert go_on.wait(PATIENCE_S)
        return RoundMetrics(status="train_error", status_reason=f"round {config.round_idx}")

    def stop_reason() -> str | None:
        measured.append(1)
        return "0.10 of 0.1 hours"

    executor, tells = ParallelExecutor(1, measure, stop_reason), list[str]()
    config = RunnerConfig(env_yaml="", predecoder_config={}, round_dir="")
    first = executor.submit(config, lambda event: tells.append(event.kind))
    second = executor.submit(config, lambda event: (tells.append(event.kind), go_on.set())[0])
    assert first.result().status_reason == "round 1"
    with pytest.raises(NotStartedError, match="0.1 hours"):
        second.result()
    assert (len(measured), tells) == (1, ["waiting"])
    go_on.set()
    assert executor.submit(config, ignore).result().status_reason == "round 1", "the place is free"


def test_each_slot_has_a_gpu_of_its_own() -> None:
    """Two rounds at once never see the same GPU; with more slots than GPUs they are shared."""
    both, seen = threading.Barrier(2), list[str | None]()

    def measure(config: RunnerConfig, on_event: Any) -> RoundMetrics:
        seen.append(config.visible_gpus)
        both.wait(PATIENCE_S)
        return RoundMetrics(status="train_error", status_reason="not trained")

    def config(number: int) -> RunnerConfig:
        return RunnerConfig(env_yaml="", predecoder_config={}, round_dir="", round_idx=number)

    for gpus, expected in ((("3", "5"), {"3", "5"}), (("7",), {"7"}), ((), {None})):
        executor = ParallelExecutor(2, measure, gpus=gpus)
        for _ in range(2):
            seen.clear()
            for future in [executor.submit(config(number), ignore) for number in (1, 2)]:
                future.result()
            assert set(seen) == expected and len(seen) == 2
