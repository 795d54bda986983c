"""Atomic, durable file writes: temporary file in the same directory, fsync, rename, fsync of the directory; safe reads.

A failed fsync is not retried, since the kernel may have dropped the pages: it raises StorageError, and the next start
reads the files again.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
import stat
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any

from autoqec.errors import StorageError, UsageError

_STALE_TRIES = 5
_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_ACCESS_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP, errno.ENOTDIR}
_TEMPORARY = re.compile(r"^\..+\.[0-9a-f]{16}\.tmp$")


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turn any OSError into StorageError that names `path`."""
    try:
        yield
    except OSError as error:
        raise storage_error(path, error) from error


def storage_error(path: Path, error: OSError) -> StorageError:
    """Return the StorageError for a failed write, with a hint that fits its cause."""
    reason = error.strerror or str(error)
    if error.errno in _DISK_FULL:
        hint = f"free space on its file system (`df -h {path.parent}`)"
    elif error.errno == errno.EISDIR:
        hint = f"move the directory away (`mv {path} {path}.old`)"
    elif error.errno in _ACCESS_DENIED:
        hint = f"make it writable (`ls -ld {path.parent}`)"
    else:
        hint = "look at the disk (`dmesg | tail`)"
    return StorageError(f"could not be written: {reason}", location=str(path), hint=hint)


@contextmanager
def open_regular(path: Path | str) -> Iterator[BufferedReader]:
    """Open a regular file for reading.

    Raises:
        OSError: It cannot be read, or is a FIFO or a device: reading one could block or never end.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.ENXIO, "is not a regular file", str(path))
    except OSError:
        os.close(fd)
        raise
    with os.fdopen(fd, "rb") as stream:
        yield stream


def read_bytes(path: Path | str, max_bytes: int = -1) -> bytes:
    """Return the content of a regular file, or its first `max_bytes`. Raises OSError as `open_regular`.

    A file that another client of a network file system replaced meanwhile has a stale handle: it is opened again.
    """
    for attempt in range(_STALE_TRIES):
        try:
            with open_regular(path) as stream:
                return stream.read(max_bytes)
        except OSError as error:
            if error.errno != errno.ESTALE or attempt + 1 == _STALE_TRIES:
                raise
    raise AssertionError


def is_visible(path: Path) -> bool:
    """Return whether a file exists, as far as this client of a network file system can see; False for a stale handle.

    Raises:
        OSError: Its directory cannot be searched.
    """
    try:
        return path.exists()
    except OSError as error:
        if error.errno == errno.ESTALE:
            return False
        raise


@contextmanager
def replace_file(path: Path | str, *, mode: int = 0o644) -> Iterator[int]:
    """Yield a descriptor for the new content of `path`; the file is replaced atomically at the end of the block.

    Readers see either the old or the new content; after the block the new one is durable. A symlink at `path` is
    replaced, not followed. If the block raises, the old file remains.

    Args:
        path: The file.
        mode: Permissions of the new file.

    Raises:
        StorageError: The file cannot be written; the old file remains.
        UsageError: The path is one of a device, such as /dev/stdout, which root would replace for all processes.
    """
    path = Path(path)
    if _is_device_name(path):
        message = "is a device, which cannot be replaced by a file"
        raise UsageError(message, location=str(path), hint="write to a file, then `cat` it")
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    with storage_errors(path):
        fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
        try:
            try:
                yield fd
                os.fsync(fd)
            finally:
                os.close(fd)
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):
                os.unlink(temporary)
            raise
    fsync_dir(path.parent)


def _is_device_name(path: Path) -> bool:
    """Return whether a path names a device or an open file of a process (/dev/shm has files)."""
    directory = os.path.dirname(os.path.abspath(path))
    return directory in ("/dev", "/dev/fd", "/proc") or directory.startswith("/proc/")


def write_bytes(path: Path | str, data: bytes, *, mode: int = 0o644) -> None:
    """Write `data` to `path` atomically and durably, as `replace_file`."""
    with replace_file(path, mode=mode) as fd:
        write_all(fd, data)


def write_text(path: Path | str, text: str) -> None:
    """Write UTF-8 text, as `write_bytes`."""
    write_bytes(path, text.encode())


def write_json(path: Path | str, value: Any) -> None:
    """Write JSON with two-space indents and a final newline, as `write_bytes`. Raises ValueError for NaN."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def append_bytes(path: Path | str, data: bytes) -> None:
    """Append `data` to an existing file by one durable write; on failure the file is truncated to its old size."""
    path = Path(path)
    with storage_errors(path):
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            append_to_fd(fd, data, os.fstat(fd).st_size)
        finally:
            os.close(fd)


def append_to_fd(fd: int, data: bytes, size: int) -> None:
    """Append to an open file of `size` bytes, as `append_bytes`. Raises OSError."""
    try:
        if os.write(fd, data) != len(data):
            raise OSError(errno.ENOSPC, "No space left on device (short write)")
        os.fsync(fd)
    except BaseException:
        with suppress(OSError):
            os.ftruncate(fd, size)
            os.fsync(fd)
        raise


def write_all(fd: int, data: bytes) -> None:
    """Write all of `data`, with as many calls as necessary. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def fsync_dir(directory: Path | str) -> None:
    """Make the entries of a directory durable."""
    with storage_errors(Path(directory)):
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            # Some network file systems do not support fsync of a directory; their servers make entries durable.
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(fd)


def make_dir(directory: Path | str, *, exclusive: bool = False) -> None:
    """Create a directory and its missing parents, durably.

    Args:
        directory: The directory.
        exclusive: Raise FileExistsError if it exists already.
    """
    directory = Path(directory)
    if directory.is_dir() and not exclusive:
        return
    if not directory.parent.is_dir():
        make_dir(directory.parent)
    try:
        os.mkdir(directory)
    except FileExistsError as error:
        if exclusive:
            raise
        if not directory.is_dir():
            raise storage_error(directory, error) from error
    except OSError as error:
        raise storage_error(directory, error) from error
    fsync_dir(directory.parent)


def make_dirs(directories: Iterable[Path]) -> None:
    """Create several directories with existing parents, as `make_dir`, with one fsync per parent."""
    missing = [directory for directory in directories if not directory.is_dir()]
    for directory in missing:
        with storage_errors(directory):
            os.mkdir(directory)
    for parent in dict.fromkeys(directory.parent for directory in missing):
        fsync_dir(parent)


def is_temporary(name: str) -> bool:
    """Return whether a file of this name is a temporary file of an interrupted write."""
    return _TEMPORARY.match(name) is not None


_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


@contextmanager
def new_file(root: Path, name: str) -> Iterator[int]:
    """Yield a descriptor of the new file `name` (a relative path) below `root`; missing directories are created.

    Every component is opened relative to its parent, without following links. The file is durable after the block.

    Raises:
        StorageError: A component is a link or a file, the file exists, or the disk is full.
    """
    *parents, last = name.split("/")
    with storage_errors(root / name):
        here = os.open(root, _DIRECTORY)
        try:
            for part in parents:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o755, dir_fd=here)
                above, here = here, os.open(part, _DIRECTORY, dir_fd=here)
                os.close(above)
            fd = os.open(last, _NEW_FILE, 0o644, dir_fd=here)
        finally:
            os.close(here)
    try:
        yield fd
        with storage_errors(root / name):
            os.fsync(fd)
    finally:
        os.close(fd)


def sync_directories(root: Path) -> None:
    """Make the entries of `root` and of all directories below it durable."""
    for directory, _, _ in os.walk(root):
        fsync_dir(directory)
