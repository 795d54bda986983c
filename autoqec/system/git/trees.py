"""Limits on the trees of foreign commits, checked before git lists or checks out any of them.

A few hundred bytes can describe 2**40 files, or half a megabyte half a gigabyte of zeros.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from autoqec.system.git.errors import GitError
from autoqec.system.git.reader import GitReader

Entry = tuple[str, str]  # mode, object name

MAX_FILES, MAX_DEPTH, MAX_OBJECTS = 1_000_000, 128, 2_000_000
MAX_TREES = 2**28  # bytes of all tree objects together
_RATIO, _ALWAYS, _NEVER = 100, 2**28, 8 * 2**30


def largest_checkout(bundle: Path) -> int:
    """Return the bytes that one tree out of a bundle may check out to."""
    return min(max(_ALWAYS, _RATIO * bundle.stat().st_size), _NEVER)


def check_trees(repo: GitReader, commits: Sequence[str], *, max_bytes: int) -> None:
    """Raise GitError for a commit that is missing or whose tree exceeds a limit or holds an odd name."""
    roots = []
    for commit, found in zip(commits, repo.sizes([f"{sha}^{{tree}}" for sha in commits]), strict=True):
        if found is None:
            raise GitError(f"commit {commit} is missing")
        roots.append(found[0])
    trees = _read_trees(repo, roots)
    blobs = sorted({oid for entries in trees.values() for mode, oid in entries if mode not in ("40000", "160000")})
    sizes: dict[str, int] = {}
    for oid, found in zip(blobs, repo.sizes(blobs), strict=True):
        if found is None or found[1] != "blob":
            raise GitError(f"object {oid} is missing")
        sizes[oid] = found[2]
    totals: dict[str, tuple[int, int, int]] = {}
    for root in roots:
        files, size, _ = _total(root, trees, sizes, totals, MAX_DEPTH)
        if files > MAX_FILES or size > max_bytes:
            raise GitError(f"a commit holds {files} files of {size} bytes; {MAX_FILES} and {max_bytes} are allowed")


def _read_trees(repo: GitReader, roots: Sequence[str]) -> dict[str, list[Entry]]:
    """Return every tree below `roots`, each read once."""
    trees: dict[str, list[Entry]] = {}
    level, read, objects = sorted(set(roots)), 0, 0
    while level:
        found = repo.sizes(level)
        if any(entry is None or entry[1] != "tree" for entry in found):
            raise GitError("a directory of a commit is missing")
        read += sum(entry[2] for entry in found if entry)
        if read > MAX_TREES:
            raise GitError(f"its directories hold more than {MAX_TREES} bytes")
        for oid, data in zip(level, repo.objects(level), strict=True):
            trees[oid] = list(_entries(data[1] if data else b""))
            objects += len(trees[oid])
        if objects > MAX_OBJECTS:
            raise GitError(f"its directories list more than {MAX_OBJECTS} entries")
        below = {oid for tree in level for mode, oid in trees[tree] if mode == "40000"}
        level = sorted(below - trees.keys())
    return trees


def _entries(data: bytes) -> Iterator[Entry]:
    """Yield the lines of a tree object."""
    at = 0
    while at < len(data):
        end = data.find(b"\0", at)
        mode, _, name = data[at:end].partition(b" ")
        oid = data[end + 1 : end + 21]
        if end < 0 or len(oid) != 20:
            raise GitError("a directory of a commit is damaged")
        if name in (b"", b".", b"..") or b"/" in name or name.lower() == b".git":
            raise GitError(f"a commit holds a file of the name {name.decode('utf-8', 'replace')!r}")
        yield mode.decode("ascii", "replace").lstrip("0"), oid.hex()
        at = end + 21


def _total(
    tree: str,
    trees: dict[str, list[Entry]],
    sizes: dict[str, int],
    totals: dict[str, tuple[int, int, int]],
    depth: int,
) -> tuple[int, int, int]:
    """Files, bytes and height of a tree, each tree added up once."""
    if tree not in totals:
        if depth == 0:
            raise GitError(f"directories of a commit are nested deeper than {MAX_DEPTH}")
        files = size = height = 0
        for mode, oid in trees[tree]:
            more = _total(oid, trees, sizes, totals, depth - 1) if mode == "40000" else (1, sizes.get(oid, 0), 0)
            files, size, height = files + more[0], size + more[1], max(height, more[2])
        totals[tree] = files, size, height + 1
    if totals[tree][2] > depth:
        raise GitError(f"directories of a commit are nested deeper than {MAX_DEPTH}")
    return totals[tree]
