"""Live view of a run: a screen on a terminal, lines elsewhere. Driven by events alone."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from autoqec.errors import AutoqecError
from autoqec.reporting.dashboard import Dashboard
from autoqec.reporting.round_progress import RoundProgress
from autoqec.reporting.text import count, plain

PIPE_WIDTH = 160  # columns of tables that are not written to a terminal
LLM_MESSAGES = {
    "lm_retry": "the answer for the {} was invalid; its model is asked again",
    "lm_given_up": "the {} proceeds without its model in this round",
    "lm_budget": "the budget of the language models is used up",
}
PROGRESS_INTERVAL_S = 15.0  # between two progress lines of one phase, without a terminal


def console(*, err: bool = False) -> Console:
    """Return a console that respects NO_COLOR, interprets no markup, and is wide unless it is a terminal."""
    result = Console(stderr=err, highlight=False, emoji=False, markup=False)
    if not result.is_terminal:
        result.width = PIPE_WIDTH
    return result


class LiveView:
    """Event callback that shows the progress of a run; a context manager.

    Payloads are read by their keys (`phase`, `step`, `steps`, `loss`, `eta_s`, `shots`, `budget`, `fixed`,
    `broken`, …), so that events of unknown kinds still update the progress bar.
    """

    def __init__(
        self,
        target: Console,
        *,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console, self.quiet, self.clock = target, quiet, clock
        self.dashboard: Dashboard | None = None  # set once the run exists
        self.rounds: dict[int, RoundProgress] = {}
        self._last: int | None = None
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if self.console.is_terminal and not self.quiet:
            self._live = Live(console=self.console, get_renderable=self.screen, refresh_per_second=4, transient=True)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def __call__(self, kind: str, payload: dict[str, Any]) -> None:
        """Handle one event."""
        now = self._update_round({"phase": "verification", **payload} if kind.startswith("judge") else payload)
        # The failure of a round has been reported: that it is not nominated follows from it.
        already_reported = now is not None and now.failed and payload.get("verdict") == "ignore"
        line = None if already_reported else event_line(kind, payload)
        if line is not None:
            self._print_line(line)
        elif now is not None and now.total and self._live is None:
            self._progress_line(now)
        if kind == "round_recorded":
            self.rounds = {
                number: round_progress for number, round_progress in self.rounds.items() if round_progress is not now
            }
            if self.dashboard is not None:
                with suppress(AutoqecError):  # the screen keeps its state; the run itself reports what is wrong
                    self.dashboard.refresh()

    def _update_round(self, payload: dict[str, Any]) -> RoundProgress | None:
        """Update the round of an event; if it names none, the round named last."""
        number = payload.get("round", self._last)
        if not isinstance(number, int):
            return None
        if number not in self.rounds:
            if "round" not in payload:
                return None
            self.rounds[number] = RoundProgress(number, self.clock, phase_began=self.clock())
        self._last = number
        self.rounds[number].update_from(payload)
        return self.rounds[number]

    def _progress_line(self, now: RoundProgress) -> None:
        if self.clock() - now.last_printed >= PROGRESS_INTERVAL_S:
            now.last_printed = self.clock()
            self._print_line(f"  round {now.number}: {now.figures()}")

    def _print_line(self, line: str) -> None:
        if not self.quiet:
            self.console.print(Text(line), soft_wrap=True)

    def screen(self) -> RenderableType:
        """The head of the run, every round in progress, and the results so far."""
        now = list(self.rounds.values())  # a copy: events arrive while another thread draws
        running = [
            round_progress.screen() for round_progress in sorted(now, key=lambda round_progress: round_progress.number)
        ]
        if self.dashboard is None:
            return Group(*(running or [Text("starting")]))
        return Group(self.dashboard.head(), *running, self.dashboard.body())


def event_line(kind: str, payload: dict[str, Any]) -> str | None:
    """Format an event that deserves a permanent line; None for progress."""
    number = payload.get("round")
    head = f"Round {number}" if number is not None else ""
    if "hypothesis" in payload:
        return f"{head} hypothesis: {plain(str(payload['hypothesis']))}"
    if isinstance(payload.get("delta_ler"), float):
        shots = f" on {count(payload['val_shots'])} validation shots" if payload.get("val_shots") else ""
        return f"{head} measured: Δ_LER = {payload['delta_ler']:+.2e}{shots}"
    if payload.get("status") not in (None, "ok"):
        return f"{head} ended {plain(str(payload['status']))}: {plain(str(payload.get('status_reason') or ''))}"
    if payload.get("verdict") in ("candidate", "ignore"):
        word = "nominated" if payload["verdict"] == "candidate" else "not nominated"
        return f"{head} {word}: {plain(str(payload.get('summary_1line', '')))}"
    if kind in LLM_MESSAGES:
        return f"  {LLM_MESSAGES[kind].format(payload.get('role'))}: {plain(str(payload.get('what')))}"
    if kind == "job":
        why = f" ({plain(str(payload['why']))})" if payload.get("why") else ""
        return f"{head} is SLURM job {plain(str(payload.get('job')))}: {plain(str(payload.get('state')))}{why}"
    if kind == "judge_verdict":
        reasons = "; ".join(plain(str(reason)) for reason in payload.get("reasons", ()))
        return f"  verdict: {plain(str(payload.get('verdict')))}. {reasons}"
    return None
