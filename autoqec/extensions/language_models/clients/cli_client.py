"""Language models behind a command line: `claude -p` and `codex exec`, in a child process that sees only its own key.

The child runs in an empty directory, reads the prompt on stdin and has its tools off (claude) or read-only (codex).
Flags: https://code.claude.com/docs/en/cli-reference, https://developers.openai.com/codex/noninteractive.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Literal

from autoqec.contracts.base import canonical_json
from autoqec.errors import UsageError
from autoqec.extensions.language_models.clients import environment, prices
from autoqec.extensions.language_models.clients.base import (
    MAX_RESPONSE_CHARS,
    MIN_MAX_TOKENS,
    Effort,
    LanguageModel,
    Request,
    Response,
    strict_schema,
    with_parsed_output,
)
from autoqec.extensions.language_models.clients.deadline import call_deadline
from autoqec.extensions.language_models.clients.errors import (
    LlmAuthError,
    LlmBadAnswerError,
    LlmBadRequestError,
    LlmError,
    LlmRefusalError,
    LlmTruncatedError,
    LlmUnavailableError,
)
from autoqec.extensions.language_models.clients.usage import call_cost, token_count
from autoqec.store.model_calls import Usage
from autoqec.system.process import child

Program = Literal["claude", "codex"]
_MAX_OUTPUT = 16 * 2**20  # bytes on stdout: far more than an answer, far less than memory
_SHARED_ENV_VARS = ("USER", "LOGNAME", *environment.NETWORK)
_PROGRAM_ENV_VARS: dict[str, tuple[str, ...]] = {
    "claude": (
        "ANTHROPIC_API_KEY",
        "ANTHROPIC_AUTH_TOKEN",
        "CLAUDE_CODE_OAUTH_TOKEN",
        *environment.ENDPOINTS["claude"],
    ),
    "codex": ("OPENAI_API_KEY", "CODEX_API_KEY", *environment.ENDPOINTS["codex"]),
}
_AUTH_WORDS = re.compile(r"api key|/login|log in|unauthorized|\b401\b|authentication|not logged in", re.IGNORECASE)


class CliLM(LanguageModel):
    """A program that answers. Requests with tools are refused: the program has a tool loop of its own.

    Args:
        model: None for the program's own default.
        timeout_s: Limit after which the child and its descendants are killed.
        max_call_usd: Limit that `claude` enforces itself.
    """

    supports_tools = False

    def __init__(
        self,
        program: Program,
        model: str | None = None,
        *,
        effort: Effort | None = None,
        timeout_s: float = 600.0,
        max_call_usd: float | None = None,
        max_output_tokens: int = MIN_MAX_TOKENS,
    ) -> None:
        path = shutil.which(program)
        if path is None:
            raise UsageError(f"the program `{program}` is not on PATH", location="backend", hint=f"install {program}")
        self.model, self.max_output_tokens = model or program, max_output_tokens
        self._program, self._path, self._requested_model = program, path, model
        self._effort, self._timeout_s, self._max_call_usd = effort, timeout_s, max_call_usd

    def complete(self, request: Request) -> Response:
        """Run the program once; see `LanguageModel.complete`."""
        if request.tools:
            raise LlmBadRequestError(f"`{self._program}` does not accept tools", location=f"role {request.role}")
        start = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="autoqec-lm-") as name:
            out, err, returncode = self._run(request, Path(name))
        read = _read_claude if self._program == "claude" else _read_codex
        try:
            response = read(out, self.model)
        except LlmUnavailableError as error:
            failure = self._error_from_output(f"{error.message}; {err}" if err else error.message, returncode)
            failure.usage, failure.cost_usd = error.usage, error.cost_usd  # also a failed call is paid
            raise failure from None
        took = {"duration_ms": int((time.monotonic() - start) * 1000)}
        return with_parsed_output(response.model_copy(update=took), request)

    def max_cost_usd(self, request: Request, prompt_tokens: int) -> float | None:
        """Return the most that the call can cost in dollars; None if no price is known."""
        known = super().max_cost_usd(request, prompt_tokens)
        return known if known is not None else self._max_call_usd

    def _run(self, request: Request, work: Path) -> tuple[bytes, str, int]:
        """Return stdout, the end of stderr and the exit status of the program."""
        argv = self._claude_argv(request, work) if self._program == "claude" else self._codex_argv(request, work)
        prompt = _prompt(request) if self._program == "claude" else "\n\n".join([*request.system, _prompt(request)])
        empty = work / "empty"
        empty.mkdir()
        limits = child.Limits(wallclock_s=max(0.001, call_deadline(self._timeout_s) - time.monotonic()))
        env = {
            name: os.environ[name]
            for name in (*_SHARED_ENV_VARS, *_PROGRAM_ENV_VARS[self._program])
            if name in os.environ
        }
        with child.start(argv, cwd=empty, env=env, limits=limits, stderr=work / "stderr") as process:
            writer_thread = threading.Thread(target=_write_stdin, args=(process.stdin, prompt.encode()), daemon=True)
            writer_thread.start()
            out = process.stdout.read(_MAX_OUTPUT + 1)
            result = process.wait(5.0) or process.kill()
            writer_thread.join()
        if result.limit_broken:
            raise LlmUnavailableError(f"`{self._program}` was ended: {result.limit_broken}", lost_attempts=1)
        if len(out) > _MAX_OUTPUT:
            raise LlmBadAnswerError(f"`{self._program}` wrote more than {_MAX_OUTPUT} bytes", location=self.model)
        stderr_tail = (work / "stderr").read_bytes()[-500:].decode(errors="replace")
        return out, " ".join(stderr_tail.split()), result.returncode

    def _claude_argv(self, request: Request, work: Path) -> list[str]:
        argv = [self._path, "-p", "--output-format", "json", "--tools", "", "--strict-mcp-config"]
        argv += ["--no-session-persistence"]
        if request.system:
            (work / "system.txt").write_text("\n\n".join(request.system), "utf-8")
            argv += ["--system-prompt-file", str(work / "system.txt")]
        if self._requested_model:
            argv += ["--model", self._requested_model]
        if effort := request.effort or self._effort:
            argv += ["--effort", effort]
        if self._max_call_usd is not None:
            argv += ["--max-budget-usd", str(self._max_call_usd)]
        if request.output is not None:
            argv += ["--json-schema", canonical_json(request.output.model_json_schema())]
        return argv

    def _codex_argv(self, request: Request, work: Path) -> list[str]:
        argv = [self._path, "exec", "--json", "--sandbox", "read-only", "--skip-git-repo-check", "--ephemeral"]
        if self._requested_model:
            argv += ["--model", self._requested_model]
        if effort := request.effort or self._effort:
            argv += ["-c", f'model_reasoning_effort="{"xhigh" if effort == "max" else effort}"']
        if request.output is not None:
            (work / "schema.json").write_text(canonical_json(strict_schema(request.output)), "utf-8")
            argv += ["--output-schema", str(work / "schema.json")]
        return [*argv, "-"]

    def _error_from_output(self, stderr_tail: str, returncode: int) -> LlmError:
        message = f"`{self._program}` gave no answer (exit {returncode}): {stderr_tail[:300]}"
        if _AUTH_WORDS.search(stderr_tail):
            return LlmAuthError(
                message, hint=f"log in with `{self._program}`, or set {_PROGRAM_ENV_VARS[self._program][0]}"
            )
        return LlmUnavailableError(message)


def _prompt(request: Request) -> str:
    """Return the conversation as one text; several turns are marked with their role."""
    messages = [
        (turn.role, turn.content if isinstance(turn.content, str) else "") for turn in request.rendered_messages()
    ]
    if len(messages) == 1:
        return messages[0][1]
    return "\n\n".join(f"[{role}]\n{text}" for role, text in messages)


def _write_stdin(pipe: IO[bytes], data: bytes) -> None:
    # A program that ends early closes the pipe; what it said tells why.
    with suppress(OSError, ValueError):
        pipe.write(data)
        pipe.close()


def _read_claude(out: bytes, requested_model: str) -> Response:
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
    return _response(content, usage, cost, model, str(payload.get("stop_reason") or "end_turn"))


def _read_codex(out: bytes, requested_model: str) -> Response:
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
    return _response(text, usage, cost, requested_model)


def _response(text: str, usage: Usage, cost_usd: float | None, model: str, stop_reason: str = "end_turn") -> Response:
    return Response(
        text=text, usage=usage, stop_reason=stop_reason, model=model, cost_usd=cost_usd, duration_ms=0
    )  # fmt: skip


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
            yield environment.redact_value(value)
