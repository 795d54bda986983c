"""Checks out commits that consist of a few regular files, as `git read-tree -u` does with a process of its own."""

from __future__ import annotations

import os
import re
import struct
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path

from autoqec.system.git.lock import storage_errors
from autoqec.system.git.parsing import TreeEntry

MAX_FILES = 200
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_.-]+")


def is_plain(common: Path, entries: Sequence[TreeEntry]) -> bool:
    """Return whether git would write the files of a commit as they are stored, and under any user's settings.

    Args:
        common: The common git directory.
        entries: All files of the commit.
    """
    names = {part for entry in entries for part in entry.path.split("/")}
    return (
        len(entries) <= MAX_FILES
        and all(entry.regular for entry in entries)
        and all(_is_plain_name(name) for name in names)
        and len({entry.path.lower() for entry in entries}) == len(entries)  # file systems that ignore case
        and not os.path.lexists(common / "info" / "attributes")
    )


def _is_plain_name(name: str) -> bool:
    lower = name.lower()
    return (
        _PLAIN_NAME.fullmatch(name) is not None
        and lower not in (".", "..")
        and (not lower.startswith(".git") or name == ".gitignore")
    )


def write(path: Path, admin: Path, entries: Sequence[TreeEntry], contents: Sequence[bytes]) -> None:
    """Write the files of a commit into a new worktree, and its index.

    Args:
        path: The worktree, without files.
        admin: git's record of it.
        entries: The files, for which `is_plain` holds.
        contents: Their bytes.

    Raises:
        StorageError: A file cannot be written.
    """
    from git.index.fun import write_cache
    from git.index.typ import IndexEntry

    index = []
    for entry, data in zip(entries, contents, strict=True):
        target = path / entry.path
        with storage_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            fd = os.open(target, flags, 0o777 if entry.mode == "100755" else 0o666)
            with os.fdopen(fd, "wb") as stream:
                stream.write(data)
                stream.flush()
                found = os.fstat(fd)
        dev, ino, uid, gid = (n & 0xFFFFFFFF for n in (found.st_dev, found.st_ino, found.st_uid, found.st_gid))
        times = _time(found.st_ctime_ns), _time(found.st_mtime_ns)
        mode, oid = int(entry.mode, 8), bytes.fromhex(entry.oid)
        index.append(IndexEntry((mode, oid, 0, entry.path, *times, dev, ino, uid, gid, len(data))))
    index.sort(key=lambda one: str(one.path).encode())
    buffer = BytesIO()
    write_cache(index, buffer)
    with storage_errors(admin / "index"), open(admin / "index", "xb") as stream:
        stream.write(buffer.getvalue())
        stream.flush()
        os.fsync(stream.fileno())


def _time(ns: int) -> bytes:
    return struct.pack(">LL", (ns // 10**9) & 0xFFFFFFFF, ns % 10**9)
