"""The live view of a run: one screen on a terminal, quiet lines elsewhere. Fed by events, never by the run's memory."""

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

QUIET_WIDTH = 160  # of tables where nobody says how wide the paper is
LLM_MESSAGES = {
    "lm_retry": "the {}'s model is told what was wrong, and asked again",
    "lm_given_up": "the {} speaks without its model this time",
    "lm_budget": "no model is asked any more",
}
PROGRESS_INTERVAL_S = 15.0  # between two progress lines of one phase, without a terminal


def console(*, err: bool = False) -> Console:
    """A console that respects NO_COLOR, reads no markup, and is wide where it is no terminal."""
    result = Console(stderr=err, highlight=False, emoji=False, markup=False)
    if not result.is_terminal:
        result.width = QUIET_WIDTH
    return result


class LiveView:
    """Shows a run while it goes: the view itself is an `on_event(kind, payload)`. A context manager.

    Payloads are read by their keys (`phase`, `step`, `steps`, `loss`, `eta_s`, `shots`, `budget`, `fixed`,
    `broken`, …), so that an event of a kind not known here still moves the bar.
    """

    def __init__(
        self,
        target: Console,
        *,
        quiet: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.console, self.quiet, self.clock = target, quiet, clock
        self.dashboard: Dashboard | None = None  # known once the run is
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
        """Take one event."""
        now = self._update_round({"phase": "judging", **payload} if kind.startswith("judge") else payload)
        # Why a round failed is said once: that it is not nominated, for the same reason, needs no line.
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
                with suppress(AutoqecError):  # the view stays as it was; what is wrong is the run's to say
                    self.dashboard.refresh()

    def _update_round(self, payload: dict[str, Any]) -> RoundProgress | None:
        """The round that the event speaks of; where it names none, the last one that was named."""
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
        """Every round that is running, between the run's head and what it has come to."""
        now = list(self.rounds.values())  # a copy: events come while the screen's thread draws
        running = [
            round_progress.screen() for round_progress in sorted(now, key=lambda round_progress: round_progress.number)
        ]
        if self.dashboard is None:
            return Group(*(running or [Text("starting")]))
        return Group(self.dashboard.head(), *running, self.dashboard.body())


def event_line(kind: str, payload: dict[str, Any]) -> str | None:
    """What is worth a line that stays, in words; None for mere progress."""
    number = payload.get("round")
    head = f"Round {number}" if number is not None else ""
    if "hypothesis" in payload:
        return f"{head} tries: {plain(str(payload['hypothesis']))}"
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
        return f"{head} is SLURM's job {plain(str(payload.get('job')))}: {plain(str(payload.get('state')))}{why}"
    if kind == "judge_verdict":
        reasons = "; ".join(plain(str(reason)) for reason in payload.get("reasons", ()))
        return f"  the judge: {plain(str(payload.get('verdict')))}. {reasons}"
    return None
