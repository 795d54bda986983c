"""HTTP transport below the anthropic package's own retries: deadlines, lost attempts, bodies with their usage."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

from autoqec.llm.errors import LlmUnavailableError

# A server that asks for a longer pause is unavailable for this round.
MAX_RETRY_AFTER_S = 120.0
_MESSAGES_PATH = "/v1/messages"


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


def track_attempts(request: Any, call_next: Any) -> Any:
    """Middleware of the package: keep each body with its usage, count lost answers, refuse long pauses."""
    import anthropic
    import httpx2

    attempts = current_attempts.get()
    if attempts is None or not request.url.endswith(_MESSAGES_PATH):
        return call_next(request)
    if time.monotonic() > attempts.deadline:
        raise LlmUnavailableError("no answer within the time limit of the call")
    try:
        response = call_next(request)
    except anthropic.APIConnectionError as error:
        if not isinstance(error.__cause__, httpx2.ConnectError | httpx2.ConnectTimeout):
            attempts.lost += 1
        raise
    if response.status_code != 200:
        _refuse_long_pause(response.headers, attempts.deadline)
    elif response.status_code == 200 and not request.stream:
        body = _json_object(response.http_response.content)
        if body is None or not isinstance(body.get("usage"), dict) or not isinstance(body.get("content"), list):
            attempts.lost += 1
            raise anthropic.RetryableError("the endpoint answered 200 with something that is no message")
        attempts.body = body
    return response


def _refuse_long_pause(headers: Mapping[str, str], deadline: float) -> None:
    """LlmUnavailableError if the server asks for a pause that is too long, or that the call has no time for."""
    pause = requested_pause_s(headers)
    if pause > MAX_RETRY_AFTER_S or time.monotonic() + pause > deadline:
        raise LlmUnavailableError(f"the provider asks to wait {pause:.0f} s", hint="wait, then resume the run")


def requested_pause_s(headers: Mapping[str, str]) -> float:
    """Return the pause that `retry-after-ms` or `retry-after` (seconds or a date) asks for, in seconds; 0 for none."""
    for name, unit_s in (("retry-after-ms", 1e-3), ("retry-after", 1.0)):
        value = headers.get(name)
        if not value:
            continue
        try:
            return max(0.0, float(value) * unit_s)
        except ValueError:
            pass
        with suppress(ValueError, TypeError):
            return max(0.0, parsedate_to_datetime(value).timestamp() - time.time())
    return 0.0


def http_client() -> Any:
    """Return the HTTP client for the anthropic package: as its own, but an answer that trickles in is cut off."""
    import anthropic
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

    return anthropic.DefaultHttpxClient(transport=Transport())


def _json_object(data: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def count_lost_attempt() -> None:
    """Count an answer that was under way and never arrived whole."""
    if attempts := current_attempts.get():
        attempts.lost += 1
