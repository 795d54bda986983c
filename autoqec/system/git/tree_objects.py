"""Tree objects: their format, the files below one, and the paths that differ between two."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from autoqec.system.git.parsing import DiffEntry, GitError, TreeEntry, text

Entry = tuple[str, str]  # mode as in a tree object, object id
Tree = Mapping[str, Entry]  # by name
ReadTree = Callable[[str], Tree]  # by object id

TREE, SUBMODULE = "40000", "160000"
_ABSENT: Entry = ("000000", "0" * 40)


def raw_entries(data: bytes) -> Iterator[tuple[bytes, Entry]]:
    """Yield name and entry of each line of a tree object, in its order. Raises GitError if it is damaged."""
    at = 0
    while at < len(data):
        end = data.find(b"\0", at)
        mode, _, name = data[at:end].partition(b" ")
        oid = data[end + 1 : end + 21]
        if end < 0 or len(oid) != 20:
            raise GitError("a directory of a commit is damaged")
        yield name, (mode.decode("ascii", "replace").lstrip("0"), oid.hex())
        at = end + 21


def parse_tree_object(data: bytes) -> dict[str, Entry]:
    """Return the entries of a tree object. Raises GitError if it is damaged."""
    return {text(name): entry for name, entry in raw_entries(data)}


def format_tree_object(entries: Tree) -> bytes:
    """Return the tree object of the entries, which git sorts as if the names of directories ended in `/`."""
    named = [(name.encode("utf-8", "surrogateescape"), mode, oid) for name, (mode, oid) in entries.items()]
    named.sort(key=lambda entry: entry[0] + b"/" if entry[1] == TREE else entry[0])
    return b"".join(b"%s %s\0%s" % (mode.encode(), name, bytes.fromhex(oid)) for name, mode, oid in named)


def files_below(read: ReadTree, root: str, path: str) -> Iterator[TreeEntry]:
    """Yield the files of the tree `root` below `path`, a file or a directory, without their sizes."""
    entry: Entry = (TREE, root)
    for name in path.split("/") if path else ():
        found = read(entry[1]).get(name) if entry[0] == TREE else None
        if found is None:
            return
        entry = found
    yield from _files(read, entry, path)


def _files(read: ReadTree, entry: Entry, path: str) -> Iterator[TreeEntry]:
    mode, oid = entry
    if mode == TREE:
        for name, below in read(oid).items():
            yield from _files(read, below, f"{path}/{name}" if path else name)
    else:
        yield TreeEntry(mode, "commit" if mode == SUBMODULE else "blob", oid, None, path)


def differences(read: ReadTree, base: str, tip: str, above: str = "") -> Iterator[DiffEntry]:
    """Yield the paths that differ between two trees; "" stands for an empty one."""
    old, new = (read(oid) if oid else {} for oid in (base, tip))
    for name in sorted({*old, *new}):
        before, after, path = old.get(name, _ABSENT), new.get(name, _ABSENT), above + name
        if before == after:
            continue
        old_file, new_file = (_ABSENT if entry[0] == TREE else entry for entry in (before, after))
        if old_file != new_file:
            yield _difference(old_file, new_file, path)
        old_tree, new_tree = (entry[1] if entry[0] == TREE else "" for entry in (before, after))
        if old_tree != new_tree:
            yield from differences(read, old_tree, new_tree, f"{path}/")


def _difference(before: Entry, after: Entry, path: str) -> DiffEntry:
    if before == _ABSENT or after == _ABSENT:
        status = "A" if before == _ABSENT else "D"
    else:
        status = "M" if before[0][:2] == after[0][:2] else "T"  # the first digits tell the kind
    return DiffEntry(status, before[0], after[0], before[1], after[1], path)
