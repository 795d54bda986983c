"""A repository: discovery, and what changes worktrees, commits, refs and bundles, all under one lock."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath

from autoqec.errors import StorageError, UsageError
from autoqec.system.git import command
from autoqec.system.git.errors import GitError, MergeConflictError, PrunedObjectError, error_reason, git_error
from autoqec.system.git.lock import repository_lock
from autoqec.system.git.parsing import RefUpdate, format_message, text
from autoqec.system.git.reader import PLAIN_DIFF, GitReader, absolute
from autoqec.system.git.trees import check_trees, largest_checkout

_MIN_VERSION = (2, 38)  # merge-tree --write-tree
_SAFE_DIRECTORY = re.compile(r"git config --global --add safe\.directory .+")
_BUNDLES = (b"# v2 git bundle\n", b"# v3 git bundle\n@object-format=sha1\n")


class Repo(GitReader):
    """A repository with a work tree. Commits are named by full SHA, refs by full name, branches by short name.

    Every method raises GitError with git's message, StorageError if the disk is full or not writable.

    Attributes:
        root: Top directory of the main work tree.
        common: The git directory that all worktrees share.
        linked_worktree: The linked worktree that `discover` started in, if it did.
    """

    linked_worktree: Path | None = None

    @classmethod
    def discover(cls, cwd: Path | str) -> Repo:
        """Find the repository that holds `cwd`; from a linked worktree, its main one.

        Raises:
            UsageError: There is none, git does not trust it, or it is of a kind that is not supported.
        """
        cwd = Path(cwd).resolve()
        hint = "change to a git repository, or create one: `autoqec init DIR`"
        if not cwd.is_dir():
            raise UsageError("there is no such directory", location=str(cwd), hint=hint)
        # The user's own configuration applies here: it may hold safe.directory.
        env = command.IDENTITY | {"LC_ALL": "C", "HOME": os.environ.get("HOME", "/")}
        ask = ["rev-parse", "--path-format=absolute", "--show-toplevel", "--git-dir", "--git-common-dir"]
        _check_version(cwd)
        status, out, err = command.execute(cwd, [*ask, "--show-object-format"], env=env)
        if status != 0:
            if safe := _SAFE_DIRECTORY.search(err):
                hint = safe[0]
            raise UsageError(error_reason(err, "not in a git repository"), location=str(cwd), hint=hint)
        lines = text(out).split("\n")
        if len(lines) != 5:
            message = "the path of the repository holds a line break, which is not supported"
            raise UsageError(message, location=str(cwd), hint="rename that directory")
        top, git_dir, common, objects = (Path(line) for line in lines[:4])
        if str(objects) != "sha1":
            raise UsageError(
                f"repositories with {objects} object names are not supported", location=str(top), hint=hint
            )
        if git_dir == common:
            return cls(top, common)
        repo = cls(cls(top, common)._main_worktree(), common)
        repo.linked_worktree = top
        return repo

    @classmethod
    def init(cls, directory: Path | str, *, branch: str = "main", symlinks: bool = True) -> Repo:
        """Create a repository without commits in an existing directory.

        Args:
            directory: Its top directory.
            branch: Name of the first branch.
            symlinks: False for a repository that receives branches of other people: every git then checks out a
                symbolic link as a text file.
        """
        directory = Path(directory).resolve()
        _check_version(directory)
        arguments = ["init", "-q", "--template=", f"--initial-branch={branch}", "."]
        status, _, err = command.execute(directory, arguments, env=command.ENVIRONMENT)
        if status != 0:
            raise git_error(arguments, err, directory)
        repo = cls(directory, directory / ".git")
        if not symlinks:
            repo._git("config", "core.symlinks", "false")
        return repo

    def _main_worktree(self) -> Path:
        records = text(self._git("worktree", "list", "--porcelain", "-z")).split("\0")
        top = Path(records[0].removeprefix("worktree "))
        if "bare" in records[: records.index("")]:
            raise UsageError("the repository is bare", location=str(top), hint="clone it with a work tree")
        return top

    def repair(self) -> None:
        """Remove the lock files that a dead writer of this program left; every other call that writes does so too."""
        with repository_lock(self.common):
            pass

    # ---- refs

    def update_refs(self, updates: Sequence[RefUpdate]) -> None:
        """Update all refs or none. A rename is one transaction: delete the old name, create the new one."""
        with repository_lock(self.common) as lock:
            changed = {update.ref.removeprefix("refs/heads/") for update in updates if update.old is not None}
            if changed and (in_use := sorted(changed & self.checked_out_branches())):
                hint = "check out another branch there (`git worktree list`), then try again"
                raise GitError(f"branch {in_use[0]} is checked out, so it is neither moved nor deleted", hint=hint)
            self._write_refs(updates, lock)

    def _write_refs(self, updates: Sequence[RefUpdate], lock: int) -> None:
        data = "".join(f"{line}\0" for line in map(_ref_line, updates)).encode("utf-8", "surrogateescape")
        self._git("update-ref", "-m", "autoqec", "--create-reflog", "-z", "--stdin", stdin=data, lock=lock)

    # ---- worktrees

    def worktree_add(self, path: Path, branch: str, base: str | None) -> None:
        """Check `branch` out at `path`; created at commit `base`, or with None an existing branch."""
        path = absolute(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        with repository_lock(self.common) as lock:
            if base is not None:
                self._write_refs([RefUpdate(f"refs/heads/{branch}", base, None)], lock)
            self._git("worktree", "add", "-q", "--", str(path), branch, lock=lock)

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

        A record of the same name whose place is gone counts as this checkout's: the repository was moved. So does a
        record without a place, which a killed `worktree add` leaves; git does not list it.
        """
        path = absolute(path)
        with repository_lock(self.common) as lock:
            recorded = {found.admin: found.path for found in self.worktrees()}
            for admin in sorted(self.common.glob("worktrees/*")):
                place = recorded.get(admin)
                if place is None and admin.name.startswith(path.name):
                    _rmtree(admin)
                elif place is not None and (place == path or (place.name == path.name and not place.exists())):
                    _rmtree(path)
                    self._git("worktree", "remove", "--force", "--force", "--", str(place), lock=lock)

    def uncommitted_patch(self, worktree: Path) -> bytes:
        """Return what a worktree holds beyond HEAD as a binary patch, new files included; b"" for nothing."""
        with repository_lock(self.common) as lock:
            self._git("add", "-A", "-f", "--", ".", worktree=worktree, lock=lock)
            diff_options = ["-p", "--cached", "--binary", *PLAIN_DIFF]
            return self._git("diff-index", *diff_options, "HEAD", "--", worktree=worktree)

    def check_out(self, branch: str, sha: str) -> None:
        """Create `branch` at a commit and check it out in the main work tree; no existing file is replaced."""
        with repository_lock(self.common) as lock:
            self._write_refs([RefUpdate(f"refs/heads/{branch}", sha, None)], lock)
            self._git("symbolic-ref", "HEAD", f"refs/heads/{branch}", lock=lock)
            tree = self.commit_info(sha).tree
            self._git("read-tree", "-m", "-u", "--end-of-options", tree, lock=lock)

    # ---- commits

    def commit(
        self,
        worktree: Path,
        branch: str,
        paths: Sequence[str],
        message: str,
        trailers: Mapping[str, str] | None = None,
    ) -> str:
        """Commit exactly `paths` (files or directories from the worktree's top, ignored ones too); return the sha.

        No hook runs and the earlier index is not used: other files of the worktree stay out. The commit may be empty.
        If a prune of another process removes its objects before the branch names them, they are written once more.

        Args:
            worktree: The worktree.
            branch: The branch that is checked out there, so that a branch of the user's is never moved.
            paths: What is committed.
            message: Message of the commit.
            trailers: Trailers of the message.

        Raises:
            UsageError: The branch does not exist, or another one is checked out.
        """
        for path in paths:
            if path.startswith("/") or {"..", ".git"} & set(PurePosixPath(path).parts):
                raise GitError(f"{path!r} is not a path inside a worktree", location=str(worktree))
        literal = [f":(top,literal){PurePosixPath(path)}" for path in paths]
        with repository_lock(self.common) as lock:
            status, out, _ = self._run(
                ["rev-parse", "HEAD^{commit}", "--symbolic-full-name", "HEAD"], worktree=worktree
            )
            head, _, ref = text(out).strip().partition("\n")
            if status != 0 or ref != f"refs/heads/{branch}":
                message = f"not on branch {branch}, so nothing is committed to it"
                raise UsageError(message, location=str(worktree), hint=f"git -C {worktree} switch {branch}")
            for is_last_try in (False, True):
                try:
                    self._git("read-tree", "--end-of-options", head, worktree=worktree, lock=lock)
                    self._git("add", "-A", "-f", "--", *literal, worktree=worktree, lock=lock)
                    tree = self._line("write-tree", worktree=worktree, lock=lock)
                    sha = self._commit_tree(tree, [head], format_message(message, dict(trailers or {})))
                    self._write_refs([RefUpdate(ref, sha, head)], lock)
                    break
                except PrunedObjectError:
                    if is_last_try:
                        raise
        return sha

    def commit_all(self, message: str) -> str:
        """Commit everything in the main work tree that is not ignored; return the sha."""
        with repository_lock(self.common) as lock:
            self._git("add", "-A", "--", ".", lock=lock)
            self._git("commit", "-q", "--no-verify", "--allow-empty", "-F", "-", stdin=message.encode(), lock=lock)
        return self.head_sha()

    def _commit_tree(self, tree: str, parents: Sequence[str], message: str) -> str:
        options = [*(item for parent in parents for item in ("-p", parent)), "-F", "-", "--end-of-options"]
        return self._line("commit-tree", *options, tree, stdin=message.encode("utf-8", "replace"))

    def merge(self, tips: Sequence[str], message: str, trailers: Mapping[str, str] | None = None) -> str:
        """Merge commits in the order given into one commit with all of them as parents; return its sha.

        No ref or file changes.

        Raises:
            MergeConflictError: They cannot be merged without manual work.
        """
        at, merged = tips[0], self.commit_info(tips[0]).tree
        for other in tips[1:]:
            arguments = ["merge-tree", "--write-tree", "-z", "--name-only", "--no-messages"]
            arguments += ["--end-of-options", at, other]
            status, out, err = self._run(arguments)
            fields = text(out).split("\0")
            if status == 1 and fields[0]:  # without a tree, a tip is not a commit
                raise MergeConflictError(tuple(sorted(set(filter(None, fields[1:])))))
            if status != 0:
                raise git_error(arguments, err, self.common)
            merged = fields[0].strip()
            at = self._commit_tree(merged, [at, other], "merged on the way")
        return self._commit_tree(merged, tips, format_message(message, dict(trailers or {})))

    # ---- bundles

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
        with open(path, "rb") as stream:
            head = stream.read(max(map(len, _BUNDLES)) + 1)
        if not head.startswith(_BUNDLES) or head.startswith(_BUNDLES[1] + b"@"):
            raise GitError("it is not a git bundle of complete branches")
        with repository_lock(self.common) as lock:
            self._git("bundle", "unbundle", "--end-of-options", str(absolute(path)), lock=lock)
            check_trees(self, list(refs.values()), max_bytes=largest_checkout(path))
            tips = "".join(f"{sha}\n" for sha in refs.values()).encode()
            self._git("rev-list", "--objects", "--quiet", "--stdin", stdin=tips, lock=lock)
            self._write_refs([RefUpdate(ref, sha, None) for ref, sha in sorted(refs.items())], lock)


def _check_version(cwd: Path) -> None:
    _, out, _ = command.execute(cwd, ["version"], env=command.ENVIRONMENT)
    fields = text(out).split()
    numbers = tuple(int(part) for part in fields[2].split(".")[:2]) if len(fields) > 2 else (0, 0)
    if numbers < _MIN_VERSION:
        raise UsageError(f"git {'.'.join(map(str, numbers))} is too old", hint="install git 2.38 or newer")


def _ref_line(update: RefUpdate) -> str:
    """Return one instruction of `update-ref --stdin -z`."""
    top, *parts = update.ref.split("/")
    if top != "refs" or any(part.startswith("-") for part in parts):
        raise GitError(f"{update.ref!r} is not a name for a ref")
    if update.new is None:
        return f"delete {update.ref}\0{update.old or ''}"
    if update.old is None:
        return f"create {update.ref}\0{update.new}"
    return f"update {update.ref}\0{update.new}\0{update.old}"


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
