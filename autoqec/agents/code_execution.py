"""CodeExecutionService: a model's code in the sandbox, its output put where the model asked for it."""

from __future__ import annotations

import re
from collections.abc import Callable

FLAG = "EXECUTE CODE!"
_REQUEST = re.compile(r"(```(?:python)?[ \t]*\n(.*?)```)\s*" + re.escape(FLAG), re.DOTALL)
MAX_OUTPUT = 10_000

Run = Callable[[str, float], str]


class CodeExecutionService:
    """Replaces the flag after a fenced block by what the block printed.

    run: (code, seconds) -> output; `sandboxed` is the one for real use. None: the gate is shut and text stays as it is.
    """

    def __init__(self, run: Run | None, *, timeout_s: float = 5.0) -> None:
        self._run, self.timeout_s = run, timeout_s

    def run(self, code: str, timeout: float) -> str:
        """Output of `code`, or one line that says why there is none."""
        if self._run is None:
            return "code execution is switched off"
        return self._run(code, timeout)[:MAX_OUTPUT]

    def complete(self, text: str) -> str:
        if self._run is None:
            return text

        def executed(match: re.Match[str]) -> str:
            return f"{match[1]}\nOutput:\n```\n{self.run(match[2], self.timeout_s)}\n```"

        return _REQUEST.sub(executed, text)
