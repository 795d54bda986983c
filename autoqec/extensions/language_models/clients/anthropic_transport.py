"""Middleware below the anthropic package's own retries: lost attempts, long pauses, bodies with their usage."""

from __future__ import annotations

import json
import time
from typing import Any

from autoqec.extensions.language_models.clients.errors import LlmUnavailableError
from autoqec.extensions.language_models.clients.transport import check_pause, current_attempts, requested_pause_s

_MESSAGES_PATH = "/v1/messages"


def track_attempts(request: Any, call_next: Any) -> Any:
    """Keep each body with its usage, count lost answers, refuse long pauses."""
    import anthropic
    import httpx2

    attempts = current_attempts.get()
    if attempts is None:
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
        check_pause(requested_pause_s(response.headers), attempts.deadline)
    elif request.url.endswith(_MESSAGES_PATH) and not request.stream:
        body = _json_object(response.http_response.content)
        if body is None or not isinstance(body.get("usage"), dict) or not isinstance(body.get("content"), list):
            attempts.lost += 1
            raise anthropic.RetryableError("the endpoint answered 200 with something that is no message")
        attempts.body = body
    return response


def _json_object(data: bytes) -> dict[str, Any] | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
