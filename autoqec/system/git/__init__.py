"""Access to git: every call names its directories and runs in a clean environment.

Hooks, fsmonitor, signing, gc and global configuration are off; objects and refs are fsynced; commits are made by
`AutoQEC <autoqec@localhost>`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from autoqec.errors import UsageError
from autoqec.system.git import command
from autoqec.system.git.parsing import (
    Commit,
    DiffEntry,
    GitError,
    MergeConflictError,
    RefUpdate,
    TreeEntry,
    Worktree,
    text,
)
from autoqec.system.git.read import error_reason, git_error
from autoqec.system.git.write import GitWriter

__all__ = ["Commit", "DiffEntry", "GitError", "MergeConflictError", "RefUpdate", "Repo", "TreeEntry", "Worktree"]

_MIN_VERSION = (2, 38)  # merge-tree --write-tree
_SAFE_DIRECTORY = re.compile(r"git config --global --add safe\.directory .+")


class Repo(GitWriter):
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
        status, _, err = command.execute(
            directory, ["init", "-q", "--template=", f"--initial-branch={branch}", "."], env=command.ENVIRONMENT
        )
        if status != 0:
            raise git_error(["init"], err)
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

    def _run(
        self, arguments: Sequence[str], *, worktree: Path | None = None, stdin: bytes = b"", lock: int | None = None
    ) -> tuple[int, bytes, str]:
        git_dir = self.common if worktree is None else self._admin(worktree)
        dir_options = [f"--git-dir={git_dir}", f"--work-tree={worktree or self.root}"]
        fds = () if lock is None else (lock,)
        # Unpacking is where a few bytes could ask for any amount of memory.
        env = command.ENVIRONMENT | ({"GIT_ALLOC_LIMIT": "1g"} if arguments[0] == "bundle" else {})
        return command.execute(worktree or self.root, [*dir_options, *arguments], stdin=stdin, env=env, pass_fds=fds)


def _check_version(cwd: Path) -> None:
    _, out, _ = command.execute(cwd, ["version"], env=command.ENVIRONMENT)
    fields = text(out).split()
    numbers = tuple(int(part) for part in fields[2].split(".")[:2]) if len(fields) > 2 else (0, 0)
    if numbers < _MIN_VERSION:
        raise UsageError(f"git {'.'.join(map(str, numbers))} is too old", hint="install git 2.38 or newer")
