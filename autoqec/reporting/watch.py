"""`autoqec watch RUN`: the live screen from disk alone, for any run and from any terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from autoqec.contracts.history import HistoryRow
from autoqec.reporting import run_data
from autoqec.reporting.dashboard import Dashboard
from autoqec.reporting.run_data import Pending
from autoqec.reporting.run_view import RunView
from autoqec.reporting.summary import print_summary
from autoqec.reporting.terminal import LiveView
from autoqec.store.layout import RunLayout
from autoqec.store.run_state import attempt_of

EVERY_S = 1.0


def watch(
    layout: RunLayout, console: Console, *, quiet: bool = False, sleep: Callable[[float], None] = time.sleep
) -> RunView:
    """Show the run until nobody runs it any more, then its summary. Raises what `run_view.load` raises."""
    screen = Screen(layout, console, quiet=quiet)
    if console.is_terminal and not quiet:
        with Live(console=console, get_renderable=screen.draw, refresh_per_second=4, screen=True):
            _until_over(screen, sleep)
    else:
        _until_over(screen, sleep)
    print_summary(console, screen.view)
    return screen.view


def _until_over(screen: Screen, sleep: Callable[[float], None]) -> None:
    while screen.poll():
        sleep(EVERY_S)


class Screen:
    """What the files say, and what has become of it since the last look."""

    def __init__(self, layout: RunLayout, console: Console, *, quiet: bool = False) -> None:
        self.layout = layout
        # Lines go to the console where it is no terminal; on a terminal this screen stands for all of them.
        self.now = LiveView(console, quiet=quiet or console.is_terminal)
        self.now.dashboard = self.dashboard = Dashboard(layout)
        self._told = {attempt_of(row) for row in self.view.rows}
        self._planned: set[int] = set()
        self._training: dict[int, Any] = {}

    @property
    def view(self) -> RunView:
        return self.dashboard.view

    def poll(self) -> bool:
        """Look once; whether somebody is still running it."""
        living = run_data.living(self.layout)
        self.dashboard.look()
        for row in self.view.rows:
            if attempt_of(row) not in self._told:
                self._told.add(attempt_of(row))
                self._ended(row)
        pending = run_data.pending(self.layout, self.view.state.rounds)
        for one in pending:
            self._under_way(one)
        for number in set(self.now.rounds) - {one.round for one in pending}:
            del self.now.rounds[number]
        return living

    def draw(self) -> RenderableType:
        return Group(self.now.screen(), Text("Ctrl-C leaves; the run goes on.", style="dim"))

    def _under_way(self, one: Pending) -> None:
        if one.hypothesis and one.round not in self._planned:
            self._planned.add(one.round)
            self.now("planned", {"round": one.round, "hypothesis": one.hypothesis, "phase": one.reached})
        said = self.dashboard.told.rounds.get(one.round, {})
        if self._forward(one.round):
            return
        self.now("progress", {"round": one.round, "phase": one.reached, **said})

    def _forward(self, number: int) -> bool:
        """The child's own progress, from the file it writes while it trains; False where there is none (any more)."""
        from autoqec.runner.collect import Events
        from autoqec.runner.runner import SCRATCH

        out = self.layout.round(number).dir / SCRATCH / "out"
        if not out.is_dir():
            return False
        self._training.setdefault(number, Events(out, number, self.now)).forward()
        return True

    def _ended(self, row: HistoryRow) -> None:
        for kind, payload in _events(row, told=row.round in self._planned):
            self.now(kind, payload)


def _events(row: HistoryRow, *, told: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    """The events that a round told while it went, as its row remembers them."""
    if not told:
        yield "planned", {"round": row.round, "hypothesis": row.hypothesis}
    measured = ("status", "status_reason", "delta_ler", "val_shots")
    yield "measured", {"round": row.round, **{key: getattr(row, key) for key in measured}}
    if row.status == "ok":
        yield "nominated", {"round": row.round, "verdict": row.verdict, "summary_1line": row.summary_1line}
    if row.verify_verdict is not None:
        yield "judge_verdict", {"round": row.round, "verdict": row.verify_verdict, "reasons": row.verify_reasons}
