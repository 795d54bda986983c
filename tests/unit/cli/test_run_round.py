"""`autoqec run-round`: whose editable modules it measures."""

from __future__ import annotations

from pathlib import Path

from tests.conftest import Workspace


def test_modules_of_the_current_linked_worktree_are_measured(workspace: Workspace, tmp_path: Path) -> None:
    """A patch in a linked worktree is measured, not the code that is checked out in the main one."""
    linked = tmp_path / "linked"
    workspace.git("worktree", "add", "-q", "-b", "patched", str(linked))
    module = linked / "autoqec/decoders/modules/mlp.py"
    module.write_text("raise RuntimeError('patched here')\n", encoding="utf-8")
    config = tmp_path / "config.yaml"
    config.write_text("type: mlp\nmlp: {}\n", encoding="utf-8")
    in_linked = Workspace(linked, workspace.env)
    shown = in_linked.autoqec("run-round", "env.yaml", str(config), str(tmp_path / "round"), "--profile", "smoke")
    assert shown.code == 1 and "compile_error" in shown.out and "patched here" in shown.out, shown.out + shown.err
