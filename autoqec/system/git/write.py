"""The methods of `Repo` that write: worktrees, refs, commits and merges, all under one lock."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from autoqec.errors import AutoqecError, StorageError
from autoqec.system.git import new_worktree
from autoqec.system.git.lock import repository_lock
from autoqec.system.git.new_objects import NewObjects, NotPlainError, add_commit, read_plain_files
from autoqec.system.git.parsing import (
    GitError,
    MergeConflictError,
    PrunedObjectError,
    RefUpdate,
    format_message,
    text,
)
from autoqec.system.git.read import GitReader, absolute, git_error
from autoqec.system.git.trees import check_trees, largest_checkout


class GitWriter(GitReader):
    """Methods of `Repo` that write."""

    # ---- worktrees

    def repair(self) -> None:
        """Remove the lock files that a dead writer of this program left; every other call that writes does so too."""
        with repository_lock(self.common):
            pass

    def worktree_add(self, path: Path, branch: str, base: str | None) -> None:
        """Check `branch` out at `path`; created at commit `base`, or with None an existing branch."""
        path = absolute(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with repository_lock(self.common) as lock:
            if base is not None:
                self._update_refs([RefUpdate(f"refs/heads/{branch}", base, None)], lock)
            if base is not None and new_worktree.is_supported(self.common, path):
                self._check_out_new(path, branch, base, lock)
            else:
                self._git("worktree", "add", "-q", "--", str(path), branch, lock=lock)

    def _check_out_new(self, path: Path, branch: str, sha: str, lock: int) -> None:
        """Do what `git worktree add` does, with one process instead of three; if it fails, nothing is left."""
        admin = self.common / "worktrees" / path.name
        try:
            new_worktree.register(self.common, path, branch)
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
            with repository_lock(self.common) as lock, suppress(GitError):
                self._git("worktree", "repair", *map(str, moved), lock=lock)

    def worktree_remove(self, path: Path) -> None:
        """Remove the checkout and git's record of it; harmless if either is gone. The branch stays.

        A record of the same name whose place is gone counts as this checkout's: the repository was moved.
        """
        path = absolute(path)
        with repository_lock(self.common, starts_git=False):
            for found in self.worktrees(path.name):
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
        with repository_lock(self.common, starts_git=False):
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
        with repository_lock(self.common) as lock:
            self._git("add", "-A", "-f", "--", ".", worktree=worktree, lock=lock)
            diff_options = ["--cached", "--binary", "--no-ext-diff", "--no-textconv", "--no-color", "--no-renames"]
            return self._git("diff-index", "-p", *diff_options, "HEAD", "--", worktree=worktree)

    # ---- refs and commits

    def update_refs(self, updates: Sequence[RefUpdate]) -> None:
        """Update all refs or none. A rename is one transaction: delete the old name, create the new one."""
        with repository_lock(self.common) as lock:
            self._update_refs(updates, lock)

    def _update_refs(self, updates: Sequence[RefUpdate], lock: int) -> None:
        changed = {update.ref.removeprefix("refs/heads/") for update in updates if update.old is not None}
        if changed and (in_use := sorted(changed & self.checked_out_branches())):
            hint = "check out another branch there (`git worktree list`), then try again"
            raise GitError(f"branch {in_use[0]} is checked out, so it is neither moved nor deleted", hint=hint)
        lines = ["start"]
        for update in updates:
            top, *parts = update.ref.split("/")
            if top != "refs" or any(part.startswith("-") for part in parts):
                raise GitError(f"{update.ref!r} is not a name for a ref")
            if update.new is None:
                lines.append(f"delete {update.ref}\0{update.old or ''}")
            elif update.old is None:
                lines.append(f"create {update.ref}\0{update.new}")
            else:
                lines.append(f"update {update.ref}\0{update.new}\0{update.old}")
        stdin = "".join(f"{line}\0" for line in [*lines, "prepare", "commit"]).encode()
        self._git("update-ref", "--create-reflog", "-z", "--stdin", stdin=stdin, lock=lock)

    def commit(
        self,
        worktree: Path,
        paths: Sequence[str],
        message: str,
        trailers: Mapping[str, str] | None = None,
        *,
        head: str | None = None,
        is_fresh: bool = False,
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
            is_fresh: Whether `head` was checked out just now, so that the index is that of `head`.
        """
        for path in paths:
            if path.startswith("/") or {"..", ".git"} & set(PurePosixPath(path).parts):
                raise GitError(f"{path!r} is not a path inside a worktree", location=str(worktree))
        with repository_lock(self.common) as lock:
            tip = head or self.head_sha(worktree)
            try:
                return self._commit(worktree, paths, tip, message, trailers, lock, read_index=not is_fresh)
            except GitError as error:  # raised before the branch was moved
                if not isinstance(error, PrunedObjectError) and tip == self.head_sha(worktree):
                    raise
                return self._commit(worktree, paths, self.head_sha(worktree), message, trailers, lock)

    def _commit(
        self,
        worktree: Path,
        paths: Sequence[str],
        head: str,
        message: str,
        trailers: Mapping[str, str] | None,
        lock: int,
        *,
        read_index: bool = True,
    ) -> str:
        try:
            files = read_plain_files(worktree, paths)
            return self._commit_files(worktree, files, head, format_message(message, dict(trailers or {})), lock)
        except NotPlainError:
            pass
        if read_index:
            self._git("read-tree", "--end-of-options", head, worktree=worktree, lock=lock)
        literal = [f":(top,literal){PurePosixPath(path)}" for path in paths]
        self._git("add", "-A", "-f", "--", *literal, worktree=worktree, lock=lock)
        tree = self._line("write-tree", worktree=worktree, lock=lock)
        return self._advance(worktree, tree, [head], message, trailers, lock)

    def _commit_files(self, worktree: Path, files: Mapping[str, bytes], head: str, message: str, lock: int) -> str:
        """Commit files with the given content on top of `head`, where the worktree's branch must still be.

        Raises:
            NotPlainError: git has to decide what is committed; nothing was written.
        """
        objects = NewObjects()
        sha = add_commit(objects, self._tree, (head, self.commit_info(head).tree), files, message)
        self._git("unpack-objects", "-q", stdin=objects.pack(), lock=lock)
        self._git("read-tree", "--reset", "--end-of-options", sha, worktree=worktree, lock=lock)
        self._move_head(worktree, sha, head, lock)
        if not objects.are_loose(self.common / "objects"):  # packed meanwhile, or removed by a prune
            self._git("unpack-objects", "-q", stdin=objects.pack(), lock=lock)
        return sha

    def _move_head(self, worktree: Path, sha: str, head: str, lock: int) -> None:
        """Move the worktree's branch from `head` to `sha`."""
        change = ["--end-of-options", "HEAD", sha, head]
        self._git("update-ref", "-m", "autoqec: commit", *change, worktree=worktree, lock=lock)

    def commit_all(self, message: str) -> str:
        """Commit everything in the main work tree that is not ignored; return the sha."""
        with repository_lock(self.common) as lock:
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
        with repository_lock(self.common) as lock:
            head = self.head_sha(worktree)
            tree = self.merge_tree([head, *tips])
            # A commit of whole files leaves entries without the times of their files.
            self._run(["update-index", "-q", "--refresh"], worktree=worktree, lock=lock)
            self._git("read-tree", "-m", "-u", "--end-of-options", head, tree, worktree=worktree, lock=lock)
            return self._advance(worktree, tree, [head, *tips], message, trailers, lock)

    def bundle_create(self, path: Path, revs: Sequence[str]) -> None:
        """Write a bundle of refs (`^rev` excludes history) to `path`, whole or not at all."""
        temporary = path.with_name(f".{path.name}.tmp")
        try:
            self._git("bundle", "create", "-q", str(absolute(temporary)), "--end-of-options", *revs)
            with open(temporary, "rb") as stream:
                os.fsync(stream.fileno())
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)

    def unbundle(self, path: Path, refs: Mapping[str, str]) -> None:
        """Import the objects of a bundle and create refs (full name -> sha), all or none.

        No transport of git is involved, so that neither the path nor the content of the file can name a command.

        Raises:
            GitError: The bundle is damaged, incomplete or of a kind that this program does not write.
        """
        _check_bundle(path)
        with repository_lock(self.common) as lock:
            self._git("bundle", "unbundle", "--end-of-options", str(absolute(path)), lock=lock)
            check_trees(self, list(refs.values()), max_bytes=largest_checkout(path))
            tips = "".join(f"{sha}\n" for sha in refs.values()).encode()
            self._git("rev-list", "--objects", "--quiet", "--stdin", stdin=tips, lock=lock)
            self._update_refs([RefUpdate(ref, sha, None) for ref, sha in sorted(refs.items())], lock)

    def check_out(self, branch: str, sha: str) -> None:
        """Create `branch` at a commit and check it out in the main work tree; no existing file is replaced."""
        with repository_lock(self.common) as lock:
            self._update_refs([RefUpdate(f"refs/heads/{branch}", sha, None)], lock)
            self._git("symbolic-ref", "HEAD", f"refs/heads/{branch}", lock=lock)
            tree = self.commit_info(sha).tree
            self._git("read-tree", "-m", "-u", "--end-of-options", tree, lock=lock)


_BUNDLES = (b"# v2 git bundle\n", b"# v3 git bundle\n@object-format=sha1\n")


def _check_bundle(path: Path) -> None:
    with open(path, "rb") as stream:
        head = stream.read(max(map(len, _BUNDLES)) + 1)
    if not head.startswith(_BUNDLES) or head.startswith(_BUNDLES[1] + b"@"):
        raise GitError("it is not a git bundle of complete branches")


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
