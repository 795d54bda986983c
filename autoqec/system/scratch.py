"""Temporary directories that a later process removes if their owner was killed."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from filelock import lock_descriptor

_NAME = re.compile(r"autoqec-scratch-[a-z]+-[a-z0-9_]{8}")
_GRACE_S = 60.0  # made, perhaps, and not locked yet


@contextmanager
def scratch(kind: str) -> Iterator[Path]:
    """Create an empty private directory for the block; `kind` is a lower-case word for its name."""
    _remove_stale_once(tempfile.gettempdir())
    with tempfile.TemporaryDirectory(prefix=f"autoqec-scratch-{kind}-") as name:
        fd = os.open(name, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            with suppress(OSError):  # a file system without locks; no other process can lock it for removal either
                lock_descriptor(fd, blocking=False)
            yield Path(name)
        finally:
            os.close(fd)


def remove_stale(directory: Path) -> list[Path]:
    """Remove scratch directories of this user that no living process holds; return the removed paths.

    The kernel releases a lock with its process, so that neither a reused pid nor a process of another container can be
    mistaken for a dead or a living owner.
    """
    removed = []
    with suppress(OSError):
        for path in sorted(entry for entry in directory.iterdir() if _NAME.fullmatch(entry.name)):
            with suppress(OSError):
                if _remove(path):
                    removed.append(path)
    return removed


@cache
def _remove_stale_once(directory: str) -> list[Path]:
    """Call `remove_stale` once per process."""
    return remove_stale(Path(directory))


def _remove(path: Path) -> bool:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        status = os.fstat(fd)
        if status.st_uid != os.geteuid() or time.time() - status.st_mtime < _GRACE_S:
            return False
        if is_stale := lock_descriptor(fd, blocking=False):
            shutil.rmtree(path)
        return is_stale
    finally:
        os.close(fd)
