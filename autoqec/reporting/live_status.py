"""Writes and reads live.json: the progress of a running process, for `watch` in another terminal.

It is not part of the record of a run: it is removed when the process ends, and ignored once the process is dead.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from types import TracebackType
from typing import Any, Self

from autoqec.contracts.events import Event, LiveProgress, RoundEvent, RoundRecorded
from autoqec.contracts.profiles import RunLimits
from autoqec.errors import StorageError
from autoqec.store import atomic
from autoqec.store.layout import RunLayout

WRITE_INTERVAL_S = 1.0  # minimum time between two writes
PUBLISHED_FIELDS = (
    *("phase", "step", "steps", "shots", "budget", "eta_s", "p"),
    *("errors_reference", "errors_candidate", "fixed", "broken", "e_value", "threshold"),
)


@dataclass(frozen=True)
class SessionLimits(RunLimits):
    """Limits and settings of the process that runs the rounds; None means no limit.

    Attributes:
        usd: Cost of the calls of language models in US dollars.
        tokens: Tokens of these calls.
        parallel: Rounds measured at the same time.
        began: Start of the process, in seconds since the epoch.
        sandbox: Name of the sandbox backend.
    """

    usd: float | None = None
    tokens: int | None = None
    parallel: int = 1
    began: float = 0.0
    sandbox: str = ""


@dataclass(frozen=True)
class LiveStatus:
    """Contents of live.json: the limits, and the payload of the last event of each unfinished round."""

    plan: SessionLimits
    rounds: dict[int, LiveProgress]


class LiveStatusWriter:
    """Event callback that writes live.json at most once per second; a context manager."""

    def __init__(self, layout: RunLayout, plan: SessionLimits, clock: Callable[[], float] = time.monotonic) -> None:
        self.path, self.plan, self.clock = layout.live, plan, clock
        self._rounds: dict[int, dict[str, Any]] = {}
        self._last = float("-inf")

    def __enter__(self) -> Self:
        self._write()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with suppress(OSError):
            self.path.unlink()

    def __call__(self, event: Event) -> None:
        """Handle one event."""
        if not isinstance(event, RoundEvent):
            return
        if isinstance(event, RoundRecorded):
            self._rounds.pop(event.round, None)
        else:
            payload = {"phase": event.phase, **event.payload()}
            published = {key: payload[key] for key in PUBLISHED_FIELDS if payload.get(key) is not None}
            self._rounds[event.round] = {"kind": event.kind, **published}
        if self.clock() - self._last >= WRITE_INTERVAL_S or isinstance(event, RoundRecorded):
            self._write()

    def _write(self) -> None:
        self._last = self.clock()
        # Failing to write a status file must not end the run; the run handles a full disk itself.
        with suppress(StorageError, ValueError):
            atomic.write_json(self.path, {"plan": asdict(self.plan), "rounds": self._rounds})


def read(layout: RunLayout) -> LiveStatus:
    """Read live.json; no limits and no rounds if it is missing or cannot be read."""
    try:
        data = json.loads(atomic.read_bytes(layout.live))
        names = {item.name for item in fields(SessionLimits)}
        plan = SessionLimits(
            **{key: value for key, value in data["plan"].items() if key in names and _has_valid_type(key, value)}
        )
        rounds = {int(number): _parse_progress(int(number), payload) for number, payload in data["rounds"].items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return LiveStatus(SessionLimits(), {})
    return LiveStatus(plan, rounds)


def _parse_progress(number: int, payload: dict[str, Any]) -> LiveProgress:
    return LiveProgress.model_validate({**payload, "round": number}, strict=True, extra="ignore")


def _has_valid_type(key: str, value: Any) -> bool:
    if key == "sandbox":
        return isinstance(value, str)
    return isinstance(value, int | float) and not isinstance(value, bool)
