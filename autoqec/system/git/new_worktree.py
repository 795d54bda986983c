"""The files of a linked worktree, as `git worktree add` writes them with two further processes."""

from __future__ import annotations

import os
import re
from pathlib import Path

from autoqec.system.git.lock import storage_errors

LOCKED = "locked"  # `git worktree prune` and recovery see that the checkout is not complete
_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]*")


def is_supported(common: Path, path: Path) -> bool:
    """Return whether a worktree at `path` needs no more than `register` writes.

    It does not if git would call its record otherwise, if its place is taken, or if worktrees have settings of their
    own.
    """
    return (
        _PLAIN_NAME.fullmatch(path.name) is not None
        and not os.path.lexists(path)
        and not os.path.lexists(common / "worktrees" / path.name)
        and not any(os.path.lexists(common / name) for name in ("config.worktree", "reftable"))
    )


def register(common: Path, path: Path, branch: str) -> Path:
    """Create git's record of a worktree and its directory, without files; return the record's directory.

    The record comes first and is marked as incomplete, and the file that makes it count, `gitdir`, is its last one: an
    interrupted call leaves what an interrupted `git worktree add` leaves.

    Raises:
        StorageError: A file cannot be written.
    """
    admin = common / "worktrees" / path.name
    with storage_errors(admin):
        admin.parent.mkdir(exist_ok=True)
        admin.mkdir()
        (admin / LOCKED).write_text("initializing\n")
        (admin / "HEAD").write_text(f"ref: refs/heads/{branch}\n")
        (admin / "commondir").write_text("../..\n")
        (admin / "gitdir").write_bytes(os.fsencode(path / ".git") + b"\n")
    with storage_errors(path):
        path.mkdir()
        (path / ".git").write_bytes(b"gitdir: " + os.fsencode(admin) + b"\n")
    return admin


def complete(admin: Path) -> None:
    """Mark the worktree of a record as complete. Raises StorageError."""
    with storage_errors(admin):
        (admin / LOCKED).unlink()
