"""Follows a run from its files alone, so that it works for any run and from any terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from autoqec import plugins
from autoqec.contracts.events import (
    LiveProgress,
    RoundEvent,
    RoundMeasured,
    RoundNominated,
    RoundPlanned,
    VerdictReached,
)
from autoqec.contracts.history import HistoryRow
from autoqec.reporting import run_report
from autoqec.reporting.dashboard import Dashboard
from autoqec.reporting.run_report import PendingRound, RunReport
from autoqec.reporting.summary import print_summary
from autoqec.reporting.terminal import LiveView
from autoqec.store.layout import RunLayout
from autoqec.store.run_state import attempt_of

POLL_INTERVAL_S = 1.0
JOB_POLLS = 30  # between two questions to SLURM about the job of a detached run


def describe_job(layout: RunLayout) -> str | None:
    """Return one line about the job that executes a detached run, and what to do; None for any other run."""
    return next(filter(None, (plugin.describe(layout) for plugin in _executors_of(layout))), None)


def _is_abandoned(layout: RunLayout) -> bool:
    return any(plugin.is_abandoned(layout) for plugin in _executors_of(layout))


def _executors_of(layout: RunLayout) -> list[Any]:
    """Return the plugins that may execute a run elsewhere; none for a run that is not detached."""
    names = plugins.names("autoqec.executors") if layout.detached.exists() else ()
    return [plugins.load("autoqec.executors", name) for name in names]


def watch(
    layout: RunLayout, console: Console, *, quiet: bool = False, sleep: Callable[[float], None] = time.sleep
) -> RunReport:
    """Show a run until its process ends, then print its summary. Raises what `run_report.load` raises."""
    screen = WatchScreen(layout, console, quiet=quiet)
    if console.is_interactive and not quiet:
        with Live(console=console, get_renderable=screen.draw, refresh_per_second=4, screen=True):
            _poll_until_done(screen, sleep)
    else:
        _poll_until_done(screen, sleep)
    print_summary(console, screen.run)
    if (job := describe_job(layout)) is not None:
        console.print(Text(job), soft_wrap=True)
    return screen.run


def _poll_until_done(screen: WatchScreen, sleep: Callable[[float], None]) -> None:
    polls = 0
    while screen.poll() and (polls % JOB_POLLS or not _is_abandoned(screen.layout)):
        sleep(POLL_INTERVAL_S)
        polls += 1


class WatchScreen:
    """State of a run as its files describe it, and what has changed since the last poll."""

    def __init__(self, layout: RunLayout, console: Console, *, quiet: bool = False) -> None:
        self.layout = layout
        # On a terminal this screen replaces the lines of events.
        self.live_view = LiveView(console, quiet=quiet or console.is_interactive)
        self.live_view.dashboard = self.dashboard = Dashboard(layout)
        self._seen = {attempt_of(row) for row in self.run.rows}
        self._planned: set[int] = set()
        self._training: dict[int, Any] = {}

    @property
    def run(self) -> RunReport:
        """The run as of the last poll."""
        return self.dashboard.run

    def poll(self) -> bool:
        """Read the files once; return whether the run is still in progress."""
        running = run_report.is_running(self.layout)
        self.dashboard.refresh()
        for row in self.run.rows:
            if attempt_of(row) not in self._seen:
                self._seen.add(attempt_of(row))
                self._show_finished(row)
        pending = self.run.pending
        for pending_round in pending:
            self._show_pending(pending_round)
        for number in set(self.live_view.rounds) - {pending_round.round for pending_round in pending}:
            del self.live_view.rounds[number]
        return running

    def draw(self) -> RenderableType:
        """Return the screen as of the last poll."""
        return Group(self.live_view.screen(), Text("Ctrl-C stops watching; the run continues.", style="dim"))

    def _show_pending(self, pending_round: PendingRound) -> None:
        if pending_round.hypothesis and pending_round.round not in self._planned:
            self._planned.add(pending_round.round)
            number, phase = pending_round.round, pending_round.phase
            self.live_view(RoundPlanned(round=number, phase=phase, hypothesis=pending_round.hypothesis))
        if self._forward(pending_round.round):
            return
        progress = self.dashboard.live.rounds.get(pending_round.round) or LiveProgress(round=pending_round.round)
        self.live_view(progress.model_copy(update={"phase": progress.phase or pending_round.phase}))

    def _forward(self, number: int) -> bool:
        """Forward the progress that the training process writes; return False if there is none."""
        from autoqec.runner.collect import EventForwarder
        from autoqec.runner.spec import SCRATCH_DIR

        out = self.layout.round(number).dir / SCRATCH_DIR / "out"
        if not out.is_dir():
            return False
        self._training.setdefault(number, EventForwarder(out, number, self.live_view)).forward()
        return True

    def _show_finished(self, row: HistoryRow) -> None:
        for event in _events(row, planned=row.round in self._planned):
            self.live_view(event)


def _events(row: HistoryRow, *, planned: bool) -> Iterator[RoundEvent]:
    """Reconstruct the events of a finished round from its row."""
    if not planned:
        yield RoundPlanned(round=row.round, hypothesis=row.hypothesis)
    yield RoundMeasured(round=row.round, metrics=row)
    if row.status == "ok":
        yield RoundNominated(round=row.round, verdict=row.verdict, summary_1line=row.summary_1line)
    if row.verify_verdict is not None:
        yield VerdictReached(round=row.round, verdict=row.verify_verdict, reasons=row.verify_reasons)
