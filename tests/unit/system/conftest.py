"""Small real repositories."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoqec.system.git import Repo


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    """One commit: `modules/a.py`, `base.txt`."""
    root = tmp_path / "a workspace ü"
    (root / "modules").mkdir(parents=True)
    (root / "modules" / "a.py").write_text("a = 1\n")
    (root / "base.txt").write_text("1\n\n2\n\n3\n")
    (root / ".gitignore").write_text("/.worktrees/\n*.json\n")
    repo = Repo.init(root)
    repo.commit_all("Start")
    return repo
