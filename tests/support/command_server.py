"""Run `autoqec` command lines in forks of one process that has imported what they import.

A command imports for up to three seconds and works for less. Each fork is a process of its own, with the arguments,
environment, directory and output files of a command that `python -m autoqec.cli` starts; the server itself runs none.

As a program, `python -P tests/support/command_server.py FD` reads one request from standard input per line, {argv, cwd,
env, out, err, timeout}, and writes the exit status to the descriptor FD, or `timeout`.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import threading
import traceback
from pathlib import Path
from typing import Any

READ_BY_IMPORTS = ("COVERAGE_", "LD_", "OMP_", "PYTHON")  # prefixes; everything else is read when it is needed
PR_SET_PDEATHSIG = 1
IMPORTED = (
    "autoqec.cli.autoqec", "autoqec.cli.commands.doctor", "autoqec.cli.commands.run_round",
    "autoqec.cli.commands.show", "autoqec.cli.commands.verify", "autoqec.cli.progress", "autoqec.cli.run_command",
    "autoqec.cli.workspace", "autoqec.decoders.family", "autoqec.orchestrator.session", "autoqec.orchestrator.loop",
    "autoqec.reporting.run_report", "autoqec.runner.round_memory", "autoqec.runner.runner",
    "autoqec.verification.verifier", "git", "matplotlib", "pymatching", "scipy.stats", "stim", "torch",
)  # fmt: skip


class CommandServer:
    """A server process; `run` is to be called by one thread at a time."""

    def __init__(self, env: dict[str, str]) -> None:
        self._env = _read_by_imports(env)
        self.lock = threading.Lock()
        reading, writing = os.pipe()
        command = [sys.executable, "-P", __file__, str(writing)]
        self._process = subprocess.Popen(
            command, env=env, cwd="/", stdin=subprocess.PIPE, pass_fds=[writing], text=True
        )
        os.close(writing)
        self._replies = os.fdopen(reading, encoding="ascii")
        atexit.register(self._process.kill)

    def accepts(self, env: dict[str, str]) -> bool:
        """Return whether a command in this environment would import the same."""
        return _read_by_imports(env) == self._env

    def run(
        self, argv: tuple[str, ...], *, cwd: Path, env: dict[str, str], timeout: float
    ) -> subprocess.CompletedProcess[str]:
        """Run one command; its arguments and result are those of `subprocess.run`."""
        with tempfile.TemporaryDirectory(prefix="command-") as directory:
            out, err = Path(directory, "out"), Path(directory, "err")
            request = {"argv": argv, "cwd": str(cwd), "env": env, "out": str(out), "err": str(err), "timeout": timeout}
            stdin = self._process.stdin
            assert stdin is not None
            stdin.write(json.dumps(request) + "\n")
            stdin.flush()
            reply = self._replies.readline().strip()
            if reply == "timeout":
                raise subprocess.TimeoutExpired(["autoqec", *argv], timeout)
            return subprocess.CompletedProcess(argv, int(reply), out.read_text("utf-8"), err.read_text("utf-8"))


def _read_by_imports(env: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(READ_BY_IMPORTS)}


def serve(replies: int) -> dict[str, Any]:
    """Fork for each request; return it in the fork. The server ends with its standard input."""
    for line in sys.stdin:
        request: dict[str, Any] = json.loads(line)
        pid = os.fork()
        if pid == 0:
            os.close(replies)
            return request
        with open(os.pidfd_open(pid), "rb") as handle:
            in_time = bool(select.select([handle], [], [], request["timeout"])[0])
        if not in_time:
            os.kill(pid, signal.SIGKILL)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        os.write(replies, f"{status if in_time else 'timeout'}\n".encode())
    sys.exit()


def become(request: dict[str, Any]) -> None:
    """Take on the request's environment, directory, output files and arguments."""
    from autoqec.cli import __main__ as entry

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    for descriptor, path, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["out"], os.O_WRONLY | os.O_CREAT),
        (2, request["err"], os.O_WRONLY | os.O_CREAT),
    ):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, descriptor)
        os.close(opened)
    sys.stdin, sys.stdout = os.fdopen(0, closefd=False), os.fdopen(1, "w", closefd=False)
    sys.stderr = os.fdopen(2, "w", errors="backslashreplace", closefd=False)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    sys.argv = [str(entry.__file__), *request["argv"]]


def main() -> None:
    """Serve requests, and run the command in each fork."""
    for name in IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    become(serve(int(sys.argv[1])))
    os._exit(run_command())


def run_command() -> int:
    """Run the command line, and what the interpreter does at its end except for freeing each object."""
    from autoqec.cli.__main__ import main as run

    try:
        run()
        status: object = 0
    except SystemExit as ended:
        status = ended.code
    except BaseException:
        traceback.print_exc()
        status = 1
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    return status if isinstance(status, int) else int(status is not None)


if __name__ == "__main__":
    main()
