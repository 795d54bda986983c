"""HTTP transport of the provider packages: one deadline per call, lost attempts, pauses that a server asks for."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from autoqec.extensions.language_models.clients.deadline import call_deadline
from autoqec.extensions.language_models.clients.errors import LlmError, LlmUnavailableError

# A server that asks for a longer pause is unavailable for this round.
MAX_RETRY_AFTER_S = 120.0


@dataclass
class CallAttempts:
    """State of one call's attempts.

    Attributes:
        deadline: Time (`time.monotonic`) at which the call ends, whatever it is doing.
        lost: Attempts whose answer was under way and never arrived whole.
        body: The last body that holds a usage.
    """

    deadline: float = math.inf
    lost: int = 0
    body: dict[str, Any] | None = None


current_attempts: ContextVar[CallAttempts | None] = ContextVar("watch", default=None)


@contextmanager
def call_attempts(timeout_s: float) -> Iterator[CallAttempts]:
    """Count the attempts of one call, which ends at its deadline; its LlmError keeps how many were lost."""
    attempts = CallAttempts(deadline=call_deadline(timeout_s))
    token = current_attempts.set(attempts)
    try:
        yield attempts
    except LlmError as error:
        error.lost_attempts = attempts.lost
        raise
    finally:
        current_attempts.reset(token)


def count_lost_attempt() -> None:
    """Count an answer that was under way and never arrived whole."""
    if attempts := current_attempts.get():
        attempts.lost += 1


def requested_pause_s(headers: Mapping[str, str]) -> float:
    """Return the pause that `retry-after-ms` or `retry-after` (seconds or a date) asks for, in seconds; 0 for none."""
    for name, unit_s in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(name)
        if not value:
            continue
        try:
            pause = float(value) * unit_s
        except ValueError:
            with suppress(ValueError, TypeError):
                return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
            continue
        return max(0.0, pause) if not math.isnan(pause) else 0.0
    return 0.0


def check_pause(pause_s: float, deadline: float) -> None:
    """Raise LlmUnavailableError for a pause that is too long, or that the call has no time for."""
    if pause_s > MAX_RETRY_AFTER_S or time.monotonic() + pause_s > deadline:
        raise LlmUnavailableError(f"the provider asks to wait {pause_s:.0f} s", hint="wait, then resume the run")


def deadline_transport() -> Any:
    """Return an httpx2 transport that ends every request of a call at the call's deadline, however it trickles in."""
    import httpx2

    class Body(httpx2.SyncByteStream):
        """A body that ends with a time-out at the deadline of its call."""

        def __init__(self, stream: Any, attempts: CallAttempts) -> None:
            self._stream, self._attempts = stream, attempts

        def __iter__(self) -> Iterator[bytes]:
            for chunk in self._stream:
                if time.monotonic() > self._attempts.deadline:
                    raise httpx2.ReadTimeout("the answer took longer than the time limit of the call")
                yield chunk

        def close(self) -> None:
            self._stream.close()

    class Transport(httpx2.HTTPTransport):
        def handle_request(self, request: Any) -> Any:
            attempts = current_attempts.get()
            if attempts is None:
                return super().handle_request(request)
            left = max(0.001, attempts.deadline - time.monotonic())
            limits = request.extensions.get("timeout", {})
            limits = {name: left if value is None else min(value, left) for name, value in limits.items()}
            request.extensions = {**request.extensions, "timeout": limits}
            response = super().handle_request(request)
            response.stream = Body(response.stream, attempts)
            return response

    return Transport()
