"""When to stop: rounds, time, a plateau, or a person."""

from __future__ import annotations

import signal
import threading
import time
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any, Self

from autoqec.errors import UsageError
from autoqec.store.run_state import RunState, is_finished

_KEYS = ("rounds", "hours", "compute_hours", "cpu_hours", "gpu_hours", "plateau")


@dataclass(frozen=True)
class Budget:
    """Limits of a run; None: none. Counted on the run's history, but for `hours`, which is this start's clock.

    rounds: finished rows in all. hours: wall-clock. compute_hours: training and measuring of all rounds together;
    gpu_hours: of those that worked on a GPU; cpu_hours: of the others. plateau: finished rounds in a row that left
    the verified front as it was. Rounds under way when a limit is reached are finished: with several at once, the one
    that waits for its turn too, but where the limit is `hours`.
    """

    rounds: int | None = None
    hours: float | None = None
    compute_hours: float | None = None
    cpu_hours: float | None = None
    gpu_hours: float | None = None
    plateau: int | None = None

    @classmethod
    def parse(cls, text: str) -> Budget:
        """`rounds=20,hours=2.5,plateau=8`. UsageError names what is no limit."""
        limits: dict[str, Any] = {}
        for part in (part.strip() for part in text.split(",") if text):
            key, _, value = part.partition("=")
            try:
                number = int(value) if key in ("rounds", "plateau") else float(value)
            except ValueError:
                number = 0
            if key not in _KEYS or not 0 < number < float("inf"):
                raise UsageError(f"{part!r} is no limit", location="--budget", hint=f"KEY=NUMBER of {', '.join(_KEYS)}")
            if key in limits:
                raise UsageError(f"`{key}` is given twice", location="--budget", hint=f"{key}={value}")
            limits[key] = number
        return cls(**limits)

    def exhausted(self, state: RunState, elapsed_s: float, n_running: int = 0) -> str | None:
        """Which limit forbids another round, in words; None where one may begin. under_way: rounds not recorded yet."""
        count = n_running + state.totals.finished
        if self.rounds is not None and count >= self.rounds:
            return f"{count} of {self.rounds} rounds"
        hours_exhausted = self.hours_exhausted(elapsed_s)
        if hours_exhausted is not None:
            return hours_exhausted
        for kind in ("compute", "cpu", "gpu"):
            limit = getattr(self, f"{kind}_hours")
            used = 0.0 if limit is None else used_hours(state, kind)
            if limit is not None and used >= limit:
                return f"{used:.2f} of {limit:g} {kind} hours"
        unchanged_rounds = rounds_since_front_change(state) if self.plateau is not None else 0
        if self.plateau is not None and unchanged_rounds >= self.plateau:
            return f"a plateau: the front has not moved for {unchanged_rounds} rounds"
        return None

    def hours_exhausted(self, elapsed_s: float) -> str | None:
        """`hours` alone, which needs no history."""
        if self.hours is None or elapsed_s < 3600 * self.hours:
            return None
        return f"{elapsed_s / 3600:.2f} of {self.hours:g} hours"


def used_hours(state: RunState, kind: str) -> float:
    """Hours that training and measuring took: of all rounds (`compute`), or of those with or without a GPU."""
    on_gpu = {"compute": (False, True), "cpu": (False,), "gpu": (True,)}[kind]
    rows = (limits.row for limits in state.rounds.values())
    counted = (row for row in rows if bool(row.vram_peak_gb) in on_gpu)
    return sum((row.train_wallclock_s or 0.0) + (row.eval_wallclock_s or 0.0) for row in counted) / 3600


def rounds_since_front_change(state: RunState) -> int:
    """Finished rounds since the last one that is on the verified front."""
    front = {entry.round_attempt_id for entry in state.front}
    count = 0
    for limits in reversed([*state.rounds.values()]):
        if limits.attempt_id in front:
            break
        count += is_finished(limits.row)
    return count


class InterruptHandler:
    """Handle Ctrl-C, SIGTERM and SIGHUP: the first sets `requested`, the second raises KeyboardInterrupt.

    A context manager; outside the main thread it handles no signal. SIGHUP stays ignored under `nohup`.
    """

    def __init__(self) -> None:
        self.requested = self._exited = False
        self._previous_handlers: dict[int, Any] = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:
                    self._previous_handlers[number] = signal.signal(number, self._handle_signal)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._exited = True
        for number, handler in self._previous_handlers.items():
            signal.signal(number, handler)

    def stop_reason(self) -> str | None:
        """Why a round that waits for its turn is not to be measured any more; None where it is."""
        return "the run was told to stop" if self.requested or self._exited else None

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


class Clock:
    """Seconds since this start; a moved wall clock does not move it."""

    def __init__(self) -> None:
        self._start = time.monotonic()

    def elapsed(self) -> float:
        return time.monotonic() - self._start
