"""One lock round everything that writes refs or worktrees, and the healing of what a killed git left locked.

The lock is an flock on a file in the common git dir. git itself inherits the descriptor: when we are killed, the next
start waits until the git that we started has ended too. While we write, the file holds a mark; who finds the mark
knows that a writer died, and removes the lock files it left.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from autoqec.errors import StorageError
from autoqec.system.git.parsing import GitError

_WRITER_MARKER = b"a writer is at work, or died at it\n"
_TIMEOUT_S = 120.0
_OWN_REF_PREFIXES = ("refs/heads/exp", "refs/heads/quarantine", "refs/autoqec")


@contextmanager
def repository_lock(common: Path, *, timeout_s: float = _TIMEOUT_S) -> Iterator[int]:
    """Yields the descriptor to hand to git. Raises GitError when another process keeps the lock, StorageError where
    the lock cannot be written."""
    path = common / "autoqec.lock"
    with _storage_errors(path):
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    try:
        with _storage_errors(path):
            _wait(fd, common, timeout_s)
            if os.fstat(fd).st_size:
                remove_stale_locks(common)
            os.pwrite(fd, _WRITER_MARKER, 0)
        yield fd
        with _storage_errors(path):
            os.ftruncate(fd, 0)
    finally:
        os.close(fd)


@contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"could not be written: {error.strerror}"
        raise StorageError(
            message, location=str(path), hint=f"look at its disk (`df -h {path.parent}`), then --resume"
        ) from error


def _wait(fd: int, common: Path, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if time.monotonic() > deadline:
            message = "another autoqec, or a git that it started, holds the repository"
            raise GitError(message, location=str(common / "autoqec.lock"), hint="`fuser -v` on that file names it")
        time.sleep(0.02)


def remove_stale_locks(common: Path) -> list[Path]:
    """Remove lock files at places only we write (and packed-refs) that no process holds open."""
    found = [common / "packed-refs.lock"]
    for prefix in _OWN_REF_PREFIXES:
        for base in (common, common / "logs"):
            found += sorted((base / prefix).rglob("*.lock"))
    found += sorted(common.glob("worktrees/*/*.lock"))
    open_files = _open_files() if any(path.exists() for path in found) else set()
    removed = []
    for path in found:
        if path.is_file() and os.path.realpath(path) not in open_files:
            path.unlink(missing_ok=True)
            removed.append(path)
    return removed


def _open_files() -> set[str]:
    found = set()
    for pid in os.listdir("/proc") if os.path.isdir("/proc") else ():
        if pid.isdigit():
            with suppress(OSError):
                for fd in os.listdir(f"/proc/{pid}/fd"):
                    with suppress(OSError):
                        found.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    return found
