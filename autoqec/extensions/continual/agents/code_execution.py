"""CodeExecutionService: runs a model's code in the sandbox and inserts its output."""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from autoqec.errors import UsageError
from autoqec.system import sandbox
from autoqec.system.process import child

EXECUTE_FLAG = "EXECUTE CODE!"
_REQUEST = re.compile(r"(```(?:python)?[ \t]*\n(.*?)```)\s*" + re.escape(EXECUTE_FLAG), re.DOTALL)
MAX_OUTPUT_CHARS = 10_000

CodeRunner = Callable[[str, float], str]


class CodeExecutionService:
    """Replaces the flag after a fenced code block by the output of that block.

    Args:
        run: (code, seconds) -> output, normally `run_sandboxed`. None disables execution, and text stays as it is.
        timeout_s: Time limit per block in seconds.
    """

    def __init__(self, run: CodeRunner | None, *, timeout_s: float = 5.0) -> None:
        self._run, self.timeout_s = run, timeout_s

    def run(self, code: str, timeout: float) -> str:
        """Return the output of `code`, or one line with the reason why there is none."""
        if self._run is None:
            return "code execution is switched off"
        return self._run(code, timeout)[:MAX_OUTPUT_CHARS]

    def execute_blocks(self, text: str) -> str:
        """Return `text` with every flagged block followed by its output."""
        if self._run is None:
            return text

        def executed(match: re.Match[str]) -> str:
            return f"{match[1]}\nOutput:\n```\n{self.run(match[2], self.timeout_s)}\n```"

        return _REQUEST.sub(executed, text)


def run_sandboxed(code: str, timeout: float) -> str:
    """Run Python code in the sandbox, without network and with no files but its own directory.

    Args:
        code: Python source.
        timeout: Seconds after which the process and its descendants are killed.

    Returns:
        What the code printed, with a note on the exit status or the limit that ended it.

    Raises:
        UsageError: If no sandbox backend works on this machine.
    """
    if sandbox.probe() == "none":
        raise UsageError("no sandbox runs here", location="code execution", hint="autoqec doctor")
    with tempfile.TemporaryDirectory(prefix="autoqec-code-") as directory:
        work, log = Path(directory, "work"), Path(directory, "output")
        work.mkdir(mode=0o777)
        (work / "main.py").write_text(code, encoding="utf-8")
        wrapped = sandbox.wrap([sys.executable, "-I", "main.py"], sandbox.SandboxPolicy(writable=(work,), tmp_mb=16))
        limits = child.Limits(wallclock_s=timeout, memory_gb=1.0, disk_mb=16, disk_dir=work, processes=64)
        result = child.run(wrapped.argv, cwd=work, env=wrapped.env, limits=limits, stdout=log)
        with log.open("rb") as stream:
            output = stream.read(4 * MAX_OUTPUT_CHARS).decode("utf-8", errors="replace").strip()
    if result.limit_broken is not None:
        return f"{output}\nkilled: {result.limit_broken}".strip()
    return output if result.returncode == 0 else f"{output}\nexit status {result.returncode}".strip()
