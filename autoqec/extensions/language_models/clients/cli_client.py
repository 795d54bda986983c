"""Language models behind a command line: `claude -p` and `codex exec`, in a child process that sees only its own key.

The child runs in an empty directory, reads the prompt on stdin and has its tools off (claude) or read-only (codex).
Flags: https://code.claude.com/docs/en/cli-reference, https://developers.openai.com/codex/noninteractive.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, Literal

from autoqec.contracts.base import canonical_json
from autoqec.errors import UsageError
from autoqec.extensions.language_models.clients import cli_output, environment, prices
from autoqec.extensions.language_models.clients.base import (
    MIN_MAX_TOKENS,
    BaseLanguageModel,
    Effort,
    Request,
    Response,
    estimate_tokens,
    with_parsed_output,
)
from autoqec.extensions.language_models.clients.deadline import call_deadline
from autoqec.extensions.language_models.clients.errors import (
    LlmAuthError,
    LlmBadAnswerError,
    LlmBadRequestError,
    LlmError,
    LlmUnavailableError,
)
from autoqec.extensions.language_models.clients.output_schema import strict_schema
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


class CliLM(BaseLanguageModel):
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
        read = cli_output.read_claude if self._program == "claude" else cli_output.read_codex
        try:
            program_response = read(out, self.model)
        except LlmUnavailableError as error:
            failure = self._error_from_output(f"{error.message}; {err}" if err else error.message, returncode)
            failure.usage, failure.cost_usd = error.usage, error.cost_usd  # also a failed call is paid
            raise failure from None
        response = Response(
            text=program_response.text,
            usage=program_response.usage,
            stop_reason=program_response.stop_reason,
            model=program_response.model,
            cost_usd=program_response.cost_usd,
            duration_ms=int((time.monotonic() - start) * 1000),
        )
        try:
            return with_parsed_output(response, request)
        except LlmError as error:
            error.usage, error.cost_usd = response.usage, response.cost_usd
            raise

    def count_tokens(self, request: Request) -> int:
        """Return an upper estimate."""
        return estimate_tokens(request.text())

    def max_cost_usd(self, request: Request, prompt_tokens: int) -> float | None:
        """Return the most that the call can cost in dollars; None if no price is known."""
        known = prices.max_cost_usd(self.model, prompt_tokens, request)
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
