"""The lock around everything that writes to a repository, and the removal of git's lock files after a crash.

The lock is a filelock on `autoqec.lock` in the common git directory. git inherits its descriptor: if this process is
killed, the next writer waits until every git that it started has ended too. While a writer works, the file names its
host, boot and PID namespace. A later writer that finds this record knows that one died, and which of git's lock files
can only be its own.
"""

from __future__ import annotations

import json
import os
import platform
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from filelock import FileLock, Timeout

from autoqec.errors import StorageError
from autoqec.system.git.errors import GitError

_TIMEOUT_S = 120.0
_REFS = ("refs/heads/exp", "refs/heads/quarantine", "refs/autoqec")
_LOCK_FILES = (
    "packed-refs.lock",
    "reftable/*.lock",
    *(f"{base}{prefix}/**/*.lock" for base in ("", "logs/") for prefix in _REFS),
    *(f"worktrees/{prefix}-*/**/*.lock" for prefix in ("exp", "quarantine")),
)


@contextmanager
def repository_lock(common: Path, *, timeout_s: float = _TIMEOUT_S) -> Iterator[int]:
    """Hold the lock of a repository; yields the descriptor that git has to inherit.

    An error leaves the record of this writer, so that the next one removes what git left.

    Args:
        common: The common git directory.
        timeout_s: Seconds to wait for another writer.

    Raises:
        GitError: Another writer kept the lock for `timeout_s` seconds.
        StorageError: The lock file cannot be written.
    """
    path, descriptors = common / "autoqec.lock", list[int]()
    with _storage_errors(path):
        mode = stat.S_IMODE(common.stat().st_mode) & 0o666  # a shared repository gives its group access here
        lock = FileLock(path, timeout_s, mode, poll_interval=0.02, on_acquired=descriptors.append)
        try:
            lock.acquire()
        except Timeout as error:
            message = "another autoqec, or a git that it started, holds the repository"
            hint = f"find it with `fuser -v {path}` and wait for it"
            raise GitError(message, location=str(path), hint=hint) from error
    try:
        (fd,) = descriptors
        with _storage_errors(path):
            record = _writer_record()
            _remove_stale_locks(common, fd, record)
            os.pwrite(fd, record, 0)
            os.ftruncate(fd, len(record))
            os.fdatasync(fd)  # a power cut must not take the record and leave git's locks
        yield fd
        with _storage_errors(path):
            os.ftruncate(fd, 0)
    finally:
        with suppress(OSError):
            lock.release()


@contextmanager
def _storage_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        message = f"could not be written: {error.strerror or error}"
        hint = f"look at its disk (`df -h {path.parent}`), then --resume"
        raise StorageError(message, location=str(path), hint=hint) from error


def _writer_record() -> bytes:
    """Where this process runs: a lock file of another host, boot, container or user is not ours to remove."""
    boot = pid_namespace = ""
    with suppress(OSError):
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        pid_namespace = os.readlink("/proc/self/ns/pid")
    place = {"host": platform.node(), "boot": boot, "pid_namespace": pid_namespace, "uid": os.geteuid()}
    return (json.dumps(place) + "\n").encode()


def _remove_stale_locks(common: Path, fd: int, record: bytes) -> None:
    """Remove git's lock files that a dead writer of this host, boot, PID namespace and user left.

    They were made after its record, and no process has them open. Any other one may belong to a running git.
    """
    if not os.fstat(fd).st_size or os.pread(fd, 4096, 0) != record:
        return
    began_ns, own = os.fstat(fd).st_mtime_ns, []
    for path in (path for pattern in _LOCK_FILES for path in common.glob(pattern)):
        with suppress(FileNotFoundError):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and status.st_mtime_ns >= began_ns:
                own.append(path)
    in_use = _open_files() if own else set()
    for path in own:
        if os.path.realpath(path) not in in_use:
            path.unlink(missing_ok=True)


def _open_files() -> set[str]:
    """Return the files that processes of this user have open."""
    processes = psutil.process_iter(["open_files"])
    return {file.path for process in processes for file in process.info["open_files"] or ()}
