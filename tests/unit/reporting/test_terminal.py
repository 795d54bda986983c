"""What people see: figures as they are, foreign text harmless, no event able to stop a run."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from autoqec.contracts.events import (
    EffectProgress,
    Event,
    LiveProgress,
    LlmBudgetExhausted,
    LlmGivenUp,
    LlmRetried,
    RoundEnded,
    RoundNominated,
    RoundPlanned,
    RoundRecorded,
    SequentialTestProgress,
    TrainingProgress,
)
from autoqec.reporting.terminal import LiveView
from autoqec.reporting.text import count, duration, interval, percent, plain, sparkline
from autoqec.runner.collect import EventForwarder
from autoqec.runner.spec import EVENTS
from tests.support import rounds

HOSTILE = "\x1b[2J\x1b]0;owned\x07[bold red]x[/]\r\n\u202egnp\x9b1m<script>"


def seen(*events: Event, terminal: bool = False, quiet: bool = False) -> str:
    out = io.StringIO()
    times = iter(range(0, 10**6, 20))
    console = Console(file=out, force_terminal=terminal, width=200, color_system=None, markup=False, highlight=False)
    with LiveView(console, quiet=quiet, clock=lambda: float(next(times))) as view:
        for event in events:
            view(event)
        if terminal:
            console.print(view.screen())
    return out.getvalue()


@given(st.text())
def test_no_text_steers_the_terminal(text: str) -> None:
    assert plain(text).isprintable() and len(plain(text)) <= 400


def test_hostile_text_is_shown_as_text() -> None:
    events = (RoundPlanned(round=1, hypothesis=HOSTILE, branch=HOSTILE),)
    for terminal in (False, True):
        shown = seen(*events, terminal=terminal)
        assert "\x1b[2J" not in shown and "\x07" not in shown and "\u202e" not in shown and "\x9b" not in shown
        assert "[bold red]x[/]" in shown


def test_every_kind_of_progress_moves_the_bar() -> None:
    counts = {"shots": 2000, "errors_reference": 70, "errors_candidate": 66, "fixed": 7, "broken": 3}
    shown = seen(
        LiveProgress(round=2, phase="training", step=5, steps=10, loss=0.5, eta_s=61.0),
        SequentialTestProgress(round=2, **counts, budget=20_000),
    )
    assert "round 2: training · 5 of 10 · loss 0.5 · 1:01 left" in shown
    assert "verification · 2k of 20k" in shown and "fixed 7 · broken 3" in shown


def test_why_a_round_failed_is_said_once() -> None:
    failed = RoundEnded(round=1, status="compile_error", status_reason="too many parameters")
    ignored = RoundNominated(round=1, verdict="ignore", summary_1line="compile_error: too many parameters")
    shown = seen(failed, ignored, RoundNominated(round=2, verdict="ignore", summary_1line="too weak"))
    assert shown.count("too many parameters") == 1 and "Round 2 not nominated: too weak" in shown


def test_a_model_that_is_not_heard_is_told_with_its_fault() -> None:
    fault = {
        "role": "ideator",
        "error": "LlmAuthError",
        "what": f"the provider does not take the key; hint: check it {HOSTILE}",
    }
    shown = seen(LlmGivenUp(**fault), LlmRetried(**fault), LlmBudgetExhausted(what="the next call could break it"))
    assert "ideator proceeds without its model in this round: the provider does not take the key; hint: check" in shown
    assert "the answer for the ideator was invalid" in shown and "is used up: the next call could" in shown
    assert "\x1b" not in shown


COUNTS = {"shots": 5000, "errors_reference": 70, "errors_candidate": 50, "fixed": 34, "broken": 14}


def test_the_gain_stands_with_its_interval_and_counts_while_shots_come_in() -> None:
    judged = SequentialTestProgress(round=1, **COUNTS, budget=100_000, e_value=13.5, threshold=40.0)
    for terminal in (False, True):
        shown = seen(judged, terminal=terminal)
        assert "verification · 5k of 100k" in shown and "fixed 34 · broken 14 · e-value 13.5 of 40" in shown
        assert "Δ_LER = +4.00e-03 [+1.34e-03, +6.95e-03] (70 → 50 errors in 5k shots)" in shown
    drawn = EffectProgress(round=1, phase="measuring the gain", **COUNTS, budget=100_000)
    assert "measuring the gain · 5k of 100k · Δ_LER = +4.00e-03" in seen(judged, drawn)
    assert "evaluating · 5k of 20k · Δ_LER = +4.00e-03" in seen(
        TrainingProgress(round=1, phase="evaluating", **COUNTS, budget=20_000)
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"shots": 0},
        {"shots": 60},
        {"fixed": 71},
        {"broken": -1},
        {"errors_candidate": 49},
        {"fixed": None},
        {"shots": 10**400},
        {"errors_reference": "70"},
    ],
)
def test_counts_that_contradict_are_no_gain(wrong: dict[str, Any], tmp_path: Path) -> None:
    """A child writes its own progress: whatever it says must neither stop the parent nor be shown as a figure."""
    line = json.dumps({"phase": "evaluating", **COUNTS, "budget": 20_000, **wrong})
    (tmp_path / EVENTS).write_text(line + "\n", encoding="utf-8")
    events: list[Event] = []
    EventForwarder(tmp_path, 1, events.append).forward()
    assert len(events) == 1 and "errors in" not in seen(*events)


def test_rounds_at_once_stand_side_by_side() -> None:
    events = [
        TrainingProgress(round=number, phase="training", step=step, steps=10, loss=1.0 / step)
        for step in (1, 2, 3)
        for number in (1, 2)
    ]
    shown = seen(*events, terminal=True)
    assert "Round 1 " in shown and "Round 2 " in shown and shown.count("3 of 10") in (2, 4)
    over = seen(*events, RoundRecorded(round=1, phase="done", row=rounds.row(1)), terminal=True)
    assert "Round 1 " not in over and "Round 2 " in over


def test_quiet_says_nothing() -> None:
    assert seen(RoundPlanned(round=1, hypothesis="wider"), quiet=True) == ""


def test_figures() -> None:
    assert [count(value) for value in (None, 12, 1234, 1.5e6, 2e9)] == ["–", "12", "1.23k", "1.5M", "2G"]
    assert (percent(-0.325), percent(None)) == ("-32.5%", "–")
    assert interval(0.301, 0.35) == "[+30.1, +35.0]%" and interval(None, 1) == ""
    assert (duration(59.6), duration(3725)) == ("1:00", "1:02:05")


def test_sparkline_follows_the_series() -> None:
    assert sparkline([]) == "" and sparkline([float("nan")]) == ""
    assert sparkline([3, 2, 1]) == "█▅▁" or sparkline([3, 2, 1])[0] == "█"
    assert len(sparkline(list(range(1000)))) <= 24
