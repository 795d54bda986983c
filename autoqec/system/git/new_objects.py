"""Commits that replace whole files: their objects are computed here, and one git writes all of them.

`git add`, `git write-tree` and `git commit-tree` give the same objects with three processes. Files that git may
convert, and entries that are not regular files, are left to them.
"""

from __future__ import annotations

import hashlib
import os
import stat
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from autoqec.system.git.command import IDENTITY
from autoqec.system.git.tree_objects import TREE, Entry, ReadTree, format_tree_object

_KINDS = {"commit": 1, "tree": 2, "blob": 3}  # numbers of the pack format
_MODE = "100644"
_MAX_BYTES = 2**20
# Attributes can make git convert line ends and keywords. Filters and encodings are refused when a run starts.
_CONVERTED = (b"\r", b"$Id")


class NotPlainError(Exception):
    """A file or an entry of a tree is not one that this module commits."""


class NewObjects:
    """Objects that are not written yet."""

    def __init__(self) -> None:
        self._content: dict[str, tuple[str, bytes]] = {}

    def add(self, kind: str, data: bytes) -> str:
        """Add one object; return its id."""
        oid = hashlib.sha1(f"{kind} {len(data)}\0".encode() + data, usedforsecurity=False).hexdigest()
        self._content[oid] = kind, data
        return oid

    def pack(self) -> bytes:
        """Return all objects in the format that `git unpack-objects` reads, see gitformat-pack(5)."""
        parts = [b"PACK", (2).to_bytes(4, "big"), len(self._content).to_bytes(4, "big")]
        for kind, data in self._content.values():
            parts += [_entry_header(_KINDS[kind], len(data)), zlib.compress(data, 1)]
        body = b"".join(parts)
        return body + hashlib.sha1(body, usedforsecurity=False).digest()

    def are_loose(self, objects_dir: Path) -> bool:
        """Return whether each object has a file of its own in the object database."""
        return all((objects_dir / oid[:2] / oid[2:]).exists() for oid in self._content)


def _entry_header(kind: int, size: int) -> bytes:
    """Return type and size of an object: 4 bits of the size in the first byte, then 7 per byte, lowest first."""
    data = [kind << 4 | size & 15]
    size >>= 4
    while size:
        data[-1] |= 128
        data.append(size & 127)
        size >>= 7
    return bytes(data)


def read_plain_files(worktree: Path, paths: Sequence[str]) -> dict[str, bytes]:
    """Return the content of regular files, by their paths from the top of the worktree.

    Raises:
        NotPlainError: There is another kind of file, or git may store another content.
    """
    return {str(PurePosixPath(path)): _read_plain_file(worktree, PurePosixPath(path)) for path in paths}


def _read_plain_file(worktree: Path, path: PurePosixPath) -> bytes:
    directories = [worktree / parent for parent in path.parents if parent.parts]
    if not str(path).isascii() or not path.parts or any(_is_foreign(directory) for directory in directories):
        raise NotPlainError
    try:
        fd = os.open(worktree / path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
        with os.fdopen(fd, "rb") as stream:
            status = os.fstat(fd)
            if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o111:
                raise NotPlainError
            data = stream.read(_MAX_BYTES + 1)
    except OSError as error:
        raise NotPlainError from error
    if len(data) > _MAX_BYTES or any(mark in data for mark in _CONVERTED):
        raise NotPlainError
    return data


def _is_foreign(directory: Path) -> bool:
    """Return whether a directory is a link or a repository of its own, which git does not look into."""
    return directory.is_symlink() or os.path.lexists(directory / ".git")


def add_commit(
    objects: NewObjects, read: ReadTree, head: tuple[str, str], files: Mapping[str, bytes], message: str
) -> str:
    """Add a commit whose tree is that of `head` with the files replaced; return its id.

    Args:
        objects: The commit and its blobs and trees are added here.
        read: Reads trees.
        head: The parent commit and its tree.
        files: New content by path; other files stay as they are.
        message: Message of the commit.

    Raises:
        NotPlainError: A file would replace something that is not a regular file.
    """
    blobs = {PurePosixPath(path).parts: objects.add("blob", data) for path, data in files.items()}
    tree = _add_tree(objects, read, head[1], blobs) if blobs else head[1]
    when = f"{int(time.time())} +0000"
    people = "".join(
        f"{role} {IDENTITY[f'GIT_{role.upper()}_NAME']} <{IDENTITY[f'GIT_{role.upper()}_EMAIL']}> {when}\n"
        for role in ("author", "committer")
    )
    text = f"tree {tree}\nparent {head[0]}\n{people}\n{message}"
    return objects.add("commit", text.encode("utf-8", "replace"))


def _add_tree(objects: NewObjects, read: ReadTree, tree: str, blobs: Mapping[tuple[str, ...], str]) -> str:
    """Add the tree with the blobs put in; `tree` is "" for a new directory."""
    entries: dict[str, Entry] = dict(read(tree)) if tree else {}
    below: dict[str, dict[tuple[str, ...], str]] = {}
    for (name, *rest), blob in blobs.items():
        mode, oid = entries.get(name, (TREE if rest else _MODE, ""))
        if mode != (TREE if rest else _MODE):
            raise NotPlainError
        if rest:
            below.setdefault(name, {})[tuple(rest)] = blob
            entries[name] = TREE, oid
        else:
            entries[name] = _MODE, blob
    for name, inner in below.items():
        entries[name] = TREE, _add_tree(objects, read, entries[name][1], inner)
    return objects.add("tree", format_tree_object(entries))
