"""What recovery reads of a run's branches and pins."""

from __future__ import annotations

from pathlib import Path

from autoqec.cli.workspace import make_workspace
from autoqec.locate import builtin_envs
from autoqec.orchestrator.recovery.inspect import moved_branches
from autoqec.store.layout import RunLayout
from autoqec.system.git import RefUpdate, Repo
from tests.crash.invariants import git


def test_branch_that_left_its_recorded_commit_is_found(tmp_path: Path) -> None:
    make_workspace(tmp_path / "workspace", builtin_envs()["smoke"])
    layout = RunLayout(tmp_path / "workspace", "20260101-000000")
    repo = Repo.discover(layout.repo_root)
    recorded = str(repo.rev_parse("HEAD"))
    other = git(layout.repo_root, "commit-tree", f"{recorded}^{{tree}}", "-p", recorded, "-m", "mine").strip()
    branches = {name: layout.branch(number, name) for number, name in enumerate(("kept", "moved", "running"), start=1)}
    places = {"kept": recorded, "moved": other, "running": other}
    updates = [RefUpdate(f"refs/heads/{branches[name]}", sha, None) for name, sha in places.items()]
    repo.update_refs([*updates, RefUpdate(layout.pin("attempt"), recorded, None)])
    layout.worktree(branches["running"]).mkdir(parents=True)
    assert moved_branches(repo, layout) == [branches["moved"]]
