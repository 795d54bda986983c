"""live.json: what a run's process says to other terminals, and what becomes of it when words or disks are odd."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autoqec.contracts.events import (
    LiveProgress,
    LlmBudgetExhausted,
    RoundRecorded,
    SequentialTestProgress,
    TrainingProgress,
    VerdictReached,
)
from autoqec.reporting import live_status
from autoqec.reporting.live_status import LiveStatusWriter, RunLimits
from autoqec.store.layout import RunLayout
from tests.support import rounds

COUNTS = {"shots": 5000, "errors_reference": 70, "errors_candidate": 50, "fixed": 34, "broken": 14}


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    found = RunLayout(tmp_path, "20250102-030405")
    found.root.mkdir(parents=True)
    return found


def test_it_says_the_plan_and_each_round_and_is_gone_at_the_end(layout: RunLayout) -> None:
    plan = RunLimits(rounds=5, usd=3.0, parallel=2, began=12.5, sandbox="bubblewrap")
    with LiveStatusWriter(layout, plan, clock=iter(range(100)).__next__) as told:
        assert live_status.read(layout).plan == plan
        told(SequentialTestProgress(round=2, **COUNTS, budget=100_000))
        told(LlmBudgetExhausted(what="no round"))
        told(VerdictReached(round=4, verdict="FAILED", reasons=("no figure",)))
        told(TrainingProgress(round=3, phase="training", step=4, steps=9))
        said = live_status.read(layout).rounds
        assert said[2] == LiveProgress(round=2, kind="judge_test", phase="verification", **COUNTS, budget=100_000)
        assert (
            said[3].step == 4
            and said[4].phase == "verification"
            and "no figure" not in layout.live.read_text(encoding="utf-8")
        )
        told(RoundRecorded(round=2, row=rounds.row(2)))
        assert set(live_status.read(layout).rounds) == {3, 4}
    assert not layout.live.exists()


def test_at_most_one_write_a_second(layout: RunLayout) -> None:
    times = iter([0.0, 0.1, 0.2, 1.5, 1.6])
    with LiveStatusWriter(layout, RunLimits(), clock=lambda: next(times)) as told:
        seen = []
        for step in (1, 2, 3):
            told(TrainingProgress(round=1, step=step))
            seen += [progress.step for progress in live_status.read(layout).rounds.values()]
    assert seen == [3]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"plan": 1}',
        '{"plan": {}, "rounds": {"x": {}}}',
        '{"plan": {}, "rounds": {"1": 2}}',
        '{"plan": {}, "rounds": {"1": {"step": "2"}}}',
    ],
)
def test_what_cannot_be_read_says_nothing(layout: RunLayout, text: str) -> None:
    layout.live.write_text(text, encoding="utf-8")
    assert live_status.read(layout) == live_status.LiveStatus(RunLimits(), {})


def test_odd_words_in_the_plan_are_left_out(layout: RunLayout) -> None:
    plan: dict[str, Any] = {"rounds": "many", "hours": True, "usd": 2.0, "sandbox": 7, "unknown": 1}
    layout.live.write_text(json.dumps({"plan": plan, "rounds": {}}), encoding="utf-8")
    assert live_status.read(layout).plan == RunLimits(usd=2.0)


def test_a_directory_that_takes_no_file_costs_the_view_only(layout: RunLayout) -> None:
    layout.root.rmdir()
    layout.root.symlink_to("/proc/self/fdinfo")  # takes no file, not even from root
    with LiveStatusWriter(layout, RunLimits()) as told:
        told(TrainingProgress(round=1, step=1))


def test_a_file_that_cannot_be_replaced_costs_the_view_only(layout: RunLayout) -> None:
    layout.live.mkdir()
    with LiveStatusWriter(layout, RunLimits()) as told:
        told(TrainingProgress(round=1, step=1))
    assert live_status.read(layout).rounds == {}
