"""Watching from disk: what ended is told once, what is under way is shown, a run that nobody runs ends the watch."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from autoqec.contracts.events import RoundStarted, SequentialTestProgress
from autoqec.reporting.watch import WatchScreen, watch
from autoqec.store.layout import RunLayout
from autoqec.system import run_lock
from tests.support import runs


def console(*, terminal: bool = False) -> Console:
    return Console(
        file=io.StringIO(), width=200, force_terminal=terminal, color_system=None, markup=False, highlight=False
    )


def said(target: Console) -> str:
    assert isinstance(target.file, io.StringIO)
    return target.file.getvalue()


def training(layout: RunLayout, number: int, *losses: float) -> None:
    """What a child writes while it trains."""
    from autoqec.runner.spec import EVENTS, SCRATCH_DIR

    out = layout.round(number).dir / SCRATCH_DIR / "out"
    out.mkdir(parents=True, exist_ok=True)
    with (out / EVENTS).open("a", encoding="utf-8") as stream:
        for step, loss in enumerate(losses):
            event = {"phase": "training", "step": step, "steps": 100, "loss": loss, "eta_s": 61.0}
            stream.write(json.dumps(event) + "\n")


def test_a_run_that_is_over_is_summed_up(tmp_path: Path) -> None:
    target = console()
    watch(runs.make_run(tmp_path / "lab", 3), target, sleep=lambda _: pytest.fail("waited"))
    assert "Verified front" in said(target)


def test_rounds_are_told_as_they_end(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "lab", 1)
    row, target = runs.rows(layout)[0], console()

    def another(_: float) -> None:
        number = len(runs.rows(layout)) + 1
        if number > 3:
            (layout.root / run_lock.OWNER_FILE).unlink()  # its owner is gone
        runs.add_pending_round(layout, number, f"idea {number}")
        more = {"round": number, "round_attempt_id": f"attempt-{number}", "hypothesis": f"idea {number}"}
        runs.append(layout, row | more)

    with run_lock.lock_run(layout.root):
        watch(layout, target, sleep=another)
    text = said(target)
    assert text.count("hypothesis: idea 2") == text.count("hypothesis: idea 3") == 1
    assert text.count("Round 3 measured: Δ_LER") == 1 and text.count("verdict: VERIFIED") == 3
    assert "Round 1 tries" not in text  # it had ended before anybody watched


def test_what_is_under_way_is_on_the_screen(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "lab", 2)
    runs.add_pending_round(layout, 3, "a third idea")
    training(layout, 3, 0.5, 0.25)
    target = console(terminal=True)
    with run_lock.lock_run(layout.root):
        screen = WatchScreen(layout, target)
        assert screen.poll() and screen.poll()
        target.print(screen.draw())
    text = said(target)
    assert "a third idea" in text and "training · 1 of 100 · loss 0.25 · 1:01 left" in text
    assert "2 rounds" in text and "sandbox bubblewrap" in text and "Last rounds" in text


def test_an_owner_of_another_boot_or_a_dead_one_is_nobody(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "lab", 1)
    with run_lock.lock_run(layout.root):
        assert WatchScreen(layout, console()).poll()
        note = json.loads((layout.root / run_lock.OWNER_FILE).read_bytes())
    for change in ({"boot_id": "another"}, {"pid": 2**22 + 1}, {"start_time": 1}, {"pid": None}, {"pid": os.getpid()}):
        (layout.root / run_lock.OWNER_FILE).write_text(json.dumps(note | change), encoding="utf-8")
        assert WatchScreen(layout, console()).poll() is (change == {"pid": os.getpid()})


def test_hostile_words_do_not_steer_the_terminal(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "lab", 1)
    runs.add_pending_round(layout, 2, "\x1b[2Jgone [bold]x[/]")
    target = console()
    WatchScreen(layout, target).poll()
    assert "\x1b" not in said(target) and "[bold]x[/]" in said(target)


def test_what_the_judge_has_seen_so_far_is_shown_from_another_terminal(tmp_path: Path) -> None:
    from autoqec.reporting.live_status import LiveStatusWriter, RunLimits

    layout = runs.make_run(tmp_path / "lab", 2)
    runs.add_pending_round(layout, 3, "a third idea")
    counts = {"shots": 5000, "errors_reference": 70, "errors_candidate": 50, "fixed": 34, "broken": 14}
    screen_of, lines = console(terminal=True), console()
    with run_lock.lock_run(layout.root), LiveStatusWriter(layout, RunLimits(rounds=9)) as told:
        told(RoundStarted(round=3, phase="thinking"))
        told(SequentialTestProgress(round=3, **counts, budget=100_000, e_value=13.5, threshold=40.0))
        told._write()  # the second that it waits between two writes
        screen = WatchScreen(layout, screen_of)
        screen.poll()
        screen_of.print(screen.draw())
        WatchScreen(layout, lines).poll()
    for text in (said(screen_of), said(lines)):
        assert "verification · 5k of 100k" in text
        assert "Δ_LER = +4.00e-03 [+1.34e-03, +6.95e-03] (70 → 50 errors in 5k shots)" in text
    assert "2 of 9 rounds" in said(screen_of) and "left of the run" in said(screen_of)


def test_several_rounds_at_once_are_all_on_the_screen(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "lab", 1)
    for number in (2, 3):
        runs.add_pending_round(layout, number, f"idea {number}")
        training(layout, number, 0.5)
    target = console(terminal=True)
    screen = WatchScreen(layout, target)
    screen.poll()
    target.print(screen.draw())
    assert "Round 2  idea 2" in said(target) and "Round 3  idea 3" in said(target)
    runs.append(layout, runs.rows(layout)[0] | {"round": 2, "round_attempt_id": "attempt-2"})
    screen.poll()
    assert set(screen.live_view.rounds) == {3}
