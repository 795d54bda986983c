"""The methods of `Repo` that write worktrees, commits and merges, all under one lock."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path, PurePosixPath

from autoqec.errors import AutoqecError, StorageError
from autoqec.system.git import checkout, new_worktree
from autoqec.system.git.new_objects import NewObjects, NotPlainError, add_commit, read_plain_files, require_plain
from autoqec.system.git.parsing import (
    GitError,
    MergeConflictError,
    PrunedObjectError,
    RefUpdate,
    format_message,
    text,
)
from autoqec.system.git.read import absolute, git_error
from autoqec.system.git.tree_objects import files_below
from autoqec.system.git.write_refs import GitRefs


class GitWriter(GitRefs):
    """Methods of `Repo` that write worktrees and commits."""

    # ---- worktrees

    def worktree_add(self, path: Path, branch: str, base: str | None) -> None:
        """Check `branch` out at `path`; created at commit `base`, or with None an existing branch."""
        path = absolute(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with self._lock.hold() as lock:
            self._add_worktree(path, branch, base, lock)

    def _add_worktree(self, path: Path, branch: str, base: str | None, lock: int) -> None:
        if base is not None:
            self._update_refs([RefUpdate(f"refs/heads/{branch}", base, None)], lock)
        if base is not None and new_worktree.is_supported(self.common, path):
            self._check_out_new(path, branch, base, lock)
        else:
            self._git("worktree", "add", "-q", "--", str(path), branch, lock=lock)

    def worktree_add_commit(
        self,
        path: Path,
        branch: str,
        base: str,
        files: Mapping[str, bytes],
        message: str,
        trailers: Mapping[str, str] | None = None,
    ) -> str | None:
        """Do what `worktree_add`, writing files and `commit` do, without the steps in between.

        Args:
            path: Place of the worktree.
            branch: Its new branch.
            base: Commit on top of which the files are committed.
            files: Content by path from the worktree's top.
            message: Message of the commit.
            trailers: Trailers of the message.

        Returns:
            The commit; None if git has to decide what is committed, and nothing was done.
        """
        path, objects = absolute(path), NewObjects()
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            for name, data in files.items():
                require_plain(name, data)
            head = base, self.commit_info(base).tree
            sha = add_commit(objects, self._tree, head, files, format_message(message, dict(trailers or {})))
        except NotPlainError:
            return None
        with self._lock.hold() as lock:
            objects.write(self.common / "objects")
            try:
                self._add_worktree(path, branch, sha, lock)
            except PrunedObjectError:
                objects.write(self.common / "objects")
                self._add_worktree(path, branch, sha, lock)
            if not objects.are_loose(self.common / "objects"):  # packed meanwhile, or removed by a prune
                objects.write(self.common / "objects")
        return sha

    def _check_out_new(self, path: Path, branch: str, sha: str, lock: int) -> None:
        """Do what `git worktree add` does with three processes; if it fails, nothing is left."""
        admin = self.common / "worktrees" / path.name
        try:
            new_worktree.register(self.common, path, branch)
            files = files_below(self._tree, self._object(f"{sha}^{{tree}}")[0], "")
            entries = [*islice(files, checkout.MAX_FILES + 1)]
            if checkout.is_plain(self.common, entries):
                checkout.write(path, admin, entries, self._blobs([entry.oid for entry in entries]))
            else:
                self._git("read-tree", "--reset", "-u", "--end-of-options", sha, worktree=path, lock=lock)
            new_worktree.complete(admin)
        except AutoqecError:
            for left in (path, admin):
                with suppress(StorageError):
                    _rmtree(left)
            raise

    def worktree_repair(self, directory: Path) -> None:
        """Let git's records follow the worktrees in `directory` after the repository was moved."""
        records = {found.admin.name: found.path for found in self.worktrees()}
        moved = [
            path
            for path in sorted(absolute(directory).glob("*"))
            if path.name in records and records[path.name] != path and not records[path.name].exists()
        ]
        if moved:
            # git repairs all but those whose creation or removal was interrupted
            with self._lock.hold() as lock, suppress(GitError):
                self._git("worktree", "repair", *map(str, moved), lock=lock)

    def worktree_remove(self, path: Path) -> None:
        """Remove the checkout and git's record of it; harmless if either is gone. The branch stays.

        A record of the same name whose place is gone counts as this checkout's: the repository was moved.
        """
        path = absolute(path)
        with self._lock.hold(starts_git=False):
            for found in self._records(path):
                if found.path == path or (found.path.name == path.name and not found.path.exists()):
                    _rmtree(path)
                    _rmtree(found.admin)

    def worktree_prune(
        self, under: Path | None = None, *, prefixes: Sequence[str] = ("exp-", "quarantine-")
    ) -> list[Path]:
        """Remove records of worktrees below `under` (default: `.worktrees`) whose directory is gone.

        Also records that a killed `worktree add` left without a path, recognised by the prefix of their name.
        """
        under = absolute(under or self.root / ".worktrees")
        removed = []
        with self._lock.hold(starts_git=False):
            paths_by_admin = {entry.admin: entry.path for entry in self.worktrees()}
            for admin in sorted(self.common.glob("worktrees/*")):
                path = paths_by_admin.get(admin)
                torn = path is None and admin.name.startswith(tuple(prefixes))
                if torn or (path is not None and path.is_relative_to(under) and not path.exists()):
                    _rmtree(admin)
                    removed.append(admin)
        return removed

    def uncommitted_patch(self, worktree: Path) -> bytes:
        """Return what a worktree holds beyond HEAD as a binary patch, new files included; b"" for nothing."""
        with self._lock.hold() as lock:
            self._git("add", "-A", "-f", "--", ".", worktree=worktree, lock=lock)
            diff_options = ["--cached", "--binary", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames"]
            return self._git("diff-index", "-p", *diff_options, "HEAD", "--", worktree=worktree)

    # ---- refs and commits

    def commit(
        self,
        worktree: Path,
        paths: Sequence[str],
        message: str,
        trailers: Mapping[str, str] | None = None,
        *,
        head: str | None = None,
        refresh_index: bool = True,
    ) -> str:
        """Commit exactly `paths` (files or directories from the worktree's top, ignored ones too); return the sha.

        No hook runs and the earlier index is not used: other files of the worktree stay out. The commit may be empty.
        If a prune of another process removes its objects before the branch names them, they are written once more.

        Args:
            worktree: The worktree, on whose branch the commit is made.
            paths: What is committed.
            message: Message of the commit.
            trailers: Trailers of the message.
            head: Where the branch probably is, which saves a call of git; it may be elsewhere.
            refresh_index: Whether the index has to be that of the commit; False if the worktree is removed next.
        """
        for path in paths:
            if path.startswith("/") or {"..", ".git"} & set(PurePosixPath(path).parts):
                raise GitError(f"{path!r} is not a path inside a worktree", location=str(worktree))
        with self._lock.hold() as lock:
            tip = head or self.head_sha(worktree)
            try:
                return self._commit(worktree, paths, tip, message, trailers, lock, refresh_index)
            except GitError as error:  # raised before the branch was moved
                if not isinstance(error, PrunedObjectError) and tip == self.head_sha(worktree):
                    raise
                return self._commit(worktree, paths, self.head_sha(worktree), message, trailers, lock, refresh_index)

    def _commit(
        self,
        worktree: Path,
        paths: Sequence[str],
        head: str,
        message: str,
        trailers: Mapping[str, str] | None,
        lock: int,
        refresh_index: bool,
    ) -> str:
        try:
            files, text = read_plain_files(worktree, paths), format_message(message, dict(trailers or {}))
            return self._commit_files(worktree, files, head, text, lock, refresh_index)
        except NotPlainError:
            pass
        self._git("read-tree", "--end-of-options", head, worktree=worktree, lock=lock)
        literal = [f":(top,literal){PurePosixPath(path)}" for path in paths]
        self._git("add", "-A", "-f", "--", *literal, worktree=worktree, lock=lock)
        tree = self._line("write-tree", worktree=worktree, lock=lock)
        return self._advance(worktree, tree, [head], message, trailers, lock)

    def _commit_files(
        self, worktree: Path, files: Mapping[str, bytes], head: str, message: str, lock: int, refresh_index: bool
    ) -> str:
        """Commit files with the given content on top of `head`, where the worktree's branch must still be.

        Raises:
            NotPlainError: git has to decide what is committed; nothing was written.
        """
        objects = NewObjects()
        sha = add_commit(objects, self._tree, (head, self.commit_info(head).tree), files, message)
        objects.write(self.common / "objects")
        if refresh_index:
            self._git("read-tree", "--reset", "--end-of-options", sha, worktree=worktree, lock=lock)
        self._move_head(worktree, sha, head, lock)
        if not objects.are_loose(self.common / "objects"):  # packed meanwhile, or removed by a prune
            objects.write(self.common / "objects")
        return sha

    def _move_head(self, worktree: Path, sha: str, head: str, lock: int) -> None:
        """Move the worktree's branch from `head` to `sha`."""
        admin = self._admin(worktree)
        name = "HEAD" if admin == self.common else f"worktrees/{admin.name}/HEAD"
        self._write_refs([RefUpdate(name, sha, head)], lock)

    def refresh_index(self, worktree: Path, sha: str) -> None:
        """Make the index of a worktree that of its commit; files stay as they are."""
        with self._lock.hold() as lock:
            self._git("read-tree", "--reset", "--end-of-options", sha, worktree=worktree, lock=lock)

    def commit_all(self, message: str) -> str:
        """Commit everything in the main work tree that is not ignored; return the sha."""
        with self._lock.hold() as lock:
            self._git("add", "-A", "--", ".", lock=lock)
            self._git("commit", "-q", "--no-verify", "--allow-empty", "-F", "-", stdin=message.encode(), lock=lock)
        return self.head_sha()

    def _advance(
        self,
        worktree: Path,
        tree: str,
        parents: Sequence[str],
        message: str,
        trailers: Mapping[str, str] | None,
        lock: int,
    ) -> str:
        """Commit `tree` on top of parents[0], where the worktree's branch must still be."""
        sha = self._commit_tree(tree, parents, format_message(message, dict(trailers or {})))
        self._move_head(worktree, sha, parents[0], lock)
        return sha

    def _commit_tree(self, tree: str, parents: Sequence[str], message: str) -> str:
        parent_options = [item for parent in parents for item in ("-p", parent)]
        return self._line(
            "commit-tree",
            *parent_options,
            "-F",
            "-",
            "--end-of-options",
            tree,
            stdin=message.encode("utf-8", "replace"),
        )

    def merge_tree(self, tips: Sequence[str]) -> str:
        """Merge the commits in the order given; return the tree. Changes no ref or file. Raises MergeConflictError."""
        at, merged = tips[0], self.commit_info(tips[0]).tree
        for other in tips[1:]:
            arguments = ["merge-tree", "--write-tree", "-z", "--name-only", "--no-messages"]
            arguments += ["--end-of-options", at, other]
            status, out, err = self._run(arguments)
            fields = text(out).split("\0")
            if status == 1 and fields[0]:  # without a tree, a tip is not a commit
                raise MergeConflictError(tuple(sorted(set(filter(None, fields[1:])))))
            if status != 0:
                raise git_error(arguments, err)
            merged = fields[0].strip()
            at = self._commit_tree(merged, [at, other], "merged on the way")
        return merged

    def merge(
        self, worktree: Path, tips: Sequence[str], message: str, trailers: Mapping[str, str] | None = None
    ) -> str:
        """Merge commits into the worktree's branch as one commit with all parents; return its sha.

        Raises:
            MergeConflictError: Branch and worktree are as before.
        """
        with self._lock.hold() as lock:
            head = self.head_sha(worktree)
            tree = self.merge_tree([head, *tips])
            # A commit of whole files leaves entries without the times of their files.
            self._run(["update-index", "-q", "--refresh"], worktree=worktree, lock=lock)
            self._git("read-tree", "-m", "-u", "--end-of-options", head, tree, worktree=worktree, lock=lock)
            return self._advance(worktree, tree, [head, *tips], message, trailers, lock)

    def check_out(self, branch: str, sha: str) -> None:
        """Create `branch` at a commit and check it out in the main work tree; no existing file is replaced."""
        with self._lock.hold() as lock:
            self._update_refs([RefUpdate(f"refs/heads/{branch}", sha, None)], lock)
            self._git("symbolic-ref", "HEAD", f"refs/heads/{branch}", lock=lock)
            tree = self.commit_info(sha).tree
            self._git("read-tree", "-m", "-u", "--end-of-options", tree, lock=lock)


def _rmtree(path: Path) -> None:
    if path.is_symlink():
        path.unlink()
        return
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(
            f"could not be removed: {error.strerror}", location=str(path), hint=f"rm -r {path}"
        ) from error
