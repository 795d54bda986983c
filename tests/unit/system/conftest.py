"""Small real repositories."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoqec.system.git import Repo


@pytest.fixture
def repo(tmp_path: Path) -> Repo:
    """One commit: `surface/a.py`, `base.txt`."""
    root = tmp_path / "a lab ü"
    (root / "surface").mkdir(parents=True)
    (root / "surface" / "a.py").write_text("a = 1\n")
    (root / "base.txt").write_text("1\n\n2\n\n3\n")
    (root / ".gitignore").write_text("/.worktrees/\n*.json\n")
    repo = Repo.init(root)
    repo.commit_all("Start")
    return repo
