"""Time limits of language-model calls: of each call, and of all calls of a round."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_round_deadline: ContextVar[float] = ContextVar("round_deadline", default=math.inf)


def call_deadline(timeout_s: float) -> float:
    """Return the time (`time.monotonic`) at which a call that starts now ends: its own limit, or that of the round."""
    return min(time.monotonic() + timeout_s, _round_deadline.get())


@contextmanager
def calls_end_within(seconds: float) -> Iterator[None]:
    """Limit the calls made inside the block, on this thread, to this time in total."""
    token = _round_deadline.set(time.monotonic() + seconds)
    try:
        yield
    finally:
        _round_deadline.reset(token)


@contextmanager
def time_not_counted() -> Iterator[None]:
    """Move the limit of the round by the time that the block takes: work of this machine between two calls."""
    start = time.monotonic()
    try:
        yield
    finally:
        _round_deadline.set(_round_deadline.get() + time.monotonic() - start)
