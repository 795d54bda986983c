"""Errors of git, and what its messages mean."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from autoqec.errors import AutoqecError, StorageError

_PROBE_BYTES = 2**20
# The last one is SIGXFSZ: the limit on the size of a file.
_STORAGE_FAILURE = re.compile(
    r"No space left|Input/output error|Disk quota exceeded|Read-only file system|File too large|[Pp]ermission denied"
    r"|insufficient permission|died of signal 25"
)
_BRANCH_IN_THE_WAY = re.compile(r"'refs/heads/([^']+)' exists; cannot create 'refs/heads/[^']+'")
_DAMAGED_OBJECT = re.compile(r"inflate: |unable to unpack|object file .+ is empty|hash mismatch|object .+ is corrupt")
_OBJECT_NAME = re.compile(r"\b[0-9a-f]{40}\b")
# A prune removes the directory of a new object, or the object, before anything refers to it.
_PRUNED_OBJECT = re.compile(
    r"unable to (?:write|create|rename) .+: No such file or directory|invalid object [0-7]+ "
    r"|[0-9a-f]{40} is not a valid object|with nonexistent object |failed to unpack tree object "
)
_LOCK_EXISTS = re.compile(r"Unable to create '(.+\.lock)': File exists")


class GitError(AutoqecError):
    """git refused or failed; `message` holds its own message."""


class PrunedObjectError(GitError):
    """Another process removed an object that git had just written, before a ref was changed to it."""


class MergeConflictError(AutoqecError):
    """Commits cannot be merged without manual work; nothing was changed.

    Attributes:
        files: The paths in conflict.
    """

    def __init__(self, files: tuple[str, ...]) -> None:
        super().__init__(f"merge conflict in {', '.join(files)}")
        self.files = files


def error_reason(err: str, default: str) -> str:
    """Return the line of git's stderr that states the reason; `default` if it is empty."""
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith(("fatal:", "error:"))] or lines
    return fatal[0].removeprefix("fatal: ").removeprefix("error: ") if fatal else default


def git_error(arguments: Sequence[str], err: str, common: Path) -> GitError | StorageError:
    """Return the error for a git command that failed.

    Args:
        arguments: Of the command; the first one is its name.
        err: What it wrote to stderr.
        common: The common git directory. git does not always say that the disk is full; a file written there does.
    """
    message = f"git {arguments[0]}: {error_reason(err, 'failed without a message')}"
    if lock := _LOCK_EXISTS.search(err):
        hint = f"wait for that git; if none is running: rm '{lock[1]}'"
        return GitError(f"git {arguments[0]}: another git holds a lock file", location=lock[1], hint=hint)
    if _DAMAGED_OBJECT.search(err):
        name = found[0] if (found := _OBJECT_NAME.search(err)) else "in the repository"
        hint = "`git fsck --full` lists damaged objects; copy their files from another clone, then start again"
        return GitError(f"{message}: object {name} is damaged", location=str(common / "objects"), hint=hint)
    if branch := _BRANCH_IN_THE_WAY.search(err):
        message = f"the branch `{branch[1]}` exists, so git cannot create branches below {branch[1]}/"
        return GitError(message, location=str(common), hint=f"git branch -m {branch[1]} {branch[1]}-old")
    storage = _STORAGE_FAILURE.search(err)
    reason = storage[0] if storage else _write_failure(common)
    if reason is not None:
        hint = f"check space and permissions (`df -h {common}`, `ls -ld {common}`), then start again"
        message = message if reason in message else f"{message} ({reason})"
        return StorageError(message, location=str(common), hint=hint)
    if _PRUNED_OBJECT.search(err):
        hint = "if a `git gc --prune=now` or `git prune` runs in this repository, wait for its end, then start again"
        return PrunedObjectError(message, location=str(common), hint=hint)
    return GitError(message)


def _write_failure(directory: Path) -> str | None:
    """Write a file of the size that a git command may need; return why that failed, None if it did not."""
    try:
        with tempfile.TemporaryFile(dir=directory) as stream:
            stream.write(bytes(_PROBE_BYTES))
            stream.flush()
            os.fsync(stream.fileno())
    except OSError as error:
        return error.strerror or str(error)
    return None
