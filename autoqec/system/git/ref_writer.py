"""Writes refs through one git process that stays alive, since starting one costs milliseconds."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any

from autoqec.system.git.parsing import GitError, RefUpdate
from autoqec.system.process.signals import block_signals

ARGUMENTS = ("update-ref", "-m", "autoqec", "--create-reflog", "-z", "--stdin")
_ANSWERS = [b"start: ok\n", b"prepare: ok\n", b"commit: ok\n"]
_MAX_AGE_S = 60.0  # a process keeps the time of its first record in a reflog


class WriterEndedError(Exception):
    """The process ended before it confirmed the transaction; the text is what it wrote to stderr."""


class RefWriter:
    """Carries out transactions of refs, one at a time, while the caller holds the lock of the repository.

    git inherits the descriptor of that lock: if this process is killed, the next writer waits until git has ended too,
    which it does when it finds its pipes closed. Between two transactions it holds none of its own locks.

    Args:
        start: Starts the process with a descriptor that it inherits; returns GitPython's object for it.
    """

    def __init__(self, start: Callable[[int], Any]) -> None:
        self._start = start
        self._process: Any = None
        self._origin: Hashable = None
        self._started_at = 0.0

    def write(self, updates: Sequence[RefUpdate], lock: int, origin: Hashable) -> None:
        """Update all refs or none.

        Args:
            updates: What is changed.
            lock: Descriptor of the lock, which is held.
            origin: Which open lock file it is; a process that has inherited another one is replaced.

        Raises:
            WriterEndedError: git refused or failed.
        """
        lines = ["start", *map(_line, updates), "prepare", "commit"]
        data = "".join(f"{line}\0" for line in lines).encode("utf-8", "surrogateescape")
        # These signals are for this process, which handles them once git has finished.
        with block_signals(signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            try:
                while True:
                    is_new = self._require_process(lock, origin)
                    answers = self._exchange(data)
                    if answers == _ANSWERS:
                        return
                    message = self._end()
                    if answers or message or is_new:
                        raise WriterEndedError(message)
                    # It was killed before this transaction, so that a new one may carry it out.
            except BaseException:
                self._process = None
                raise

    def _require_process(self, lock: int, origin: Hashable) -> bool:
        """Start a process unless there is one that can be used; return whether it was started."""
        is_usable = origin == self._origin and time.monotonic() - self._started_at < _MAX_AGE_S
        if self._process is not None and is_usable:
            return False
        self._process = None
        self._process, self._origin, self._started_at = self._start(lock), origin, time.monotonic()
        return True

    def _exchange(self, data: bytes) -> list[bytes]:
        """Send a transaction; return git's answers until the last one, or until it ended."""
        answers: list[bytes] = []
        with suppress(OSError):
            self._process.stdin.write(data)
            self._process.stdin.flush()
        while len(answers) < len(_ANSWERS) and (line := self._process.stdout.readline()):
            answers.append(line)
        return answers

    def _end(self) -> str:
        """Wait for the end of the process; return what it wrote to stderr."""
        process, self._process = self._process, None
        with suppress(OSError):
            process.stdin.close()
        message: bytes = process.stderr.read()
        process.proc.wait()
        return message.decode("utf-8", "surrogateescape")


def _line(update: RefUpdate) -> str:
    top, *parts = update.ref.split("/")
    if top not in ("refs", "worktrees", "HEAD") or any(part.startswith("-") for part in parts):
        raise GitError(f"{update.ref!r} is not a name for a ref")
    if update.new is None:
        return f"delete {update.ref}\0{update.old or ''}"
    if update.old is None:
        return f"create {update.ref}\0{update.new}"
    return f"update {update.ref}\0{update.new}\0{update.old}"
