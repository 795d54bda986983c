"""Terminal output: exact figures, escaped untrusted text, and no event that can stop a run."""

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
    ShotsRead,
    TrainingProgress,
    VerificationStarted,
)
from autoqec.reporting.terminal import LiveView
from autoqec.reporting.text import count, duration, interval, percent, plain, sparkline
from autoqec.runner.collect import EventForwarder
from autoqec.runner.spec import EVENTS
from tests.support import rounds

HOSTILE = "\x1b[2J\x1b]0;owned\x07[bold red]x[/]\r\n\u202egnp\x9b1m<script>"


def render(*events: Event, terminal: bool = False, quiet: bool = False) -> str:
    out = io.StringIO()
    times = iter(range(0, 10**6, 20))
    console = Console(file=out, force_terminal=terminal, width=200, color_system=None, markup=False, highlight=False)
    with LiveView(console, quiet=quiet, clock=lambda: float(next(times))) as view:
        for event in events:
            view(event)
        if terminal:
            console.print(view.screen())
    return out.getvalue()


def screen_after(*events: Event) -> list[str]:
    """Return the lines of the screen after the events, without the frames that a thread draws in the meantime."""
    view = LiveView(Console(file=io.StringIO(), width=200, color_system=None), quiet=True, clock=lambda: 0.0)
    for event in events:
        view(event)
    with view.console.capture() as capture:
        view.console.print(view.screen())
    return capture.get().splitlines()


@given(st.text())
def test_no_text_controls_the_terminal(text: str) -> None:
    assert plain(text).isprintable() and len(plain(text)) <= 400


def test_hostile_text_is_shown_as_text() -> None:
    events = (RoundPlanned(round=1, hypothesis=HOSTILE, branch=HOSTILE),)
    for terminal in (False, True):
        output = render(*events, terminal=terminal)
        assert "\x1b[2J" not in output and "\x07" not in output and "\u202e" not in output and "\x9b" not in output
        assert "[bold red]x[/]" in output


def test_every_kind_of_progress_moves_the_bar() -> None:
    counts = {"shots": 2000, "errors_reference": 70, "errors_candidate": 66, "fixed": 7, "broken": 3}
    output = render(
        LiveProgress(round=2, phase="training", step=5, steps=10, loss=0.5, eta_s=61.0),
        SequentialTestProgress(round=2, **counts, budget=20_000),
    )
    assert "round 2: training · 5 of 10 · loss 0.5 · 1:01 left" in output
    assert "verification · 2k of 20k" in output and "fixed 7 · broken 3" in output


def test_reason_of_a_failed_round_is_shown_once() -> None:
    failed = RoundEnded(round=1, status="compile_error", status_reason="too many parameters")
    ignored = RoundNominated(round=1, verdict="ignore", summary_1line="compile_error: too many parameters")
    output = render(failed, ignored, RoundNominated(round=2, verdict="ignore", summary_1line="too weak"))
    assert output.count("too many parameters") == 1 and "Round 2 not nominated: too weak" in output


def test_unreachable_model_is_shown_with_its_error() -> None:
    fault = {
        "role": "ideator",
        "error": "LlmAuthError",
        "what": f"the provider does not take the key; hint: check it {HOSTILE}",
    }
    output = render(LlmGivenUp(**fault), LlmRetried(**fault), LlmBudgetExhausted(what="the next call could break it"))
    assert "ideator proceeds without its model in this round: the provider does not take the key; hint: check" in output
    assert "the answer for the ideator was invalid" in output and "is used up: the next call could" in output
    assert "\x1b" not in output


COUNTS = {"shots": 5000, "errors_reference": 70, "errors_candidate": 50, "fixed": 34, "broken": 14}


def test_gain_is_shown_with_interval_and_counts_during_verification() -> None:
    progress = SequentialTestProgress(round=1, **COUNTS, budget=100_000, e_value=13.5, threshold=40.0)
    for terminal in (False, True):
        output = render(progress, terminal=terminal)
        assert "verification · 5k of 100k" in output and "fixed 34 · broken 14 · e-value 13.5 (40 needed)" in output
        assert "Δ_LER = +4.00e-03 [+1.34e-03, +6.95e-03] (70 → 50 errors in 5k shots)" in output
    small = SequentialTestProgress(round=1, **COUNTS, budget=2000, e_value=1.1, threshold=40.0)
    assert "verification · 5k of 5k" in render(small)  # a chunk is larger than the budget
    drawn = EffectProgress(round=1, phase="measuring the gain", **COUNTS, budget=100_000)
    assert "measuring the gain · 5k of 100k · Δ_LER = +4.00e-03" in render(progress, drawn)
    assert "evaluating · 5k of 20k · Δ_LER = +4.00e-03" in render(
        TrainingProgress(round=1, phase="evaluating", **COUNTS, budget=20_000)
    )


def test_terminal_without_cursor_control_gets_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "dumb")
    out = io.StringIO()
    with LiveView(Console(file=out, force_terminal=True, width=200)) as view:
        view(TrainingProgress(round=1, phase="evaluating", **COUNTS, budget=20_000))
    assert "evaluating · 5k of 20k" in out.getvalue() and "\x1b" not in out.getvalue()


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
def test_contradictory_counts_show_no_gain(wrong: dict[str, Any], tmp_path: Path) -> None:
    """A child reports its own progress; invalid counts must neither stop the parent nor be shown."""
    line = json.dumps({"phase": "evaluating", **COUNTS, "budget": 20_000, **wrong})
    (tmp_path / EVENTS).write_text(line + "\n", encoding="utf-8")
    events: list[Event] = []
    EventForwarder(tmp_path, 1, events.append).forward()
    assert len(events) == 1 and "errors in" not in render(*events)


def test_reading_of_recorded_shots_is_shown_before_the_run_starts() -> None:
    for total, shown in ((40, "starting: hashing events.b8 25%"), (None, "starting: hashing events.b8")):
        reading = ShotsRead(what="hashing events.b8", done=10, total=total)
        assert screen_after(reading) == [shown]
        assert "hashing" not in "".join(screen_after(reading, RoundRecorded(round=1, phase="done", row=rounds.row(1))))
    assert "hashing" not in render(ShotsRead(what="hashing events.b8", done=10, total=40))


def test_reading_of_sealed_shots_is_shown_below_the_round_until_it_is_complete() -> None:
    view = LiveView(Console(file=io.StringIO(), width=100))
    view(VerificationStarted(round=2, phase="verification"))
    for done, shown in ((10, True), (40, False)):
        view(ShotsRead(what="hashing events.b8", done=done, total=40))
        with view.console.capture() as capture:
            view.console.print(view.screen())
        assert "Round 2" in capture.get() and ("\nhashing events.b8 25%" in capture.get()) == shown


def test_concurrent_rounds_have_one_line_each() -> None:
    events = [
        TrainingProgress(round=number, phase="training", step=step, steps=10, loss=1.0 / step)
        for step in (1, 2, 3)
        for number in (1, 2)
    ]
    both = screen_after(*events)
    assert [line.split()[:2] for line in both if line.startswith("Round")] == [["Round", "1"], ["Round", "2"]]
    assert sum("3 of 10" in line for line in both) == 2
    over = screen_after(*events, RoundRecorded(round=1, phase="done", row=rounds.row(1)))
    assert [line.split()[:2] for line in over if line.startswith("Round")] == [["Round", "2"]]
    assert sum("3 of 10" in line for line in over) == 1


def test_quiet_prints_nothing() -> None:
    assert render(RoundPlanned(round=1, hypothesis="wider"), quiet=True) == ""


def test_figures_are_formatted_exactly() -> None:
    assert [count(value) for value in (None, 12, 1234, 1.5e6, 2e9)] == ["–", "12", "1.23k", "1.5M", "2G"]
    assert (percent(-0.325), percent(None)) == ("-32.5%", "–")
    assert interval(0.301, 0.35) == "[+30.1, +35.0]%" and interval(None, 1) == ""
    assert (duration(59.6), duration(3725)) == ("1:00", "1:02:05")


def test_sparkline_follows_the_series() -> None:
    assert sparkline([]) == "" and sparkline([float("nan")]) == ""
    assert sparkline([3, 2, 1]) == "█▅▁" or sparkline([3, 2, 1])[0] == "█"
    assert len(sparkline(list(range(1000)))) <= 24
