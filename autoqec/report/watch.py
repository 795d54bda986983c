"""`autoqec watch RUN`: the live screen from disk alone, for any run and from any terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from autoqec.contracts.history import HistoryRow
from autoqec.report import run_data, run_view
from autoqec.report.run_data import Pending
from autoqec.report.run_view import RunView, attempt_of
from autoqec.report.summary import front_table, print_summary, rounds_table
from autoqec.report.terminal import LiveView
from autoqec.report.text import count, duration, plain
from autoqec.store.layout import RunLayout

EVERY_S = 1.0
SHOWN_ROUNDS = 8


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
        self.view = run_view.load(layout)
        # Lines go to the console where it is no terminal; on a terminal this screen stands for all of them.
        self.now = LiveView(console, quiet=quiet or console.is_terminal)
        self.pending: tuple[Pending, ...] = ()
        self._told = {attempt_of(row) for row in self.view.rows}
        self._planned: set[int] = set()
        self._training: dict[int, Any] = {}

    def poll(self) -> bool:
        """Look once; whether somebody is still running it."""
        living = run_data.living(self.layout)
        self.view = run_view.load(self.layout)
        for row in self.view.rows:
            if attempt_of(row) not in self._told:
                self._told.add(attempt_of(row))
                self._ended(row)
        closed = {attempt for row in self.view.rows if (attempt := attempt_of(row))}
        self.pending = run_data.pending(self.layout, closed)
        for one in self.pending:
            self._under_way(one)
        return living

    def draw(self) -> RenderableType:
        parts: list[RenderableType] = [Text(self.head(), style="bold")]
        if self.view.rows:
            parts.append(rounds_table(self.view.rows[-SHOWN_ROUNDS:]))
        if self.view.front:
            parts.append(front_table(self.view))
        if self.pending:
            parts.append(self.now.screen())
        return Group(*parts, Text("Ctrl-C leaves; the run goes on.", style="dim"))

    def head(self) -> str:
        """Run, what it has come to, pace, what it cost, and behind which walls."""
        info, rows = self.view.info, self.view.rows
        parts = [f"Run {info.run_id}", plain(info.env_name), f"profile {info.profile}"]
        parts.append(f"{len(rows)} rows, {self.view.verified} verified, {len(self.view.front)} on the front")
        seconds = [row.train_wallclock_s + (row.eval_wallclock_s or 0.0) for row in rows if row.train_wallclock_s]
        if seconds:
            parts.append(f"{duration(sum(seconds) / len(seconds))} a round before the judge")
        tiers = [row.sandbox for row in rows if row.sandbox]
        if tiers:
            parts.append(f"sandbox {plain(tiers[-1], 40)}")
        spent = run_data.spent(self.layout)
        if spent is not None:
            cost = "cost unknown" if spent["cost_usd"] is None else f"${spent['cost_usd']:.2f}"
            parts.append(f"{count(spent['calls'])} model calls, {cost}")
        return " · ".join(parts)

    def _under_way(self, one: Pending) -> None:
        phase = {"phase": one.reached}
        if one.hypothesis and one.round not in self._planned:
            self._planned.add(one.round)
            self.now("planned", {"round": one.round, "hypothesis": one.hypothesis, **phase})
        if not self._forward(one.round):
            self.now("progress", {"round": one.round, **phase})

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
