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

POLL_INTERVAL_S = 1.0


def watch(
    layout: RunLayout, console: Console, *, quiet: bool = False, sleep: Callable[[float], None] = time.sleep
) -> RunView:
    """Show the run until nobody runs it any more, then its summary. Raises what `run_view.load` raises."""
    screen = WatchScreen(layout, console, quiet=quiet)
    if console.is_terminal and not quiet:
        with Live(console=console, get_renderable=screen.draw, refresh_per_second=4, screen=True):
            _poll_until_done(screen, sleep)
    else:
        _poll_until_done(screen, sleep)
    print_summary(console, screen.view)
    return screen.view


def _poll_until_done(screen: WatchScreen, sleep: Callable[[float], None]) -> None:
    while screen.poll():
        sleep(POLL_INTERVAL_S)


class WatchScreen:
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
        self.dashboard.refresh()
        for row in self.view.rows:
            if attempt_of(row) not in self._told:
                self._told.add(attempt_of(row))
                self._show_finished(row)
        pending = run_data.pending(self.layout, self.view.state.rounds)
        for pending_round in pending:
            self._show_pending(pending_round)
        for number in set(self.now.rounds) - {pending_round.round for pending_round in pending}:
            del self.now.rounds[number]
        return living

    def draw(self) -> RenderableType:
        return Group(self.now.screen(), Text("Ctrl-C leaves; the run goes on.", style="dim"))

    def _show_pending(self, pending_round: Pending) -> None:
        if pending_round.hypothesis and pending_round.round not in self._planned:
            self._planned.add(pending_round.round)
            self.now(
                "planned",
                {"round": pending_round.round, "hypothesis": pending_round.hypothesis, "phase": pending_round.reached},
            )
        live_payload = self.dashboard.told.rounds.get(pending_round.round, {})
        if self._forward(pending_round.round):
            return
        self.now("progress", {"round": pending_round.round, "phase": pending_round.reached, **live_payload})

    def _forward(self, number: int) -> bool:
        """The child's own progress, from the file it writes while it trains; False where there is none (any more)."""
        from autoqec.runner.collect import EventForwarder
        from autoqec.runner.runner import SCRATCH_DIR

        out = self.layout.round(number).dir / SCRATCH_DIR / "out"
        if not out.is_dir():
            return False
        self._training.setdefault(number, EventForwarder(out, number, self.now)).forward()
        return True

    def _show_finished(self, row: HistoryRow) -> None:
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
