"""Stopping criteria of a run: rounds, time, compute hours, a plateau, or an interrupt by the user."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Sequence
from dataclasses import fields
from types import FrameType, TracebackType
from typing import Any, Self

from autoqec.contracts.profiles import RunLimits
from autoqec.contracts.run_spec import RunSpec
from autoqec.errors import UsageError
from autoqec.store.run_state import RunState, is_finished


def parse_limits(text: str, keys: Sequence[str]) -> dict[str, float]:
    """Parse limits such as `rounds=20,hours=2.5,usd=3`. Raises UsageError with the part that is invalid.

    Args:
        text: The value of `--budget`.
        keys: The known keys: those of `Budget`, and those of extensions.
    """
    limits: dict[str, float] = {}
    for part in (part.strip() for part in text.split(",") if text):
        key, _, value = part.partition("=")
        try:
            number = int(value) if key in ("rounds", "plateau") else float(value)
        except ValueError:
            number = 0
        if key not in keys or not 0 < number < float("inf"):
            hint = f"KEY=NUMBER with a positive number and a key of {', '.join(keys)}"
            raise UsageError(f"{part!r} is not a limit", location="--budget", hint=hint)
        if key in limits:
            raise UsageError(f"`{key}` is given twice", location="--budget", hint=f"{key}={value}")
        limits[key] = number
    return limits


class Budget(RunLimits):
    """Limits that the loop checks before every round. All but `hours` are computed from the run's history.

    Rounds that are running when a limit is reached are completed. With several at once this includes the round that
    waits for a free slot, unless the limit is `hours`.
    """

    @classmethod
    def of(cls, spec: RunSpec) -> Budget:
        """Return the limits of a run, without those that extensions observe."""
        limits: dict[str, Any] = {key.name: spec.budget[key.name] for key in fields(cls) if key.name in spec.budget}
        rounds = [int(number) for number in (spec.rounds, limits.pop("rounds", None)) if number is not None]
        return cls(**limits, rounds=min(rounds, default=None))

    def exhausted(self, state: RunState, elapsed_s: float, n_running: int = 0, extra_hours: float = 0.0) -> str | None:
        """Return the limit that does not allow another round.

        Args:
            state: The state of the run.
            elapsed_s: Seconds since the loop started.
            n_running: Rounds that are not recorded yet.
            extra_hours: Compute hours, without a GPU, that no row has.

        Returns:
            A description of the limit; None if a round may start.
        """
        count = n_running + state.totals.finished
        if self.rounds is not None and count >= self.rounds:
            return f"{count} of {self.rounds} rounds"
        hours_exhausted = self.hours_exhausted(elapsed_s)
        if hours_exhausted is not None:
            return hours_exhausted
        for kind in ("compute", "cpu", "gpu"):
            limit = getattr(self, f"{kind}_hours")
            if limit is None:
                continue
            used = used_hours(state, kind) + (0.0 if kind == "gpu" else extra_hours)
            if used >= limit:
                return f"{used:.2f} of {limit:g} {kind} hours"
        unchanged_rounds = rounds_since_front_change(state) if self.plateau is not None else 0
        if self.plateau is not None and unchanged_rounds >= self.plateau:
            return f"plateau: no change of the Pareto front in {unchanged_rounds} rounds"
        return None

    def hours_exhausted(self, elapsed_s: float) -> str | None:
        """Return a description of the wall-clock limit if it is reached; it does not depend on the history."""
        if self.hours is None or elapsed_s < 3600 * self.hours:
            return None
        return f"{elapsed_s / 3600:.2f} of {self.hours:g} hours"


def used_hours(state: RunState, kind: str) -> float:
    """Return the hours of training and measurement of all rounds (`compute`), of those without a GPU, or GPU hours.

    A round on two GPUs counts twice in `gpu`. Rows of earlier versions have the memory of one GPU and no number.
    """
    on_gpu = {"compute": (False, True), "cpu": (False,), "gpu": (True,)}[kind]
    seconds = 0.0
    for row in (round_state.row for round_state in state.rounds.values()):
        gpus = row.gpus if row.gpus is not None else int(bool(row.vram_peak_gb))
        if bool(gpus) in on_gpu:
            times = (row.train_wallclock_s or 0.0) + (row.eval_wallclock_s or 0.0)
            seconds += times * (gpus if kind == "gpu" else 1)
    return seconds / 3600


def rounds_since_front_change(state: RunState) -> int:
    """Return the number of finished rounds since the last one that is on the verified Pareto front."""
    front = {entry.round_attempt_id for entry in state.front}
    count = 0
    for round_state in reversed([*state.rounds.values()]):
        if round_state.attempt_id in front:
            break
        count += is_finished(round_state.row)
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
        """Return why a round that waits for a free slot will not be measured; None if it will be."""
        return "the run was interrupted" if self.requested or self._exited else None

    def _handle_signal(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True


class Clock:
    """Monotonic clock: seconds since it was created, unaffected by changes of the system time.

    Args:
        elapsed_s: Seconds that have passed already.
    """

    def __init__(self, elapsed_s: float = 0.0) -> None:
        self._start = time.monotonic() - elapsed_s

    def elapsed(self) -> float:
        """Return the seconds since the clock started."""
        return time.monotonic() - self._start
