"""CodeExecutionService: a model's code in the sandbox, its output put where the model asked for it."""

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
    """Replaces the flag after a fenced block by what the block printed.

    run: (code, seconds) -> output; `sandboxed` is the one for real use. None: the gate is shut and text stays as it is.
    """

    def __init__(self, run: CodeRunner | None, *, timeout_s: float = 5.0) -> None:
        self._run, self.timeout_s = run, timeout_s

    def run(self, code: str, timeout: float) -> str:
        """Output of `code`, or one line that says why there is none."""
        if self._run is None:
            return "code execution is switched off"
        return self._run(code, timeout)[:MAX_OUTPUT_CHARS]

    def execute_blocks(self, text: str) -> str:
        if self._run is None:
            return text

        def executed(match: re.Match[str]) -> str:
            return f"{match[1]}\nOutput:\n```\n{self.run(match[2], self.timeout_s)}\n```"

        return _REQUEST.sub(executed, text)


def run_sandboxed(code: str, timeout: float) -> str:
    """What Python prints for `code`, in the judge's sandbox: no network, no files but its own folder.

    Past `timeout` seconds it is killed, with everything it started. UsageError where no sandbox runs here.
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
