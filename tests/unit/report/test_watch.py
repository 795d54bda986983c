"""Watching from disk: what ended is told once, what is under way is shown, a run that nobody runs ends the watch."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path

import pytest
from rich.console import Console

from autoqec.host import owner
from autoqec.report.watch import Screen, watch
from autoqec.store.layout import RunLayout
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
    from autoqec.runner.runner import SCRATCH
    from autoqec.runner.spec import EVENTS

    out = layout.round(number).dir / SCRATCH / "out"
    out.mkdir(parents=True, exist_ok=True)
    with (out / EVENTS).open("a", encoding="utf-8") as stream:
        for step, loss in enumerate(losses):
            event = {"phase": "training", "step": step, "steps": 100, "loss": loss, "eta_s": 61.0}
            stream.write(json.dumps(event) + "\n")


def test_a_run_that_is_over_is_summed_up(tmp_path: Path) -> None:
    target = console()
    watch(runs.made_run(tmp_path / "lab", 3), target, sleep=lambda _: pytest.fail("waited"))
    assert "Verified front" in said(target)


def test_rounds_are_told_as_they_end(tmp_path: Path) -> None:
    layout = runs.made_run(tmp_path / "lab", 1)
    row, target = runs.rows(layout)[0], console()

    def another(_: float) -> None:
        number = len(runs.rows(layout)) + 1
        if number > 3:
            (layout.root / owner.OWNER_FILE).unlink()  # its owner is gone
        runs.under_way(layout, number, f"idea {number}")
        more = {"round": number, "round_attempt_id": f"attempt-{number}", "hypothesis": f"idea {number}"}
        runs.append(layout, row | more)

    with owner.hold(layout.root):
        watch(layout, target, sleep=another)
    text = said(target)
    assert text.count("tries: idea 2") == text.count("tries: idea 3") == 1
    assert text.count("Round 3 measured: Δ_LER") == 1 and text.count("the judge: VERIFIED") == 3
    assert "Round 1 tries" not in text  # it had ended before anybody watched


def test_what_is_under_way_is_on_the_screen(tmp_path: Path) -> None:
    layout = runs.made_run(tmp_path / "lab", 2)
    runs.under_way(layout, 3, "a third idea")
    training(layout, 3, 0.5, 0.25)
    target = console(terminal=True)
    with owner.hold(layout.root):
        screen = Screen(layout, target)
        assert screen.poll() and screen.poll()
        target.print(screen.draw())
    text = said(target)
    assert "a third idea" in text and "training · 1 of 100 · loss 0.25 · 1:01 left" in text
    assert "2 rows" in text and "sandbox bubblewrap" in text and "Rounds" in text


def test_an_owner_of_another_boot_or_a_dead_one_is_nobody(tmp_path: Path) -> None:
    layout = runs.made_run(tmp_path / "lab", 1)
    with owner.hold(layout.root):
        assert Screen(layout, console()).poll()
        note = json.loads((layout.root / owner.OWNER_FILE).read_bytes())
    for change in ({"boot_id": "another"}, {"pid": 2**22 + 1}, {"start_time": 1}, {"pid": None}, {"pid": os.getpid()}):
        (layout.root / owner.OWNER_FILE).write_text(json.dumps(note | change), encoding="utf-8")
        assert Screen(layout, console()).poll() is (change == {"pid": os.getpid()})


def test_hostile_words_do_not_steer_the_terminal(tmp_path: Path) -> None:
    layout = runs.made_run(tmp_path / "lab", 1)
    runs.under_way(layout, 2, "\x1b[2Jgone [bold]x[/]")
    target = console()
    Screen(layout, target).poll()
    assert "\x1b" not in said(target) and "[bold]x[/]" in said(target)
