"""Writes files below a directory under untrusted names, without following links."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from autoqec.store import atomic

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
    with atomic.storage_errors(root / name):
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
        with atomic.storage_errors(root / name):
            os.fsync(fd)
    finally:
        os.close(fd)


def sync_directories(root: Path) -> None:
    """Make the entries of `root` and of all directories below it durable."""
    for directory, _, _ in os.walk(root):
        atomic.fsync_dir(directory)
