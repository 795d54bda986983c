"""Commits that replace whole files: their objects are computed and written here.

`git add`, `git write-tree` and `git commit-tree` give the same objects with three processes. Files that git may
convert, and entries that are not regular files, are left to them.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from autoqec.system.git.command import IDENTITY
from autoqec.system.git.lock import storage_errors
from autoqec.system.git.tree_objects import TREE, Entry, ReadTree, format_tree_object

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
        oid = hashlib.sha1(_header(kind, data) + data, usedforsecurity=False).hexdigest()
        self._content[oid] = kind, data
        return oid

    def write(self, objects_dir: Path) -> None:
        """Write each object to a file of its own, as git does, unless there is one.

        Raises:
            StorageError: One cannot be written.
        """
        with storage_errors(objects_dir):
            mode = stat.S_IMODE(objects_dir.stat().st_mode)  # a shared repository gives its group access here
            for oid, (kind, data) in self._content.items():
                path = objects_dir / oid[:2] / oid[2:]
                for is_last_try in (False, True):
                    try:
                        _write_object(path, _header(kind, data) + data, mode)
                    except FileNotFoundError:  # a prune removed the directory meanwhile
                        if is_last_try:
                            raise

    def are_loose(self, objects_dir: Path) -> bool:
        """Return whether each object has a file of its own in the object database."""
        return all((objects_dir / oid[:2] / oid[2:]).exists() for oid in self._content)


def _header(kind: str, data: bytes) -> bytes:
    return f"{kind} {len(data)}\0".encode()


def _write_object(path: Path, data: bytes, mode: int) -> None:
    """Write and sync the file of an object, whose permissions follow those of the object database, `mode`."""
    with suppress(FileNotFoundError):
        os.utime(path)  # so that a prune of objects that nothing refers to keeps it
        return
    with suppress(FileExistsError):
        path.parent.mkdir()
        path.parent.chmod(mode)
    temporary = path.with_name(f"tmp_obj_{secrets.token_hex(8)}")  # `git prune` removes what a killed process left
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o444)
    try:
        with os.fdopen(fd, "wb") as stream:
            stream.write(zlib.compress(data, 1))
            stream.flush()
            os.fchmod(fd, mode & 0o444)
            os.fsync(fd)
        temporary.rename(path)
    except OSError:
        with suppress(OSError):
            temporary.unlink()
        raise


def read_plain_files(worktree: Path, paths: Sequence[str]) -> dict[str, bytes]:
    """Return the content of regular files, by their paths from the top of the worktree.

    Raises:
        NotPlainError: There is another kind of file, or git may store another content.
    """
    return {str(PurePosixPath(path)): _read_plain_file(worktree, PurePosixPath(path)) for path in paths}


def _read_plain_file(worktree: Path, path: PurePosixPath) -> bytes:
    directories = [worktree / parent for parent in path.parents if parent.parts]
    if not path.parts or any(_is_foreign(directory) for directory in directories):
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
    require_plain(str(path), data)
    return data


def require_plain(path: str, data: bytes) -> None:
    """Raise NotPlainError if git may store another content for a regular file."""
    if not path.isascii() or len(data) > _MAX_BYTES or any(mark in data for mark in _CONVERTED):
        raise NotPlainError


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
