"""Directories for as long as a block runs. What a killed process left of them, a later one removes."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

_NAME = re.compile(r"autoqec-scratch-[a-z]+-[a-z0-9_]{8}")
_YOUNG_S = 60.0  # made, perhaps, and not locked yet


@contextmanager
def scratch(kind: str) -> Iterator[Path]:
    """A new, empty, private directory. kind: a word for its name, lower case."""
    _swept(tempfile.gettempdir())
    with tempfile.TemporaryDirectory(prefix=f"autoqec-scratch-{kind}-") as name:
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(OSError):  # a file system without locks: nobody could lock it to remove it either
                fcntl.flock(fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
            yield Path(name)
        finally:
            os.close(fd)


def sweep(place: Path) -> list[Path]:
    """Remove what no living process holds of such directories of this user in `place`; returns what was removed.

    The kernel drops a lock with its process, so that neither a number given away again nor another container's
    processes can be taken for dead or alive.
    """
    removed = []
    with suppress(OSError):
        for path in sorted(one for one in place.iterdir() if _NAME.fullmatch(one.name)):
            with suppress(OSError):
                if _remove(path):
                    removed.append(path)
    return removed


@cache
def _swept(place: str) -> list[Path]:
    """Once a process is enough."""
    return sweep(Path(place))


def _remove(path: Path) -> bool:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        found = os.fstat(fd)
        if found.st_uid != os.geteuid() or time.time() - found.st_mtime < _YOUNG_S:
            return False
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(path)
        return True
    finally:
        os.close(fd)
