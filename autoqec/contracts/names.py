"""Checks of untrusted names that become paths or git refs, and patterns of hashes."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

SHA1 = r"^[0-9a-f]{40}$"
SHA256 = r"^[0-9a-f]{64}$"
NAME = r"^[A-Za-z0-9][A-Za-z0-9_.:+-]{0,99}$"  # of decoders, circuits and models
RUN_ID = r"^[0-9]{8}-[0-9]{6}(-[1-9][0-9]{0,5})?$"
_RUN = RUN_ID.removeprefix("^").removesuffix("$")
# Refs of a run: branches of rounds, also in quarantine, and a pin per attempt.
RUN_REF = (
    rf"^refs/(heads/(exp|quarantine)/{_RUN}/[0-9]{{2,9}}-[a-z0-9-]{{1,200}}|autoqec/pin/{_RUN}/[A-Za-z0-9-]{{1,100}})$"
)
_NOT_IN_REFS = re.compile(r"[\x00-\x20\x7f~^:?*\[\\]|\.\.|@\{")
_MAX_PATH, _MAX_PART, _MAX_DEPTH = 1024, 255, 32


def plain_path(name: str) -> str:
    """Return `name` if it is a relative path that means the same everywhere.

    Raises:
        ValueError: It is absolute, not normalized, too long, contains a control or invisible character, or names
            git's own directory.
    """
    parts = name.split("/")
    if len(parts) > _MAX_DEPTH or len(name.encode()) > _MAX_PATH:
        raise ValueError(f"is a path of more than {_MAX_DEPTH} parts or {_MAX_PATH} bytes")
    for part in parts:
        if part in ("", ".", "..") or not part.isprintable() or "\\" in part or len(part.encode()) > _MAX_PART:
            raise ValueError(f"{name!r} is not a plain relative path")
        if part.casefold() == ".git" or part.casefold().startswith("git~"):
            raise ValueError(f"{name!r} names a git directory")
    return name


def distinct_paths(names: Iterable[str]) -> None:
    """Check that the files of a list can coexist on every file system.

    Raises:
        ValueError: Two names are equal, differ only in case or Unicode form, or one is a directory of the other.
    """
    spelled: dict[str, tuple[str, bool]] = {}
    files: set[str] = set()
    for name in names:
        parts = name.split("/")
        for depth in range(1, len(parts) + 1):
            path, is_file = "/".join(parts[:depth]), depth == len(parts)
            key = unicodedata.normalize("NFKC", path).casefold()
            known = spelled.setdefault(key, (path, is_file))
            if known != (path, is_file) or (is_file and path in files):
                raise ValueError(f"{name!r} collides with {known[0]!r}")
        files.add(name)


def branch_name(name: str) -> str:
    """Return `name` if git accepts it as a branch; see git-check-ref-format(1).

    Raises:
        ValueError: git refuses it, or could take it for an option or a revision.
    """
    parts = name.split("/")
    if (
        name in ("@", "HEAD")
        or name.startswith("-")
        or name.endswith(".")
        or len(name.encode()) > _MAX_PART
        or not name.isprintable()
        or _NOT_IN_REFS.search(name)
        or any(not part or part.startswith(".") or part.endswith(".lock") for part in parts)
    ):
        raise ValueError(f"{name!r} is not a branch name")
    return name
