"""What happens below the anthropic package's own retries: attempts that were lost, bodies with their usage."""

from __future__ import annotations

import json
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from autoqec.llm.errors import LlmUnavailableError

# A server that asks for a longer pause is unavailable for this round.
MAX_RETRY_AFTER_S = 120.0
_MESSAGES_PATH = "/v1/messages"


@dataclass
class CallAttempts:
    """What happened to one call's attempts, seen below the package's own retries."""

    lost: int = 0
    body: dict[str, Any] | None = None


current_attempts: ContextVar[CallAttempts | None] = ContextVar("watch", default=None)


def track_attempts(request: Any, call_next: Any) -> Any:
    """Sees every attempt: keeps the body with its usage, counts answers that were lost, refuses endless pauses."""
    import anthropic
    import httpx2

    attempts = current_attempts.get()
    if attempts is None or not request.url.endswith(_MESSAGES_PATH):
        return call_next(request)
    try:
        response = call_next(request)
    except anthropic.APIConnectionError as error:
        if not isinstance(error.__cause__, httpx2.ConnectError | httpx2.ConnectTimeout):
            attempts.lost += 1
        raise
    if response.status_code in (429, 503, 529):
        _refuse_long_pause(response.headers.get("retry-after"))
    elif response.status_code == 200 and not request.stream:
        body = _json_object(response.http_response.content)
        if body is None or not isinstance(body.get("usage"), dict) or not isinstance(body.get("content"), list):
            attempts.lost += 1
            raise anthropic.RetryableError("the endpoint answered 200 with something that is no message")
        attempts.body = body
    return response


def _refuse_long_pause(header: str | None) -> None:
    try:
        pause = float(header or 0)
    except ValueError:
        return
    if pause > MAX_RETRY_AFTER_S:
        raise LlmUnavailableError(f"the provider asks to wait {pause:.0f} s", hint="wait, then resume the run")


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
