"""Parsers for the output of `claude -p --output-format json` and `codex exec --json`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from autoqec.extensions.language_models.clients import prices
from autoqec.extensions.language_models.clients.base import MAX_RESPONSE_CHARS
from autoqec.extensions.language_models.clients.errors import (
    LlmBadAnswerError,
    LlmError,
    LlmRefusalError,
    LlmTruncatedError,
    LlmUnavailableError,
)
from autoqec.extensions.language_models.clients.redact import redact_value
from autoqec.extensions.language_models.clients.reported import call_cost, token_count
from autoqec.extensions.language_models.clients.usage import Usage


@dataclass(frozen=True)
class ProgramResponse:
    """The answer of a program, before it is checked against the request's output."""

    text: str
    usage: Usage
    cost_usd: float | None
    model: str
    stop_reason: str = "end_turn"


def read_claude(out: bytes, requested_model: str) -> ProgramResponse:
    """Parse the object of `--output-format json`."""
    payload = next((line for line in _json_objects(out) if line.get("type") == "result"), None)
    if payload is None:
        raise LlmUnavailableError("no result on stdout")
    usage, cost = _usage(payload.get("usage"), "input_tokens"), call_cost(payload.get("total_cost_usd"))
    if cost is None:
        cost = prices.cost_usd(requested_model, usage)
    text = str(payload.get("result") or "")
    structured = payload.get("structured_output")
    by_model = payload.get("modelUsage")
    model = next(iter(by_model), requested_model) if isinstance(by_model, dict) else requested_model
    error_type: type[LlmError] | None = None
    if payload.get("stop_reason") == "refusal":
        error_type = LlmRefusalError
    elif payload.get("stop_reason") == "max_tokens" or payload.get("subtype") in (
        "error_max_budget_usd",
        "error_max_turns",
    ):
        error_type = LlmTruncatedError
    elif payload.get("subtype") == "error_max_structured_output_retries":
        error_type = LlmBadAnswerError
    elif payload.get("is_error"):
        raise LlmUnavailableError(text or str(payload.get("subtype")), usage=usage, cost_usd=cost)
    elif len(text) > MAX_RESPONSE_CHARS:
        error_type, text = LlmBadAnswerError, f"an answer of {len(text)} characters"
    if error_type is not None:
        raise error_type(
            f"{payload.get('subtype')}: {text[:300]}", location=requested_model, usage=usage, cost_usd=cost
        )
    content = json.dumps(structured, ensure_ascii=False) if structured is not None else text
    return ProgramResponse(content, usage, cost, model, str(payload.get("stop_reason") or "end_turn"))


def read_codex(out: bytes, requested_model: str) -> ProgramResponse:
    """Parse the event stream of `--json`: the last agent message, and the usage of the turn."""
    text: str | None = None
    usage, failure_messages, done = Usage(), [], False
    for event in _json_objects(out):
        kind, item = event.get("type"), event.get("item")
        if kind == "item.completed" and isinstance(item, dict) and item.get("type") == "agent_message":
            text = str(item.get("text") or "")
        elif kind == "turn.completed":
            usage, done = usage + _usage(event.get("usage"), "all_input"), True
        elif kind in ("turn.failed", "error"):
            error = event.get("error")
            failure_messages.append(str(error.get("message") if isinstance(error, dict) else event.get("message")))
    cost = prices.cost_usd(requested_model, usage)
    if text is None or not done:
        raise LlmUnavailableError(
            "; ".join(failure_messages) or "no answer on stdout", usage=usage if done else None, cost_usd=cost
        )
    if len(text) > MAX_RESPONSE_CHARS:
        raise LlmBadAnswerError(
            f"an answer of {len(text)} characters", location=requested_model, usage=usage, cost_usd=cost
        )
    return ProgramResponse(text, usage, cost, requested_model)


def _usage(payload: Any, counting: Literal["input_tokens", "all_input"]) -> Usage:
    """Return the usage; `all_input` means that the input count includes the cached tokens, as codex counts."""
    payload = payload if isinstance(payload, dict) else {}

    def count(name: str) -> int:
        return token_count(payload.get(name), name)

    if counting == "input_tokens":
        return Usage(**{name: count(name) for name in Usage.model_fields})
    cached = min(count("cached_input_tokens"), count("input_tokens"))
    return Usage(
        input_tokens=count("input_tokens") - cached,
        output_tokens=count("output_tokens"),
        cache_read_input_tokens=cached,
    )


def _json_objects(out: bytes) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of the output, or of its lines, without keys: programs mix in notices."""
    for line in (out, *out.splitlines()):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield redact_value(value)
