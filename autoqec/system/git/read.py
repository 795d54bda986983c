"""The methods of `Repo` that only read."""

from __future__ import annotations

import os
import re
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath
from typing import TypeVar

from autoqec.errors import StorageError, UsageError
from autoqec.system.git import command
from autoqec.system.git.object_reader import ARGUMENTS, Header, ObjectReader, ReaderEndedError
from autoqec.system.git.parsing import (
    Commit,
    DiffEntry,
    GitError,
    PrunedObjectError,
    TreeEntry,
    Worktree,
    parse_commit,
    parse_status,
    text,
)
from autoqec.system.git.tree_objects import Tree, differences, files_below, parse_tree_object

Answer = TypeVar("Answer")
MAX_EXTRACT = 64 * 2**20
_PROBE_BYTES = 2**20
_KEPT_TREES, _LARGE_TREE = 256, 1000
_STORAGE_FAILURES = (
    "No space left",
    "Input/output error",
    "Disk quota exceeded",
    "Read-only file system",
    "File too large",
    "Permission denied",
    "insufficient permission",
    "died of signal 25",  # SIGXFSZ: the limit on the size of a file
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


class GitReader(ABC):
    """Methods of `Repo` that only read."""

    def __init__(self, root: Path, common: Path) -> None:
        self.root, self.common = root, common
        arguments = [f"--git-dir={common}", *ARGUMENTS]
        # Without a reference to this object, so that the process ends with it.
        self._trees: dict[str, Tree] = {}
        self._reader = ObjectReader(lambda: command.start(root, arguments, env=command.ENVIRONMENT))

    @abstractmethod
    def _run(
        self, arguments: Sequence[str], *, worktree: Path | None = None, stdin: bytes = b"", lock: int | None = None
    ) -> tuple[int, bytes, str]:
        """Run one git; return exit status, stdout and stderr. `lock` stays open in it."""

    def _git(self, *arguments: str, worktree: Path | None = None, stdin: bytes = b"", lock: int | None = None) -> bytes:
        status, out, err = self._run(arguments, worktree=worktree, stdin=stdin, lock=lock)
        if status != 0:
            raise git_error(arguments, err, self.common)
        return out

    def _line(self, *arguments: str, worktree: Path | None = None, stdin: bytes = b"", lock: int | None = None) -> str:
        return text(self._git(*arguments, worktree=worktree, stdin=stdin, lock=lock)).strip()

    def _admin(self, worktree: Path) -> Path:
        """Return git's own directory of a linked worktree, from git's records alone: its `.git` file is not trusted."""
        path = absolute(worktree)
        for record in self._records(path):
            if record.path == path:
                return record.admin
        raise GitError("is not a worktree of this repository", location=str(worktree), hint="git worktree list")

    def _records(self, path: Path) -> list[Worktree]:
        """Return the record of the worktree at an absolute path; if git named it otherwise, those of the same name.

        To read all records takes time in proportion to their number.
        """
        found = _worktree(self.common / "worktrees" / path.name)
        return [found] if found is not None and found.path == path else self.worktrees(path.name)

    def head_sha(self, worktree: Path | None = None) -> str:
        """Return the commit that is checked out; UsageError before the first one."""
        status, out, _ = self._run(["rev-parse", "--verify", "-q", "HEAD^{commit}"], worktree=worktree)
        if status != 0:
            raise UsageError(
                "the repository has no commit yet", location=str(self.root), hint="git add -A && git commit -m 'Start'"
            )
        return text(out).strip()

    def head_ref(self) -> str | None:
        """Return the short name of the branch that is checked out; None if HEAD is detached."""
        status, out, _ = self._run(["symbolic-ref", "-q", "HEAD"])
        return text(out).strip().removeprefix("refs/heads/") if status == 0 else None

    def rev_parse(self, rev: str) -> str | None:
        """Return the commit that `rev` names, or None."""
        status, out, _ = self._run(["rev-parse", "--verify", "-q", "--end-of-options", f"{rev}^{{commit}}"])
        return text(out).strip() if status == 0 else None

    def refs(self, *prefixes: str) -> dict[str, str]:
        """Return full ref name -> sha for every ref below a prefix (a directory of refs, such as refs/heads/exp)."""
        patterns = [prefix.rstrip("/") for prefix in prefixes]
        out = self._git("for-each-ref", "--format=%(objectname) %(refname)", "--", *patterns)
        pairs = (line.split(" ", 1) for line in text(out).splitlines())
        return {ref: sha for sha, ref in pairs}

    def commit_info(self, sha: str) -> Commit:
        """Return the commit object of `sha`."""
        return parse_commit(sha, self._object(f"{sha}^{{commit}}")[1])

    def objects(self, names: Sequence[str]) -> list[tuple[str, bytes] | None]:
        """Return (sha, bytes) of each named object, `<sha>` or `<sha>:<path>`; None for one that does not exist.

        No name may contain a line break.
        """
        return self._ask(lambda reader: reader.contents(names))

    def sizes(self, names: Sequence[str]) -> list[Header | None]:
        """Return (sha, type, bytes) of each named object, as `objects` takes names; None if it does not exist."""
        return self._ask(lambda reader: reader.headers(names))

    def _ask(self, request: Callable[[ObjectReader], Answer]) -> Answer:
        try:
            return request(self._reader)
        except ReaderEndedError as error:
            raise git_error(ARGUMENTS, str(error), self.common) from error

    def _object(self, name: str) -> tuple[str, bytes]:
        (found,) = self.objects([name])
        if found is None:
            raise git_error(ARGUMENTS, f"fatal: object {name} is missing", self.common)
        return found

    def _blobs(self, oids: Sequence[str]) -> list[bytes]:
        """Return the bytes of blobs."""
        found = self.objects(oids)
        if None in found:
            raise git_error(ARGUMENTS, f"fatal: object {oids[found.index(None)]} is missing", self.common)
        return [each[1] for each in found if each is not None]

    def _tree(self, oid: str) -> Tree:
        """Return a tree. Objects never change, so those that were read last are kept: rounds share most of them."""
        tree = self._trees.get(oid)
        if tree is None:
            tree = parse_tree_object(self._object(oid)[1])
            if len(self._trees) >= _KEPT_TREES:
                self._trees.clear()
            if len(tree) <= _LARGE_TREE:
                self._trees[oid] = tree
        return tree

    def ls_tree(self, sha: str, path: str = "") -> list[TreeEntry]:
        """Return every file of a commit's tree (below `path`), symbolic links and submodules included."""
        found = [*files_below(self._tree, self._object(f"{sha}^{{tree}}")[0], path)]
        blobs = [entry.oid for entry in found if entry.kind == "blob"]
        bytes_of = {header[0]: header[2] for header in self.sizes(blobs) if header is not None}
        return [replace(entry, size=bytes_of.get(entry.oid)) for entry in found]

    def show_file(self, sha: str, path: str, *, max_bytes: int = MAX_EXTRACT) -> bytes | None:
        """Return the bytes of a regular file of a commit; None if it does not exist or is of another kind."""
        for entry in self.ls_tree(sha, path):
            if entry.path == path and entry.regular:
                if (entry.size or 0) > max_bytes:
                    raise GitError(f"{path} is larger than {max_bytes} bytes", location=sha)
                return self._object(entry.oid)[1]
        return None

    def diff_entries(self, base: str, tip: str) -> list[DiffEntry]:
        """Return the paths that differ between two commits, with their modes; attributes have no effect."""
        trees = [self._object(f"{sha}^{{tree}}")[0] for sha in (base, tip)]
        return [*differences(self._tree, *trees)]

    def diff_text(self, base: str, tip: str, paths: Sequence[str] = ()) -> str:
        """Return the unified diff of two commits."""
        plain = ["--no-ext-diff", "--no-textconv", "--no-color", "--no-renames"]
        out = self._git("diff-tree", "-p", *plain, "--end-of-options", base, tip, "--", *paths)
        return out.decode("utf-8", "replace")

    def dirty_paths(self, pathspec: str | Sequence[str] = (), *, worktree: Path | None = None) -> list[str]:
        """Return paths that differ from HEAD or are untracked, without ignored files and insides of submodules."""
        paths = [pathspec] if isinstance(pathspec, str) else [*pathspec]
        flags = ["--porcelain=v1", "-z", "--untracked-files=all", "--ignore-submodules=all", "--no-renames"]
        return parse_status(self._git("status", *flags, "--", *paths, worktree=worktree))

    def config(self, name: str) -> str | None:
        """Return the value of a key in the repository's configuration (no other is read); None if it is not set."""
        status, out, _ = self._run(["config", "--get", name])
        return text(out).removesuffix("\n") if status == 0 else None

    def filter_commands(self, driver: str) -> list[str]:
        """Commands of a filter driver in the repository's own configuration; [] if it has none."""
        commands = [self.config(f"filter.{driver}.{name}") for name in ("process", "clean", "smudge")]
        return [command for command in commands if command]

    def tracked_paths(self) -> list[str]:
        """Return every path in the index."""
        return [path for path in text(self._git("ls-files", "-z")).split("\0") if path]

    def attributes(self, names: Sequence[str], paths: Sequence[str]) -> list[tuple[str, str, str]]:
        """(path, attribute, value) for each of `names` that has a value at one of `paths`."""
        stdin = "".join(f"{path}\0" for path in paths).encode("utf-8", "surrogateescape")
        fields = text(self._git("check-attr", "--stdin", "-z", *names, stdin=stdin)).split("\0")
        found = zip(fields[0:-1:3], fields[1::3], fields[2::3], strict=True)
        return [triple for triple in found if triple[2] not in ("unspecified", "unset", "set")]

    def worktrees(self, name: str | None = None) -> list[Worktree]:
        """Return the linked worktrees of git's records, also those without a directory; damaged ones are left out.

        Args:
            name: Only those whose directory has this name.
        """
        records = (_worktree(admin, name) for admin in sorted(self.common.glob("worktrees/*")))
        return [found for found in records if found is not None]

    def checked_out_branches(self, *, except_worktrees: Iterable[Path] = ()) -> set[str]:
        """Short names of the branches that HEAD of the main worktree, or of a linked one, stands for.

        except_worktrees: paths of linked worktrees that do not count; a record of the same name whose place is gone
        is taken for one of them, since the repository was moved.
        """
        worktrees = self.worktrees()
        skipped = {absolute(path) for path in except_worktrees} if worktrees else set()  # thousands, mostly of none
        names = {path.name for path in skipped}
        linked = {
            found.branch
            for found in worktrees
            if found.path not in skipped and (found.path.name not in names or found.path.exists())
        }
        return {branch for branch in (self.head_ref(), *linked) if branch is not None}

    def extract(self, sha: str, subdir: str, dest: Path, *, max_bytes: int = MAX_EXTRACT) -> list[str]:
        """Write the regular files below `subdir` of a commit into `dest`, as committed; return their relative paths.

        Attributes, filters and executable bits have no effect.

        Raises:
            GitError: There is an entry that is not a regular file, or more than `max_bytes`.
        """
        entries = self.ls_tree(sha, subdir)
        top = PurePosixPath(subdir)
        for entry in entries:
            if not entry.regular:
                raise GitError(f"{entry.path} is not a regular file (mode {entry.mode})", location=sha)
        if sum(entry.size or 0 for entry in entries) > max_bytes:
            raise GitError(f"{subdir} is larger than {max_bytes} bytes", location=sha)
        dest.mkdir(parents=True, exist_ok=True)
        if any(dest.iterdir()):
            raise GitError("the directory to extract to is not empty", location=str(dest))
        names = []
        for entry, found in zip(entries, self.objects([entry.oid for entry in entries]), strict=True):
            name = PurePosixPath(entry.path).relative_to(top)
            if any(part in ("", ".", "..", ".git") for part in name.parts):
                raise GitError(f"{entry.path!r} is not a valid file name", location=sha)
            target = dest / name
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(found[1] if found else b"")
            names.append(str(name))
        return names


def absolute(path: Path) -> Path:
    """Return the absolute path with the parent's links resolved; the last component itself is not followed."""
    return Path(os.path.realpath(path.parent)) / path.name


def _worktree(admin: Path, name: str | None = None) -> Worktree | None:
    """Read git's record of a linked worktree; None if it is damaged or missing, or of a directory of another name."""
    gitdir_path = _read(admin / "gitdir")
    if os.path.basename(gitdir_path) != ".git" or name not in (None, Path(gitdir_path).parent.name):
        return None
    head = _read(admin / "HEAD")
    branch = head.removeprefix("ref: refs/heads/") if head.startswith("ref: refs/heads/") else None
    return Worktree(absolute(Path(os.path.join(admin, gitdir_path)).parent), branch, admin)


def _read(path: Path) -> str:
    """Return the text of a small file of git; "" if it is missing, or holds NULs after a power cut."""
    try:
        text = path.read_text(errors="replace").strip()
    except OSError:
        return ""
    return "" if "\0" in text else text


def error_reason(err: str, default: str) -> str:
    """Return the line of git's stderr that states the reason; `default` if it is empty."""
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    fatal = [line for line in lines if line.startswith(("fatal:", "error:"))] or lines
    return fatal[0].removeprefix("fatal: ").removeprefix("error: ") if fatal else default


def git_error(arguments: Sequence[str], err: str, common: Path | None = None) -> GitError | StorageError:
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
        location = str(common / "objects") if common is not None else None
        hint = "`git fsck --full` lists damaged objects; copy their files from another clone, then start again"
        return GitError(f"{message}: object {name} is damaged", location=location, hint=hint)
    if branch := _BRANCH_IN_THE_WAY.search(err):
        message = f"the branch `{branch[1]}` exists, so git cannot create branches below {branch[1]}/"
        location = str(common) if common is not None else None
        return GitError(message, location=location, hint=f"git branch -m {branch[1]} {branch[1]}-old")
    reason = next((words for words in _STORAGE_FAILURES if words in err), None)
    if reason is None and common is not None:
        reason = _write_failure(common)
    location = str(common) if common is not None else None
    if reason is None and _PRUNED_OBJECT.search(err):
        hint = "if a `git gc --prune=now` or `git prune` runs in this repository, wait for its end, then start again"
        return PrunedObjectError(message, location=location, hint=hint)
    if reason is None:
        return GitError(message)
    hint = f"check space and permissions (`df -h {location or '.'}`, `ls -ld {location or '.'}`), then start again"
    return StorageError(message if reason in message else f"{message} ({reason})", location=location, hint=hint)


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
