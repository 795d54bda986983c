"""Live view of a run: a screen on a terminal, lines elsewhere. Driven by events alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from autoqec.contracts.events import (
    Event,
    JobReported,
    LlmBudgetExhausted,
    LlmGivenUp,
    LlmRetried,
    LlmUnusable,
    RoundEnded,
    RoundEvent,
    RoundMeasured,
    RoundNominated,
    RoundPlanned,
    RoundRecorded,
    ShotsRead,
    VerdictReached,
)
from autoqec.errors import AutoqecError
from autoqec.reporting.dashboard import Dashboard
from autoqec.reporting.round_progress import RoundProgress
from autoqec.reporting.text import count, plain

PIPE_WIDTH = 160  # columns of tables that are not written to a terminal
PROGRESS_INTERVAL_S = 15.0  # between two progress lines of one phase, without a terminal


def console(*, err: bool = False) -> Console:
    """Return a console that respects NO_COLOR, interprets no markup, and is wide unless it is a terminal."""
    result = Console(stderr=err, highlight=False, emoji=False, markup=False)
    if not result.is_terminal:
        result.width = PIPE_WIDTH
    return result


class LiveView:
    """Event callback that shows the progress of a run; a context manager."""

    def __init__(
        self,
        target: Console,
        *,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console, self.quiet, self.clock = target, quiet, clock
        self.dashboard: Dashboard | None = None  # set once the run exists
        self.reading = ""  # of recorded shots, while it lasts
        self.rounds: dict[int, RoundProgress] = {}
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self.console.is_interactive and not self.quiet:
            self._live = Live(console=self.console, get_renderable=self.screen, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __call__(self, event: Event) -> None:
        """Handle one event."""
        if isinstance(event, ShotsRead):
            share = "" if not event.total else f" {100 * event.done // event.total}%"
            self.reading = "" if event.done == event.total else f"{plain(event.what)}{share}"
        elif not event.frequent:
            self.reading = ""
        now = self._update_round(event) if isinstance(event, RoundEvent) else None
        # The failure of a round has been reported: that it is not nominated follows from it.
        nomination = isinstance(event, RoundNominated) and event.verdict == "ignore"
        line = None if now is not None and now.failed and nomination else event_line(event)
        if line is not None:
            self._print_line(line)
        elif now is not None and now.total and self._live is None:
            self._progress_line(now)
        if isinstance(event, RoundRecorded):
            self.rounds = {number: progress for number, progress in self.rounds.items() if progress is not now}
            if self.dashboard is not None:
                with suppress(AutoqecError):  # the screen keeps its state; the run itself reports what is wrong
                    self.dashboard.refresh()

    def _update_round(self, event: RoundEvent) -> RoundProgress:
        if event.round not in self.rounds:
            self.rounds[event.round] = RoundProgress(event.round, self.clock, phase_began=self.clock())
        self.rounds[event.round].update(event)
        return self.rounds[event.round]

    def _progress_line(self, now: RoundProgress) -> None:
        if self.clock() - now.last_printed >= PROGRESS_INTERVAL_S:
            now.last_printed = self.clock()
            self._print_line(f"  round {now.number}: {now.figures()}")

    def _print_line(self, line: str) -> None:
        if not self.quiet:
            self.console.print(Text(line), soft_wrap=True)

    def screen(self) -> RenderableType:
        """Return the head of the run, every round in progress, and the results so far."""
        now = list(self.rounds.values())  # a copy: events arrive while another thread draws
        running = [
            round_progress.screen() for round_progress in sorted(now, key=lambda round_progress: round_progress.number)
        ]
        if self.reading:
            running.append(Text(self.reading if running else f"starting: {self.reading}"))
        if self.dashboard is None:
            return Group(*(running or [Text("starting")]))
        return Group(self.dashboard.head(), *running, self.dashboard.body())


def event_line(event: Event) -> str | None:
    """Format an event that deserves a permanent line; None for progress."""
    line = _round_line(event) if isinstance(event, RoundEvent) else None
    return line or _llm_line(event)


def _round_line(event: RoundEvent) -> str | None:
    head = f"Round {event.round}"
    match event:
        case RoundPlanned(hypothesis=str() as hypothesis):
            return f"{head} hypothesis: {plain(hypothesis)}"
        case RoundMeasured(metrics=metrics) if metrics.delta_ler is not None:
            shots = f" on {count(metrics.val_shots)} validation shots" if metrics.val_shots else ""
            return f"{head} measured: Δ_LER = {metrics.delta_ler:+.2e}{shots}"
        case RoundMeasured(metrics=metrics) if metrics.status != "ok":
            return f"{head} ended {metrics.status}: {plain(metrics.status_reason or '')}"
        case RoundEnded():
            return f"{head} ended {event.status}: {plain(event.status_reason or '')}"
        case RoundNominated():
            nominated = "nominated" if event.verdict == "candidate" else "not nominated"
            return f"{head} {nominated}: {plain(event.summary_1line)}"
        case JobReported():
            why = f" ({plain(event.why)})" if event.why else ""
            return f"{head} is SLURM job {plain(str(event.job))}: {plain(event.state)}{why}"
        case VerdictReached():
            return f"  verdict: {plain(event.verdict)}. {'; '.join(map(plain, event.reasons))}"
    return None


def _llm_line(event: Event) -> str | None:
    match event:
        case LlmRetried():
            return f"  the answer for the {event.role} was invalid; its model is asked again: {plain(event.what)}"
        case LlmGivenUp():
            return f"  the {event.role} proceeds without its model in this round: {plain(event.what)}"
        case LlmUnusable():
            return f"  {plain(event.model)} is not called again, its roles proceed without it: {plain(event.what)}"
        case LlmBudgetExhausted():
            return f"  the budget of the language models is used up: {plain(event.what)}"
    return None
