"""live.json: status of a running process for other terminals, with malformed content and failing disks."""

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
from autoqec.reporting.live_status import LiveStatusWriter, SessionLimits
from autoqec.store.layout import RunLayout
from tests.support import rounds

COUNTS = {"shots": 5000, "errors_reference": 70, "errors_candidate": 50, "fixed": 34, "broken": 14}


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    found = RunLayout(tmp_path, "20250102-030405")
    found.root.mkdir(parents=True)
    return found


def test_file_has_plan_and_rounds_and_is_removed_at_the_end(layout: RunLayout) -> None:
    plan = SessionLimits(rounds=5, usd=3.0, parallel=2, began=12.5, sandbox="bubblewrap")
    with LiveStatusWriter(layout, plan, clock=iter(range(100)).__next__) as writer:
        assert live_status.read(layout).plan == plan
        writer(SequentialTestProgress(round=2, **COUNTS, budget=100_000))
        writer(LlmBudgetExhausted(what="no round"))
        writer(VerdictReached(round=4, verdict="FAILED", reasons=("no figure",)))
        writer(TrainingProgress(round=3, phase="training", step=4, steps=9))
        rounds_now = live_status.read(layout).rounds
        assert rounds_now[2] == LiveProgress(round=2, kind="judge_test", phase="verification", **COUNTS, budget=100_000)
        assert (
            rounds_now[3].step == 4
            and rounds_now[4].phase == "verification"
            and "no figure" not in layout.live.read_text(encoding="utf-8")
        )
        writer(RoundRecorded(round=2, row=rounds.row(2)))
        assert set(live_status.read(layout).rounds) == {3, 4}
    assert not layout.live.exists()


def test_file_is_written_at_most_once_per_second(layout: RunLayout) -> None:
    times = iter([0.0, 0.1, 0.2, 1.5, 1.6])
    with LiveStatusWriter(layout, SessionLimits(), clock=lambda: next(times)) as writer:
        intervals = []
        for step in (1, 2, 3):
            writer(TrainingProgress(round=1, step=step))
            intervals += [progress.step for progress in live_status.read(layout).rounds.values()]
    assert intervals == [3]


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
def test_unreadable_file_is_an_empty_status(layout: RunLayout, text: str) -> None:
    layout.live.write_text(text, encoding="utf-8")
    assert live_status.read(layout) == live_status.LiveStatus(SessionLimits(), {})


def test_invalid_values_of_the_plan_are_skipped(layout: RunLayout) -> None:
    plan: dict[str, Any] = {"rounds": "many", "hours": True, "usd": 2.0, "sandbox": 7, "unknown": 1}
    layout.live.write_text(json.dumps({"plan": plan, "rounds": {}}), encoding="utf-8")
    assert live_status.read(layout).plan == SessionLimits(usd=2.0)


def test_unwritable_directory_does_not_fail_the_run(layout: RunLayout) -> None:
    layout.root.rmdir()
    layout.root.symlink_to("/proc/self/fdinfo")  # no file can be created in it, not even by root
    with LiveStatusWriter(layout, SessionLimits()) as writer:
        writer(TrainingProgress(round=1, step=1))


def test_irreplaceable_file_does_not_fail_the_run(layout: RunLayout) -> None:
    layout.live.mkdir()
    with LiveStatusWriter(layout, SessionLimits()) as writer:
        writer(TrainingProgress(round=1, step=1))
    assert live_status.read(layout).rounds == {}
