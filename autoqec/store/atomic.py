"""Atomic, durable file writes: temporary file in the same directory, fsync, rename, fsync of the directory.

A failed fsync is never retried (the kernel may have dropped the pages): StorageError, and the next start re-reads.
"""

from __future__ import annotations

import errno
import json
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from autoqec.errors import StorageError

_DISK_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
_ACCESS_DENIED = {errno.EACCES, errno.EPERM, errno.EROFS, errno.ELOOP, errno.ENOTDIR, errno.EISDIR}
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
        hint = f"free space on its file system (`df -h {path.parent}`), then start again with --resume"
    elif error.errno in _ACCESS_DENIED:
        hint = f"make it writable (`ls -ld {path.parent}`), then start again with --resume"
    else:
        hint = "look at the disk (`dmesg | tail`), then start again with --resume"
    return StorageError(f"could not be written: {reason}", location=str(path), hint=hint)


@contextmanager
def replace_file(path: Path | str, *, mode: int = 0o644) -> Iterator[int]:
    """A descriptor that takes the new content of `path` in parts; the file is replaced when the block ends well.

    A reader sees the old file or the new one, whole; after the block it is durable. A symlink at `path` is replaced,
    never followed. Raises StorageError; then, and where the block raises, the old file is left alone.
    """
    path = Path(path)
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


def write_bytes(path: Path | str, data: bytes, *, mode: int = 0o644) -> None:
    """Replace `path` by `data`, as `replace_file` does."""
    with replace_file(path, mode=mode) as fd:
        write_all(fd, data)


def write_text(path: Path | str, text: str, *, mode: int = 0o644) -> None:
    """As `write_bytes`, UTF-8."""
    write_bytes(path, text.encode(), mode=mode)


def write_json(path: Path | str, value: Any, *, mode: int = 0o644) -> None:
    """As `write_bytes`: two-space JSON with a newline at the end, keys in the order given; ValueError for NaN."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n", mode=mode)


def append_bytes(path: Path | str, data: bytes) -> None:
    """Add `data` to the end of a file that is there: one write, durable on return; on failure it is cut back."""
    path = Path(path)
    with storage_errors(path):
        fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            append_to_fd(fd, data, os.fstat(fd).st_size)
        finally:
            os.close(fd)


def append_to_fd(fd: int, data: bytes, size: int) -> None:
    """As `append_bytes`, to an open file of `size` bytes. Raises OSError."""
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
    """Write all of `data`, however many calls it takes. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def fsync_dir(directory: Path | str) -> None:
    """Make the names in `directory` durable."""
    with storage_errors(Path(directory)):
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            # Some network file systems cannot sync a directory; they order names themselves.
            if error.errno not in (errno.EINVAL, errno.ENOTSUP):
                raise
        finally:
            os.close(fd)


def make_dir(directory: Path | str, *, exclusive: bool = False) -> None:
    """Create `directory` and its missing parents, durably. `exclusive`: FileExistsError where it stands already."""
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
    """As `make_dir`, many of them below parents that stand, each parent made durable once."""
    missing = [directory for directory in directories if not directory.is_dir()]
    for directory in missing:
        with storage_errors(directory):
            os.mkdir(directory)
    for parent in dict.fromkeys(directory.parent for directory in missing):
        fsync_dir(parent)


def is_temporary(name: str) -> bool:
    """Whether a file of this name is what a killed write leaves."""
    return _TEMPORARY.match(name) is not None


def remove_temporaries(directory: Path | str) -> list[Path]:
    """Remove what a killed `write_bytes` left in `directory` (not below it); returns what was removed."""
    directory = Path(directory)
    with storage_errors(directory):
        temporaries = sorted(entry for entry in directory.iterdir() if is_temporary(entry.name) and not entry.is_dir())
        for entry in temporaries:
            entry.unlink(missing_ok=True)
    return temporaries
