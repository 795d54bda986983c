"""Values that git's plumbing prints, and their parsers; no process is started here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from autoqec.errors import AutoqecError

_TRAILER = re.compile(r"^([A-Za-z][A-Za-z0-9-]*): (.*)$")


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


@dataclass(frozen=True)
class Commit:
    """A commit object."""

    sha: str
    tree: str
    parents: tuple[str, ...]
    message: str

    @property
    def trailers(self) -> dict[str, str]:
        """`Key: value` lines of the last paragraph, if it holds nothing else; the last value of a key counts."""
        paragraphs = self.message.strip().split("\n\n")
        matches = [_TRAILER.match(line) for line in paragraphs[-1].splitlines()] if len(paragraphs) > 1 else []
        entries = [match for match in matches if match]
        return {match[1]: match[2] for match in entries} if len(entries) == len(matches) else {}


@dataclass(frozen=True)
class TreeEntry:
    """One file of a tree, path from its top. mode 100644 and 100755: regular, 120000: symlink, 160000: submodule."""

    mode: str
    kind: str
    oid: str
    size: int | None
    path: str

    @property
    def regular(self) -> bool:
        """Whether the entry is a regular file."""
        return self.mode in ("100644", "100755")


@dataclass(frozen=True)
class DiffEntry:
    """One path that differs between two trees. status: A, D, M or T (the kind of thing changed); no renames."""

    status: str
    old_mode: str
    new_mode: str
    old_oid: str
    new_oid: str
    path: str


@dataclass(frozen=True)
class Worktree:
    """A linked worktree as git's own records have it; `branch` None: detached or unreadable."""

    path: Path
    branch: str | None
    admin: Path


@dataclass(frozen=True)
class RefUpdate:
    """One line of a ref transaction; full ref names. old None: must not exist. new None: delete."""

    ref: str
    new: str | None
    old: str | None


def text(data: bytes) -> str:
    """Decode git's output; bytes that are not UTF-8 become surrogates."""
    return data.decode("utf-8", "surrogateescape")


def parse_commit(sha: str, data: bytes) -> Commit:
    """Parse the content of a commit object."""
    head, _, message = data.decode("utf-8", "replace").partition("\n\n")
    fields = [line.partition(" ") for line in head.splitlines() if not line.startswith(" ")]
    tree = next(value for key, _, value in fields if key == "tree")
    return Commit(sha, tree, tuple(value for key, _, value in fields if key == "parent"), message)


def parse_status(data: bytes) -> list[str]:
    """Return the paths of `status --porcelain=v1 -z`; both paths of a rename."""
    fields = iter(text(field) for field in data.split(b"\0") if field)
    entries = []
    for field in fields:
        entries.append(field[3:])
        if field[0] in "RC":
            entries.append(next(fields))
    return sorted(set(entries))


def format_message(message: str, trailers: dict[str, str] | None) -> str:
    """Return a commit message whose last paragraph is the trailers; neither can break out of its place."""
    body = message.replace("\0", "").replace("\r", "").strip() or "(no message)"
    lines = [f"{key}: {' '.join(value.replace(chr(0), '').split())}" for key, value in (trailers or {}).items()]
    return body + "\n" + ("\n" + "\n".join(lines) + "\n" if lines else "")
