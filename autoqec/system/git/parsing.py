"""Values that git's plumbing prints, and their parsers; no process is started here."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

Header = tuple[str, str, int]  # object name, type, bytes

_TRAILER = re.compile(r"^([A-Za-z][A-Za-z0-9-]*): (.*)$")


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
    """One file of a tree, path from its top, size in bytes (of a submodule 0).

    mode 100644 and 100755: regular, 120000: symbolic link, 160000: submodule.
    """

    mode: str
    oid: str
    size: int
    path: str

    @property
    def regular(self) -> bool:
        """Whether the entry is a regular file."""
        return self.mode in ("100644", "100755")


@dataclass(frozen=True)
class DiffEntry:
    """One path that differs between two trees. status: A, D, M or T (the kind of thing changed); no renames."""

    status: str
    new_mode: str
    path: str


@dataclass(frozen=True)
class Worktree:
    """A linked worktree as git's own records have it; `admin` is git's directory of it."""

    path: Path
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


def parse_objects(data: bytes, *, has_content: bool) -> list[tuple[Header, bytes] | None]:
    """Parse what `cat-file --batch` or `--batch-check` prints; None for an object that does not exist."""
    found: list[tuple[Header, bytes] | None] = []
    at = 0
    while at < len(data):
        end = data.index(b"\n", at)
        fields, at = text(data[at:end]).split(" "), end + 1
        if len(fields) != 3 or not fields[2].isdecimal():  # `NAME missing`, `NAME ambiguous`
            found.append(None)
            continue
        size = int(fields[2])
        found.append(((fields[0], fields[1], size), data[at : at + size] if has_content else b""))
        at += size + 1 if has_content else 0
    return found


def parse_tree(data: bytes) -> list[TreeEntry]:
    """Parse what `ls-tree -r -z --long` prints."""
    entries = []
    for line in text(data).split("\0")[:-1]:
        fields, _, path = line.partition("\t")
        mode, _, oid, size = fields.split()
        entries.append(TreeEntry(mode, oid, int(size) if size.isdecimal() else 0, path))
    return entries


def parse_diff(data: bytes) -> list[DiffEntry]:
    """Parse what `diff-tree -r -z --raw --no-abbrev` prints."""
    fields = text(data).split("\0")
    changes = ((line.split(" "), path) for line, path in zip(fields[0:-1:2], fields[1::2], strict=True))
    return [DiffEntry(status, new_mode, path) for (_, new_mode, _, _, status), path in changes]


def format_message(message: str, trailers: dict[str, str] | None) -> str:
    """Return a commit message whose last paragraph is the trailers; neither can break out of its place."""
    body = message.replace("\0", "").replace("\r", "").strip() or "(no message)"
    lines = [f"{key}: {' '.join(value.replace(chr(0), '').split())}" for key, value in (trailers or {}).items()]
    return body + "\n" + ("\n" + "\n".join(lines) + "\n" if lines else "")
