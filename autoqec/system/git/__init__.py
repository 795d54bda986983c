"""Access to git: every call names its directories and runs in a clean environment.

Hooks, fsmonitor, signing, gc and global configuration are off; objects and refs are fsynced; commits are made by
`AutoQEC <autoqec@localhost>`.
"""

from autoqec.system.git.errors import GitError, MergeConflictError
from autoqec.system.git.parsing import Commit, DiffEntry, RefUpdate, TreeEntry, Worktree
from autoqec.system.git.repo import Repo

__all__ = ["Commit", "DiffEntry", "GitError", "MergeConflictError", "RefUpdate", "Repo", "TreeEntry", "Worktree"]
