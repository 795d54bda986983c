"""The round pointer: two identical, complete copies; strict validation when read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autoqec.contracts.provenance import Pointer
from autoqec.contracts.round import RunnerConfig
from autoqec.errors import ContractError, UsageError
from autoqec.runner.provenance import read_pointer
from autoqec.runner.runner import run_round
from autoqec.system.git import Repo

from .conftest import SMALL, Ran, config_for

RUN, BRANCH = "20260101-000000", "exp/20260101-000000/01-wide"
BROKEN = {"type": "mlp"}  # fails in the parent process; a pointer is still required


@pytest.fixture
def workspace(tmp_path: Path) -> Repo:
    root = tmp_path / "workspace"
    root.mkdir()
    repo = Repo.init(root)
    (root / "a.txt").write_text("a")
    (root / ".gitignore").write_text("runs/\n.worktrees/\n")
    repo.commit_all("start")
    repo.worktree_add(root / ".worktrees" / "w", BRANCH, repo.head_sha())
    return repo


def on_branch(workspace: Repo, env_text: str, config: dict[str, Any] = BROKEN, **more: Any) -> RunnerConfig:
    return config_for(
        env_text,
        workspace.root / "runs" / RUN / "round_1",
        config,
        run_id=RUN,
        branch=BRANCH,
        code_cwd=str(workspace.root / ".worktrees" / "w"),
        round_attempt_id="11111111-2222-3333-4444-555555555555",
        **more,
    )


def test_round_on_a_branch_writes_two_identical_complete_pointers(workspace: Repo, env_text: str) -> None:
    config = on_branch(workspace, env_text, fork_from=("exp/r/02-b", "exp/r/01-a"), compose_mode="pure")
    metrics = run_round(config)
    in_run, on_branch_path = (
        workspace.root / f"runs/{RUN}/round_1/round_1_pointer.json",
        Path(config.code_cwd or "") / "round_1",
    )
    assert in_run.read_bytes() == (on_branch_path / "round_1_pointer.json").read_bytes()
    stored = json.loads(in_run.read_text())
    assert set(stored) == set(Pointer.model_fields) and "reconcile_id" not in stored
    assert stored["commit_sha"] == workspace.head_sha()
    assert (stored["run_id"], stored["round_idx"], stored["branch"]) == (RUN, 1, BRANCH)
    assert stored["fork_from_canonical"] == "exp/r/01-a|exp/r/02-b"
    assert stored["fork_from_ordered"] == ["exp/r/02-b", "exp/r/01-a"]
    assert stored["provenance"]["repo_root_resolved"] == str(workspace.root)
    assert stored["metrics_summary"] == {
        "delta_vs_parent": None,
        "flops_per_syndrome": None,
        "n_params": None,
        "status": metrics.status,
    }
    assert stored["artifact_paths"] == {
        "checkpoint": None,
        "metrics": str(workspace.root / f"runs/{RUN}/round_1/metrics.json"),
        "train_log": None,
    }


def test_ok_round_on_a_branch_points_at_its_artifacts(workspace: Repo, env_text: str) -> None:
    ran = Ran(on_branch(workspace, env_text, SMALL))
    assert ran.metrics.status == "ok", ran.metrics.status_reason
    pointer = read_pointer(ran.layout.pointer.read_text(), location="p", run_id=RUN, round_idx=1, branch=BRANCH)
    assert pointer.artifact_paths.checkpoint == str(ran.layout.checkpoint)
    assert pointer.metrics_summary.n_params == ran.metrics.n_params
    manifest = json.loads(ran.layout.manifest.read_text())
    assert manifest["repo"]["commit_sha"] == workspace.head_sha() and manifest["repo"]["dirty"] is False
    assert manifest["repo"]["branch"] == BRANCH


def test_every_missing_key_is_rejected(workspace: Repo, env_text: str) -> None:
    config = on_branch(workspace, env_text)
    run_round(config)
    whole = json.loads((Path(config.round_dir) / "round_1_pointer.json").read_text())
    read_pointer(json.dumps(whole), location="p")
    for key in whole:
        with pytest.raises(ContractError, match=key):
            read_pointer(json.dumps({name: value for name, value in whole.items() if name != key}), location="p")
        if isinstance(whole[key], dict):
            for inner in whole[key]:
                less = {name: value for name, value in whole[key].items() if name != inner}
                with pytest.raises(ContractError, match=inner):
                    read_pointer(json.dumps({**whole, key: less}), location="p")


@pytest.mark.parametrize("wrong", [{"run_id": "other"}, {"round_idx": 2}, {"branch": "exp/x/01-y"}])
def test_pointer_of_another_round_is_rejected(workspace: Repo, env_text: str, wrong: dict[str, Any]) -> None:
    config = on_branch(workspace, env_text)
    run_round(config)
    text = (Path(config.round_dir) / "round_1_pointer.json").read_bytes()
    with pytest.raises(ContractError, match=next(iter(wrong))):
        read_pointer(text, location="p", **wrong)
    with pytest.raises(ContractError, match="not JSON"):
        read_pointer(b"{", location="p")


def test_branch_without_a_repository_is_refused_before_anything_is_written(env_text: str, tmp_path: Path) -> None:
    config = config_for(env_text, tmp_path / "round_1", branch=BRANCH, code_cwd=str(tmp_path), round_attempt_id="id")
    with pytest.raises(UsageError):
        run_round(config)
    assert list(tmp_path.iterdir()) == []
