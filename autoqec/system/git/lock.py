"""The lock around everything that writes refs or worktrees, and the removal of git's lock files after a crash.

The lock is an flock on `autoqec.lock` in the common git directory. git inherits the descriptor: if this process is
killed, the next writer waits until every git that it started has ended too. While a writer works, the file names its
host, boot and PID namespace. A later writer that finds this record knows that one died, and which of git's lock files
can only be its own.
"""

from __future__ import annotations

import fcntl
import json
import os
import platform
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from autoqec.errors import StorageError
from autoqec.system.git.parsing import GitError
from autoqec.system.process import procfs

_TIMEOUT_S = 120.0
_OWN_REF_PREFIXES = ("refs/heads/exp", "refs/heads/quarantine", "refs/autoqec")
_OWN_WORKTREES = ("exp-", "quarantine-")

FileId = tuple[int, int]  # device, inode


class RepositoryLock:
    """The lock of a repository, for one user of it in this process; thread-safe.

    The file stays open between two uses, so that a git that stays alive can inherit its descriptor.

    Args:
        common: The common git directory.

    Attributes:
        origin: Which open file the descriptor belongs to; it changes when the file had to be opened again.
    """

    def __init__(self, common: Path) -> None:
        self._common, self._path = common, common / "autoqec.lock"
        self._file: BinaryIO | None = None
        self._threads = threading.Lock()
        self.origin = (0, 0)  # process, number of the opening

    @contextmanager
    def hold(self, *, timeout_s: float = _TIMEOUT_S, starts_git: bool = True) -> Iterator[int]:
        """Hold the lock; yields the descriptor that git has to inherit.

        Args:
            timeout_s: Seconds to wait for another process.
            starts_git: Whether a git writes meanwhile, whose lock files need a record of this writer.

        Raises:
            GitError: Another process kept the lock for `timeout_s` seconds.
            StorageError: The lock file cannot be written, or git left one of its own behind.
        """
        if not self._threads.acquire(timeout=timeout_s):
            raise _held(self._path)
        try:
            with storage_errors(self._path):
                fd = self._locked(timeout_s)
                _remove_stale_locks(self._common, fd)
            if starts_git:
                with _recorded_writer(self._common, fd):
                    yield fd
            else:
                yield fd
            with storage_errors(self._path):
                os.ftruncate(fd, 0)
        finally:
            if self._file is not None:
                with suppress(OSError):
                    fcntl.flock(self._file, fcntl.LOCK_UN)
            self._threads.release()

    def _locked(self, timeout_s: float) -> int:
        """Return the descriptor of the file that has this name now, locked."""
        deadline = time.monotonic() + timeout_s
        while True:
            if self._file is None or self.origin[0] != os.getpid():
                fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
                self._file, self.origin = os.fdopen(fd, "rb", buffering=0), (os.getpid(), self.origin[1] + 1)
            fd = self._file.fileno()
            _wait(fd, self._path, deadline)
            with suppress(FileNotFoundError):
                if os.path.samestat(os.fstat(fd), os.stat(self._path, follow_symlinks=False)):
                    return fd
            fcntl.flock(fd, fcntl.LOCK_UN)
            self._file = None  # the file was removed or replaced


@contextmanager
def _recorded_writer(common: Path, fd: int) -> Iterator[None]:
    """Keep the record of this writer in the file until every git that it started has removed its lock files."""
    path = common / "autoqec.lock"
    with storage_errors(path):
        record = _writer_record()
        os.pwrite(fd, record, 0)
        os.ftruncate(fd, len(record))
        os.fdatasync(fd)  # a power cut must not take the record and leave git's locks
        # Those of others that are not older than the record, as far as the clock of the file system can tell.
        earlier = set(_lock_files(common, os.fstat(fd).st_mtime_ns))
    yield
    if left := [path for path in _leftover_locks(common, fd) if path not in earlier]:
        # git does not report a lock file that it could not remove. As an error it keeps the record of this writer,
        # so that the next one removes the file instead of waiting for a git that does not run.
        hint = f"look at its disk (`df -h {common}`), then --resume"
        raise StorageError("git could not remove its lock file", location=str(left[0]), hint=hint)


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn any OSError into a StorageError that names `path`."""
    try:
        yield
    except OSError as error:
        message = f"could not be written: {error.strerror}"
        hint = f"look at its disk (`df -h {path.parent}`), then --resume"
        raise StorageError(message, location=str(path), hint=hint) from error


def _wait(fd: int, path: Path, deadline: float) -> None:
    while True:
        with suppress(BlockingIOError):
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        if time.monotonic() > deadline:
            raise _held(path)
        time.sleep(0.02)


def _held(path: Path) -> GitError:
    message = "another autoqec, or a git that it started, holds the repository"
    return GitError(message, location=str(path), hint=f"find it with `fuser -v {path}` and wait for it")


def _writer_record() -> bytes:
    """Where this process runs: a lock file of another host, boot, container or user is not ours to remove."""
    try:
        pid_namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        pid_namespace = ""
    place = {"host": platform.node(), "boot": procfs.boot_id(), "pid_namespace": pid_namespace, "uid": os.geteuid()}
    return (json.dumps(place) + "\n").encode()


def _remove_stale_locks(common: Path, fd: int) -> None:
    """Remove git's lock files that a dead writer left; call only while holding the lock.

    A writer of this host, boot, PID namespace and user died if its record is still in the file `fd`. The lock file of
    any other one may belong to a running git, which may run where this process cannot see it.
    """
    if os.fstat(fd).st_size and os.pread(fd, 4096, 0) == _writer_record():
        for path in _leftover_locks(common, fd):
            path.unlink(missing_ok=True)


def _leftover_locks(common: Path, fd: int) -> list[Path]:
    """Return git's lock files that this user made after the record in `fd` was written and that no process has open."""
    began_ns = os.fstat(fd).st_mtime_ns
    candidates = [
        (path, found)
        for path in _lock_files(common, began_ns)
        if (found := _regular(path)) and found.st_uid == os.geteuid() and found.st_mtime_ns >= began_ns
    ]
    open_files = _open_files() if candidates else set()
    return [path for path, found in candidates if (found.st_dev, found.st_ino) not in open_files and path.exists()]


def _lock_files(common: Path, since_ns: int = 0) -> Iterator[Path]:
    """Yield lock files at places that writers of this program use.

    Args:
        common: The common git directory.
        since_ns: Leave out directories to which nothing was added since, without reading their names.
    """
    yield common / "packed-refs.lock"
    for prefix in _OWN_REF_PREFIXES:
        for base in (common, common / "logs"):
            yield from _lock_files_below(base / prefix, since_ns)
    records = f"{common}/worktrees"
    changed = [
        name for name in _names(records) if name.startswith(_OWN_WORKTREES) and _changed(records, name, since_ns)
    ]
    for name in sorted(changed):
        yield from _locks_in(f"{records}/{name}", since_ns)


def _lock_files_below(top: Path, since_ns: int) -> list[Path]:
    """Return the lock files below a directory, which holds four entries per round and is read ten times per round."""
    found, directories = list[Path](), [str(top)]
    while directories:
        directory = directories.pop()
        with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
            if os.stat(directory).st_nlink != 2:  # on most file systems: with directories in it
                with os.scandir(directory) as entries:
                    directories += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
            found += _locks_in(directory, since_ns)
    return sorted(found)


def _locks_in(directory: str, since_ns: int) -> list[Path]:
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        if not since_ns or os.stat(directory).st_mtime_ns >= since_ns:
            return sorted(Path(directory, name) for name in os.listdir(directory) if name.endswith(".lock"))
    return []


def _changed(directory: str, name: str, since_ns: int) -> bool:
    """Return whether anything was added to a subdirectory since then; there is one for each round in progress."""
    try:
        return not since_ns or os.stat(f"{directory}/{name}").st_mtime_ns >= since_ns
    except OSError:
        return False


def _names(directory: str) -> list[str]:
    with suppress(FileNotFoundError, NotADirectoryError, PermissionError):
        return os.listdir(directory)
    return []


def _regular(path: Path) -> os.stat_result | None:
    with suppress(OSError):
        status = path.lstat()
        return status if stat.S_ISREG(status.st_mode) else None
    return None


def _open_files() -> set[FileId]:
    """Return every file that a visible process has open; by inode, since paths differ between mount namespaces."""
    found = set()
    for pid in procfs.pids():
        with suppress(OSError):
            for fd in os.listdir(f"/proc/{pid}/fd"):
                with suppress(OSError):
                    status = os.stat(f"/proc/{pid}/fd/{fd}")
                    found.add((status.st_dev, status.st_ino))
    return found
