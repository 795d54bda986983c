"""The HTTP client below the provider packages, which retry by themselves: one deadline per call, lost answers, pauses.

An attempt is read to its end before the package sees it. So whatever breaks within an answer, an event of a stream
included, is a connection error for the package, which it retries.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Any

import httpx2

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
    """

    deadline: float
    lost: int = 0


_current_attempts: ContextVar[CallAttempts | None] = ContextVar("call_attempts", default=None)


@contextmanager
def call_attempts(timeout_s: float) -> Iterator[CallAttempts]:
    """Count the attempts of one call, which ends at its deadline; its LlmError keeps how many were lost."""
    attempts = CallAttempts(deadline=call_deadline(timeout_s))
    token = _current_attempts.set(attempts)
    try:
        yield attempts
    except LlmError as error:
        error.lost_attempts = attempts.lost
        raise
    finally:
        _current_attempts.reset(token)


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


class AttemptClient(httpx2.Client):
    """Sends the attempts of a call.

    Args:
        path: End of the path under which answers of a model come.
        is_answer: Whether a JSON object is such an answer, so that its usage can be booked.
        final_error: Error of the provider's package that it does not retry; its cause is what happened.
    """

    def __init__(self, path: str, is_answer: Callable[[dict[str, Any]], bool], final_error: type[Exception]) -> None:
        super().__init__(follow_redirects=True)
        self._path, self._is_answer, self._final_error = path, is_answer, final_error

    def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send one attempt and read its answer whole, within the time that is left of the call."""
        attempts = _current_attempts.get()
        if attempts is None:
            return super().send(request, **options)
        left = attempts.deadline - time.monotonic()
        if left <= 0:
            raise self._final_error from LlmUnavailableError("no answer within the time limit of the call")
        limits = request.extensions.get("timeout", {})
        limits = {name: left if value is None else min(value, left) for name, value in limits.items()}
        request.extensions = {**request.extensions, "timeout": limits}
        try:
            response = _read(super().send(request, **{**options, "stream": True}), attempts.deadline)
            if response.status_code == 200 and request.url.path.endswith(self._path):
                self._require_answer(response)
        except (httpx2.ConnectError, httpx2.ConnectTimeout):
            raise
        except httpx2.HTTPError:
            attempts.lost += 1
            raise
        pause_s = 0.0 if response.is_success else requested_pause_s(response.headers)
        if pause_s and (pause_s > MAX_RETRY_AFTER_S or time.monotonic() + pause_s > attempts.deadline):
            message = f"the provider asks to wait {pause_s:.0f} s"
            raise self._final_error from LlmUnavailableError(message, hint="wait, then resume the run")
        return response

    def _require_answer(self, response: httpx2.Response) -> None:
        """Raise RemoteProtocolError for a status 200 with something else than a complete answer."""
        if response.headers.get("content-type", "").startswith("text/event-stream"):
            events = {line.strip() for line in response.content.splitlines() if line.startswith(b"event:")}
            complete = b"event: message_stop" in events and b"event: error" not in events
        else:
            complete = self._is_answer(_json_object(response.content))
        if not complete:
            message = "the endpoint answered 200 with something that is no complete answer"
            raise httpx2.RemoteProtocolError(message, request=response.request)


def _read(response: httpx2.Response, deadline: float) -> httpx2.Response:
    """Return a response that holds its whole body; ReadTimeout at the deadline, however the body trickles in."""
    chunks = []
    with closing(response):
        for chunk in response.iter_raw():
            if time.monotonic() > deadline:
                raise httpx2.ReadTimeout("the answer took longer than the time limit of the call")
            chunks.append(chunk)
    return httpx2.Response(
        response.status_code, headers=response.headers, content=b"".join(chunks), request=response.request
    )


def _json_object(data: bytes) -> dict[str, Any]:
    """Return the JSON object in `data`; an empty one if there is none."""
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
