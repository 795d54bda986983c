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
from autoqec.errors import InputError
from autoqec.llm import prices
from autoqec.llm.base import MIN_MAX_TOKENS, Caller, Reply, Request, ToolCall, Usage, estimate_tokens, with_output
from autoqec.llm.errors import LmBadAnswer, LmError
from autoqec.store import jsonl

PREFIX = "scripted:"

Answer = str | dict[str, Any] | ToolCall | LmError
Script = Callable[[Request], Answer]

_registered: dict[str, Script] = {}


class ScriptedLM(Caller):
    """Answers from a function of the request, or from a list, one a call; a list that is used up is a bad answer.

    Usage is estimated from the texts, so that the same calls always cost the same tokens. Threads may share it, and
    functions are called side by side. `requests`: the last thousand.
    """

    def __init__(
        self, answers: Script | Sequence[Answer], *, name: str = "test", max_output_tokens: int = MIN_MAX_TOKENS
    ) -> None:
        self.model, self.max_output_tokens = PREFIX + name, max_output_tokens
        self.requests: deque[Request] = deque(maxlen=1000)
        self._script = answers if callable(answers) else _one_by_one(list(answers))

    def complete(self, request: Request) -> Reply:
        self.requests.append(request)
        answer = self._script(request)
        if isinstance(answer, LmError):
            raise answer
        calls = (answer,) if isinstance(answer, ToolCall) else ()
        text = answer if isinstance(answer, str) else "" if calls else json.dumps(answer, ensure_ascii=False)
        spoken = text or canonical_json([call.dump() for call in calls])
        usage = Usage(input_tokens=estimate_tokens(request.text()), output_tokens=estimate_tokens(spoken))
        reply = Reply(
            text=text,
            tool_calls=calls,
            usage=usage,
            stop_reason="tool_use" if calls else "end_turn",
            model=self.model,
            cost_usd=0.0,
            duration_ms=0,
            blocks=tuple({"type": "tool_use", **call.dump()} for call in calls),
        )
        try:
            return with_output(reply, request)
        except LmError as error:
            error.usage, error.cost_usd = usage, 0.0
            raise

    def count_tokens(self, request: Request) -> int:
        return estimate_tokens(request.text())

    def worst_cost_usd(self, request: Request, prompt_tokens: int) -> float | None:
        return prices.worst_cost_usd(self.model, prompt_tokens, request)


def register(name: str, script: Script) -> None:
    """Make `scripted:<name>` known in this process."""
    _registered[name] = script


def from_name(model: str, *, max_output_tokens: int = MIN_MAX_TOKENS) -> ScriptedLM:
    """The scripted model of that name; InputError lists the known ones."""
    name = model.removeprefix(PREFIX)
    if name.endswith(".jsonl"):
        script = _rules(Path(name))
    elif name in _registered:
        script = _registered[name]
    else:
        known = ", ".join(PREFIX + known for known in sorted(_registered))
        raise InputError(f"unknown scripted model {model!r}; known: {known}, {PREFIX}PATH.jsonl", where="model")
    return ScriptedLM(script, name=name, max_output_tokens=max_output_tokens)


def last_turn(request: Request) -> str:
    content = request.messages[-1].content
    return content if isinstance(content, str) else canonical_json(list(content))


def _one_by_one(answers: list[Answer]) -> Script:
    left, lock = iter(answers), threading.Lock()

    def script(request: Request) -> Answer:
        with lock:
            answer = next(left, None)
        return LmBadAnswer(f"the script has no answer after {len(answers)}") if answer is None else answer

    return script


def _rules(path: Path) -> Script:
    if not path.is_file():
        raise InputError("the file of scripted answers is not there", where=str(path), mend="correct the model's name")
    rules: list[tuple[re.Pattern[str], Any]] = []
    for number, row in enumerate(jsonl.read(path), start=1):
        if "say" not in row:
            raise InputError("a rule needs `say`", where=f"{path}:{number}")
        try:
            rules.append((re.compile(row.get("when", ""), re.DOTALL), row["say"]))
        except re.error as error:
            raise InputError(f"`when` is no regular expression: {error}", where=f"{path}:{number}") from error

    def script(request: Request) -> Answer:
        turn = last_turn(request)
        for when, say in rules:
            if when.search(turn):
                return say if isinstance(say, str) else dict(say)
        return LmBadAnswer("no rule of the script matches", where=str(path))

    return script


register("echo", last_turn)
