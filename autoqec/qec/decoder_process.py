"""A process that holds a third-party decoder: its start, and one request and answer at a time.

Messages are those of `autoqec.qec.external_process`.
"""

from __future__ import annotations

import struct
import sys
import threading
from importlib.machinery import ModuleSpec
from pathlib import Path

from autoqec.installation import IMPORT_DIR
from autoqec.qec.external_process import FAILED, HEADER
from autoqec.system import sandbox
from autoqec.system.process import child

LIFETIME_S = 14 * 24 * 3600.0
MEMORY_GB, DISK_MB, PROCESSES = 16.0, 256.0, 64
MAX_MESSAGE = 2**16


class NoAnswerError(Exception):
    """The process answered nonsense, ended, or exceeded the time limit (`expired`)."""

    def __init__(self, message: str, *, expired: bool = False) -> None:
        super().__init__(message)
        self.expired = expired


class ReportedFailureError(Exception):
    """The process answered with a failure; `payload` is what it said, which untrusted code wrote."""

    def __init__(self, payload: bytes) -> None:
        super().__init__()
        self.payload = payload


def start(program: str, module: ModuleSpec, directory: Path, *, sandboxed: bool = True) -> child.Process:
    """Start the process.

    In the sandbox it may read Python's own files and the decoder's package, and write to a scratch directory. Without,
    its working directory is the current one.

    Args:
        program: Module that the process runs.
        module: Top-level package or module of the decoder.
        directory: For the log and the scratch directory.
        sandboxed: Whether it runs in the sandbox.
    """
    private = directory / "scratch"
    private.mkdir()
    argv: tuple[str, ...] = (sys.executable, "-P", "-s", "-m", program)
    environment, cwd = {"PYTHONPATH": str(IMPORT_DIR)}, Path.cwd()
    if sandboxed:
        paths = module.submodule_search_locations or [str(module.origin)]
        policy = sandbox.SandboxPolicy(
            read_only=tuple(map(Path, paths)), scratch=private, tmp_mb=int(DISK_MB), env=environment
        )
        wrapped = sandbox.wrap(argv, policy)
        argv, environment, cwd = wrapped.argv, wrapped.env, private
    limits = child.Limits(
        wallclock_s=LIFETIME_S, memory_gb=MEMORY_GB, disk_mb=DISK_MB, disk_dir=private, processes=PROCESSES
    )
    return child.start(argv, cwd=cwd, env=environment, limits=limits, stderr=_log(directory))


class DecoderChannel:
    """Requests to a process that `start` gave.

    Args:
        process: The process.
        directory: That of `start`.
        timeout_s: Limit for each answer, in seconds; the process is killed when it is reached.
    """

    def __init__(self, process: child.Process, directory: Path, timeout_s: float) -> None:
        self._process, self._log, self._timeout_s = process, _log(directory), timeout_s

    def kill(self) -> None:
        """End the process now, also while another thread waits for its answer."""
        self._process.kill()

    def ask(self, payload: bytes, size: int | None = None) -> bytes:
        """Send one request; return its answer, of `size` bytes if given.

        Raises:
            NoAnswerError: There is no usable answer.
            ReportedFailureError: The decoder failed.
        """
        expired = threading.Event()

        def expire() -> None:
            expired.set()
            self._process.kill()

        watchdog = threading.Timer(self._timeout_s, expire)
        watchdog.start()
        try:
            self._process.stdin.write(HEADER.pack(0, len(payload)) + payload)
            self._process.stdin.flush()
            tag, length = HEADER.unpack(self._process.stdout.read(HEADER.size))
            if length > MAX_MESSAGE if tag == FAILED or size is None else length != size:
                raise NoAnswerError(f"answered {length} bytes, {size} were expected")
            answer = self._process.stdout.read(length)
        except (OSError, ValueError, struct.error) as error:
            raise NoAnswerError(f"its process ended: {self._end()}", expired=expired.is_set()) from error
        finally:
            watchdog.cancel()
        if len(answer) != length:
            raise NoAnswerError(f"its process ended: {self._end()}")
        if tag == FAILED:
            raise ReportedFailureError(answer)
        return answer

    def _end(self) -> str:
        result = self._process.wait(10.0) or self._process.kill()  # its pipe may close before its status is known
        lines = self._log.read_text(errors="replace")[-2000:].split("\n") if self._log.exists() else []
        last = next((line for line in reversed(lines) if line.strip()), "")
        return f"{result.limit_broken or f'exit status {result.returncode}'} {last}".strip()


def _log(directory: Path) -> Path:
    return directory / "log"
