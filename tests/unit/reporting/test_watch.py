"""Watching a run from its files: each finished round once, the current ones live, until no process owns the run."""

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


def screen_text(target: Console) -> str:
    assert isinstance(target.file, io.StringIO)
    return target.file.getvalue()


def training(layout: RunLayout, number: int, *losses: float) -> None:
    """Write progress as a child does during training."""
    from autoqec.runner.spec import EVENTS, SCRATCH_DIR

    out = layout.round(number).dir / SCRATCH_DIR / "out"
    out.mkdir(parents=True, exist_ok=True)
    with (out / EVENTS).open("a", encoding="utf-8") as stream:
        for step, loss in enumerate(losses):
            event = {"phase": "training", "step": step, "steps": 100, "loss": loss, "eta_s": 61.0}
            stream.write(json.dumps(event) + "\n")


def test_finished_run_is_summarized(tmp_path: Path) -> None:
    target = console()
    watch(runs.make_run(tmp_path / "workspace", 3), target, sleep=lambda _: pytest.fail("waited"))
    assert "Verified front" in screen_text(target)


def test_rounds_are_printed_as_they_finish(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "workspace", 1)
    row, target = runs.rows(layout)[0], console()

    def another(_: float) -> None:
        number = len(runs.rows(layout)) + 1
        if number > 3:
            (layout.root / run_lock.OWNER_FILE).unlink()  # its owner has ended
        runs.add_pending_round(layout, number, f"idea {number}")
        more = {"round": number, "round_attempt_id": f"attempt-{number}", "hypothesis": f"idea {number}"}
        runs.append(layout, row | more)

    with run_lock.lock_run(layout.root):
        watch(layout, target, sleep=another)
    text = screen_text(target)
    assert text.count("hypothesis: idea 2") == text.count("hypothesis: idea 3") == 1
    assert text.count("Round 3 measured: Δ_LER") == 1 and text.count("verdict: VERIFIED") == 3
    assert "Round 1 tries" not in text  # it ended before the watch began


def test_current_round_is_on_the_screen(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "workspace", 2)
    runs.add_pending_round(layout, 3, "a third idea")
    training(layout, 3, 0.5, 0.25)
    target = console(terminal=True)
    with run_lock.lock_run(layout.root):
        screen = WatchScreen(layout, target)
        assert screen.poll() and screen.poll()
        target.print(screen.draw())
    text = screen_text(target)
    assert "a third idea" in text and "training · 1 of 100 · loss 0.25 · 1:01 left" in text
    assert "2 rounds" in text and "sandbox bubblewrap" in text and "Last rounds" in text


def test_owner_of_another_boot_or_dead_owner_does_not_count(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "workspace", 1)
    with run_lock.lock_run(layout.root):
        assert WatchScreen(layout, console()).poll()
        note = json.loads((layout.root / run_lock.OWNER_FILE).read_bytes())
    for change in ({"pid": 2**22 + 1}, {"start_time": 1}, {"pid": None}, {"pid": os.getpid()}):
        (layout.root / run_lock.OWNER_FILE).write_text(json.dumps(note | change), encoding="utf-8")
        assert WatchScreen(layout, console()).poll() is (change == {"pid": os.getpid()})


def test_untrusted_text_does_not_control_the_terminal(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "workspace", 1)
    runs.add_pending_round(layout, 2, "\x1b[2Jgone [bold]x[/]")
    target = console()
    WatchScreen(layout, target).poll()
    assert "\x1b" not in screen_text(target) and "[bold]x[/]" in screen_text(target)


def test_progress_of_the_verification_is_shown_in_another_terminal(tmp_path: Path) -> None:
    from autoqec.reporting.live_status import LiveStatusWriter, SessionLimits

    layout = runs.make_run(tmp_path / "workspace", 2)
    runs.add_pending_round(layout, 3, "a third idea")
    counts = {"shots": 5000, "errors_reference": 70, "errors_candidate": 50, "fixed": 34, "broken": 14}
    screen_of, lines = console(terminal=True), console()
    with run_lock.lock_run(layout.root), LiveStatusWriter(layout, SessionLimits(rounds=9)) as writer:
        writer(RoundStarted(round=3, phase="thinking"))
        writer(SequentialTestProgress(round=3, **counts, budget=100_000, e_value=13.5, threshold=40.0))
        writer._write()  # without waiting for the second between two writes
        screen = WatchScreen(layout, screen_of)
        screen.poll()
        screen_of.print(screen.draw())
        WatchScreen(layout, lines).poll()
    for text in (screen_text(screen_of), screen_text(lines)):
        assert "verification · 5k of 100k" in text
        assert "Δ_LER = +4.00e-03 [+1.34e-03, +6.95e-03] (70 → 50 errors in 5k shots)" in text
    assert "2 of 9 rounds" in screen_text(screen_of) and "left of the run" in screen_text(screen_of)


def test_concurrent_rounds_are_all_on_the_screen(tmp_path: Path) -> None:
    layout = runs.make_run(tmp_path / "workspace", 1)
    for number in (2, 3):
        runs.add_pending_round(layout, number, f"idea {number}")
        training(layout, number, 0.5)
    target = console(terminal=True)
    screen = WatchScreen(layout, target)
    screen.poll()
    target.print(screen.draw())
    assert "Round 2  idea 2" in screen_text(target) and "Round 3  idea 3" in screen_text(target)
    runs.append(layout, runs.rows(layout)[0] | {"round": 2, "round_attempt_id": "attempt-2"})
    screen.poll()
    assert set(screen.live_view.rounds) == {3}
