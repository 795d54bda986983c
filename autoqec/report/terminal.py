"""The live view of a run: one screen on a terminal, quiet lines elsewhere. Fed by events, never by the run's memory."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from autoqec.report.text import count, duration, plain, sparkline

QUIET_WIDTH = 160  # of tables where nobody says how wide the paper is
LINE_EVERY_S = 15.0  # between two progress lines of one phase, without a terminal


def console(*, err: bool = False) -> Console:
    """A console that respects NO_COLOR, reads no markup, and is wide where it is no terminal."""
    made = Console(stderr=err, highlight=False, emoji=False, markup=False)
    if not made.is_terminal:
        made.width = QUIET_WIDTH
    return made


@dataclass
class RoundNow:
    """The round that is running, as its events told it."""

    number: int
    phase: str = "thinking"
    hypothesis: str = ""
    branch: str = ""
    done: int = 0
    total: int = 0
    eta_s: float | None = None
    phase_began: float = 0.0
    loss: float | None = None
    losses: list[float] = field(default_factory=list)
    judge: dict[str, Any] = field(default_factory=dict)

    def time_left(self, now: float) -> str:
        """What the work itself says; else the pace of this phase so far."""
        left = self.eta_s
        if left is None and 0 < self.done < self.total:
            left = (now - self.phase_began) * (self.total - self.done) / self.done
        return f"{duration(left)} left" if left is not None else ""

    def figures(self, now: float) -> str:
        """Phase, how far, loss or what the judge has seen, time left."""
        parts = [plain(self.phase, 40)]
        if self.total:
            parts.append(f"{count(self.done)} of {count(self.total)}")
        if self.loss is not None:
            parts.append(f"loss {self.loss:.4g}")
        parts += [f"{name} {self.judge[name]}" for name in ("fixed", "broken") if name in self.judge]
        if isinstance(self.judge.get("e_value"), float):
            parts.append(f"e-value {self.judge['e_value']:.3g} of {self.judge.get('threshold', float('nan')):.3g}")
        return " · ".join([*parts, *filter(None, [self.time_left(now)])])


class LiveView:
    """Shows a run while it goes: the view itself is an `on_event(kind, payload)`. A context manager.

    Payloads are read by their keys (`phase`, `step`, `steps`, `loss`, `eta_s`, `shots`, `budget`, `fixed`,
    `broken`, …), so that an event of a kind not known here still moves the bar.
    """

    def __init__(self, target: Console, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic) -> None:
        self.console, self.quiet, self.clock = target, quiet, clock
        self.now: RoundNow | None = None
        self._live: Live | None = None
        self._last_line = float("-inf")

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
        self._absorb({"phase": "judging", **payload} if kind.startswith("judge") else payload)
        line = line_of(kind, payload)
        if line is not None:
            self._say(line)
        elif self.now is not None and self.now.total and self._live is None:
            self._progress_line(self.now)

    def _absorb(self, payload: dict[str, Any]) -> None:
        number = payload.get("round")
        if isinstance(number, int) and (self.now is None or self.now.number != number):
            self.now = RoundNow(number, phase_began=self.clock())
        now = self.now
        if now is None:
            return
        phase = payload.get("phase")
        if isinstance(phase, str) and phase != now.phase:
            now.phase, now.phase_began, now.done, now.total, now.eta_s = phase, self.clock(), 0, 0, None
            now.judge, now.losses = {}, []
            self._last_line = float("-inf")
        now.hypothesis = str(payload.get("hypothesis") or now.hypothesis)
        now.branch = str(payload.get("branch") or now.branch)
        for done, total in (("step", "steps"), ("shots", "budget")):
            if isinstance(payload.get(done), int):
                now.done, now.total = payload[done], int(payload.get(total) or 0)
        now.eta_s = payload.get("eta_s")
        now.loss = payload["loss"] if isinstance(payload.get("loss"), float) else None
        if now.loss is not None:
            now.losses.append(now.loss)
        now.judge |= {
            name: payload[name] for name in ("fixed", "broken", "e_value", "threshold") if payload.get(name) is not None
        }

    def _progress_line(self, now: RoundNow) -> None:
        if self.clock() - self._last_line >= LINE_EVERY_S:
            self._last_line = self.clock()
            self._say(f"  round {now.number}: {now.figures(self.clock())}")

    def _say(self, line: str) -> None:
        if not self.quiet:
            self.console.print(Text(line), soft_wrap=True)

    def screen(self) -> RenderableType:
        """The round that is running: what it tries, how far it is, its loss."""
        now = self.now
        if now is None:
            return Text("starting")
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            ProgressBar(total=max(now.total, 1), completed=now.done, width=30),
            Text(now.figures(self.clock())),
            Text(sparkline(now.losses), style="cyan"),
        )
        return Group(Text(f"Round {now.number}  {plain(now.hypothesis, 200)}", style="bold"), bar)


def line_of(kind: str, payload: dict[str, Any]) -> str | None:
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
    if kind == "judge_verdict":
        reasons = "; ".join(plain(str(reason)) for reason in payload.get("reasons", ()))
        return f"  the judge: {plain(str(payload.get('verdict')))}. {reasons}"
    return None
