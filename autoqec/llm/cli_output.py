"""What `claude -p --output-format json` and `codex exec --json` write on stdout, read with suspicion."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

from autoqec.llm import prices
from autoqec.llm.base import MAX_ANSWER_CHARS, Usage
from autoqec.llm.errors import LmBadAnswer, LmError, LmRefusal, LmTruncated, LmUnavailable


@dataclass(frozen=True)
class Answer:
    """What a program said, before it is checked against the request's output."""

    text: str
    usage: Usage
    cost_usd: float | None
    model: str
    stop_reason: str = "end_turn"


def read_claude(out: bytes, asked: str) -> Answer:
    """The one object of `--output-format json`."""
    said = next((line for line in _objects(out) if line.get("type") == "result"), None)
    if said is None:
        raise LmUnavailable("no result on stdout")
    usage, cost = _usage(said.get("usage"), "input_tokens"), said.get("total_cost_usd")
    cost = float(cost) if isinstance(cost, int | float) else prices.cost_usd(asked, usage)
    text = str(said.get("result") or "")
    structured = said.get("structured_output")
    model = next(iter(said.get("modelUsage") or {}), asked)
    fault: type[LmError] | None = None
    if said.get("stop_reason") == "refusal":
        fault = LmRefusal
    elif said.get("stop_reason") == "max_tokens" or said.get("subtype") in ("error_max_budget_usd", "error_max_turns"):
        fault = LmTruncated
    elif said.get("subtype") == "error_max_structured_output_retries":
        fault = LmBadAnswer
    elif said.get("is_error"):
        raise LmUnavailable(text or str(said.get("subtype")))
    elif len(text) > MAX_ANSWER_CHARS:
        fault, text = LmBadAnswer, f"an answer of {len(text)} characters"
    if fault is not None:
        raise fault(f"{said.get('subtype')}: {text[:300]}", where=asked, usage=usage, cost_usd=cost)
    whole = json.dumps(structured, ensure_ascii=False) if structured is not None else text
    return Answer(whole, usage, cost, model, str(said.get("stop_reason") or "end_turn"))


def read_codex(out: bytes, asked: str) -> Answer:
    """The event stream of `--json`: the last agent message, and the turn's usage."""
    text: str | None = None
    usage, faults, done = Usage(), [], False
    for event in _objects(out):
        kind, item = event.get("type"), event.get("item")
        if kind == "item.completed" and isinstance(item, dict) and item.get("type") == "agent_message":
            text = str(item.get("text") or "")
        elif kind == "turn.completed":
            usage, done = usage + _usage(event.get("usage"), "all_input"), True
        elif kind in ("turn.failed", "error"):
            error = event.get("error")
            faults.append(str(error.get("message") if isinstance(error, dict) else event.get("message")))
    if text is None or not done:
        raise LmUnavailable("; ".join(faults) or "no answer on stdout")
    cost = prices.cost_usd(asked, usage)
    if len(text) > MAX_ANSWER_CHARS:
        raise LmBadAnswer(f"an answer of {len(text)} characters", where=asked, usage=usage, cost_usd=cost)
    return Answer(text, usage, cost, asked)


def _usage(said: Any, counting: Literal["input_tokens", "all_input"]) -> Usage:
    """all_input: the input count holds the cached tokens too, as codex counts."""
    said = said if isinstance(said, dict) else {}

    def count(name: str) -> int:
        value = said.get(name)
        return max(value, 0) if isinstance(value, int) else 0

    if counting == "input_tokens":
        return Usage(**{name: count(name) for name in Usage.model_fields})
    cached = min(count("cached_input_tokens"), count("input_tokens"))
    return Usage(
        input_tokens=count("input_tokens") - cached,
        output_tokens=count("output_tokens"),
        cache_read_input_tokens=cached,
    )


def _objects(out: bytes) -> Iterator[dict[str, Any]]:
    """JSON objects: the whole output, or those among its lines; programs mix in notices."""
    for line in (out, *out.splitlines()):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(value, dict):
            yield value
