"""Answers without a model: deterministic, free, for tests and examples. Names begin with `scripted:`.

`scripted:echo` gives the last turn back; `scripted:PATH.jsonl` reads rules {"when": regex, "say": text or object},
first match in the last turn wins, a rule without `when` always matches; other names must have been registered.
"""

from __future__ import annotations

import json
import re
import threading
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autoqec.contracts.base import canonical_json
from autoqec.errors import UsageError
from autoqec.extensions.language_models.clients.base import (
    MIN_MAX_TOKENS,
    LanguageModel,
    Request,
    Response,
    ToolCall,
    estimate_tokens,
    with_parsed_output,
)
from autoqec.extensions.language_models.clients.errors import LlmBadAnswerError, LlmError
from autoqec.store import jsonl
from autoqec.store.model_calls import Usage

PREFIX = "scripted:"

ScriptedResponse = str | dict[str, Any] | ToolCall | LlmError
Script = Callable[[Request], ScriptedResponse]

_registered_scripts: dict[str, Script] = {}


class ScriptedLM(LanguageModel):
    """Answers from a function of the request, or from a list, one a call; a list that is used up is a bad answer.

    Usage is estimated from the texts, so that the same calls always cost the same tokens. Threads may share it, and
    functions are called side by side. `requests`: the last thousand.
    """

    def __init__(
        self,
        responses: Script | Sequence[ScriptedResponse],
        *,
        name: str = "test",
        max_output_tokens: int = MIN_MAX_TOKENS,
    ) -> None:
        self.model, self.max_output_tokens = PREFIX + name, max_output_tokens
        self.requests: deque[Request] = deque(maxlen=1000)
        self._script = responses if callable(responses) else _in_order(list(responses))

    def complete(self, request: Request) -> Response:
        """Return the next scripted answer, or raise the scripted error."""
        self.requests.append(request)
        script_result = self._script(request)
        if isinstance(script_result, LlmError):
            raise script_result
        calls = (script_result,) if isinstance(script_result, ToolCall) else ()
        text = (
            script_result
            if isinstance(script_result, str)
            else ""
            if calls
            else json.dumps(script_result, ensure_ascii=False)
        )
        output_text = text or canonical_json([call.dump() for call in calls])
        usage = Usage(input_tokens=estimate_tokens(request.text()), output_tokens=estimate_tokens(output_text))
        response = Response(
            text=text,
            tool_calls=calls,
            usage=usage,
            stop_reason="tool_use" if calls else "end_turn",
            model=self.model,
            cost_usd=0.0,
            duration_ms=0,
            blocks=tuple({"type": "tool_use", **call.dump()} for call in calls),
        )
        return with_parsed_output(response, request)


def register(name: str, script: Script) -> None:
    """Make `scripted:<name>` known in this process."""
    _registered_scripts[name] = script


def from_name(model: str, *, max_output_tokens: int = MIN_MAX_TOKENS) -> ScriptedLM:
    """Return the scripted model of that name; UsageError lists the known ones."""
    name = model.removeprefix(PREFIX)
    if name.endswith(".jsonl"):
        script = _rules(Path(name))
    elif name in _registered_scripts:
        script = _registered_scripts[name]
    else:
        known = ", ".join(PREFIX + known for known in sorted(_registered_scripts))
        raise UsageError(f"unknown scripted model {model!r}; known: {known}, {PREFIX}PATH.jsonl", location="model")
    return ScriptedLM(script, name=name, max_output_tokens=max_output_tokens)


def last_message_text(request: Request) -> str:
    """Return the last turn as text."""
    content = request.messages[-1].content
    return content if isinstance(content, str) else canonical_json(list(content))


def _in_order(responses: list[ScriptedResponse]) -> Script:
    left, lock = iter(responses), threading.Lock()

    def script(request: Request) -> ScriptedResponse:
        with lock:
            script_result = next(left, None)
        return (
            LlmBadAnswerError(f"the script has no answer after {len(responses)}")
            if script_result is None
            else script_result
        )

    return script


def _rules(path: Path) -> Script:
    if not path.is_file():
        raise UsageError(
            "the file of scripted answers does not exist", location=str(path), hint="correct the model's name"
        )
    rules: list[tuple[re.Pattern[str], Any]] = []
    for number, row in enumerate(jsonl.read(path), start=1):
        if "say" not in row:
            raise UsageError("a rule needs `say`", location=f"{path}:{number}")
        try:
            rules.append((re.compile(row.get("when", ""), re.DOTALL), row["say"]))
        except re.error as error:
            raise UsageError(f"`when` is not a regular expression: {error}", location=f"{path}:{number}") from error

    def script(request: Request) -> ScriptedResponse:
        turn = last_message_text(request)
        for pattern, reply_text in rules:
            if pattern.search(turn):
                return reply_text if isinstance(reply_text, str) else dict(reply_text)
        return LlmBadAnswerError("no rule of the script matches", location=str(path))

    return script


register("echo", last_message_text)
