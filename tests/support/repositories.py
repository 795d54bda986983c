"""Repositories as a user and a run change them."""

from __future__ import annotations

import subprocess
from pathlib import Path

from autoqec.system.git import Repo


def git(root: Path, *arguments: str) -> str:
    """Run the user's git, with an identity."""
    name = ["-c", "user.name=u", "-c", "user.email=u@x", "-c", "protocol.file.allow=always"]
    return subprocess.run(["git", *name, *arguments], cwd=root, check=True, capture_output=True, text=True).stdout


def branch(number: int) -> str:
    return f"exp/r/{number:02d}-x"


def add(repo: Repo, number: int = 1) -> Path:
    """Add a worktree on a new branch of HEAD; return its path."""
    path = repo.root / ".worktrees" / f"exp-r-{number:02d}"
    repo.worktree_add(path, branch(number), repo.head_sha())
    return path


def grow(repo: Repo, number: int = 1, **files: str) -> tuple[Path, str]:
    """Add a worktree with one commit; return its path and the sha."""
    path = add(repo, number)
    for name, text in files.items():
        (path / f"{name}.txt").write_text(text)
    return path, repo.commit(path, branch(number), [f"{name}.txt" for name in files], f"round {number}")
