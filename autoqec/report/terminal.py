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
LINE_EVERY_S = 15.0  # progress lines without a terminal


def console(*, err: bool = False) -> Console:
    """A console that respects NO_COLOR, and is wide where it is no terminal."""
    made = Console(stderr=err, highlight=False, emoji=False, markup=False)
    return made if made.is_terminal else Console(
        stderr=err, highlight=False, emoji=False, markup=False, width=QUIET_WIDTH
    )  # fmt: skip


@dataclass
class RoundNow:
    """The round that is running, as its events told it."""

    number: int
    phase: str = "thinking"
    hypothesis: str = ""
    branch: str = ""
    done: int = 0
    total: int = 0
    phase_began: float = 0.0
    losses: list[float] = field(default_factory=list)
    judge: dict[str, Any] = field(default_factory=dict)

    def eta(self, now: float) -> str:
        """Time left in this phase at the pace so far."""
        if not 0 < self.done < self.total:
            return ""
        return f"{duration((now - self.phase_began) * (self.total - self.done) / self.done)} left"


class LiveView:
    """Shows a run while it goes: `view(kind, payload)` is an `on_event`. A context manager."""

    def __init__(
        self, target: Console, *, quiet: bool = False, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.console, self.quiet, self.clock = target, quiet, clock
        self.now: RoundNow | None = None
        self._live: Live | None = None
        self._last_line = float("-inf")

    def __enter__(self) -> Self:
        if self.console.is_terminal and not self.quiet:
            self._live = Live(
                console=self.console, get_renderable=self._screen, refresh_per_second=4, transient=True
            )
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()

    def __call__(self, kind: str, payload: dict[str, Any]) -> None:
        """Take one event. Kinds and keys that are not known are passed over; a wrong one never stops a run."""
        handler = getattr(self, f"_on_{kind}", None)
        if handler is not None:
            handler(payload)
