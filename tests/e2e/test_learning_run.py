"""Runs that learn: the policy without a model, then a trained agent, with a shared memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoqec.extensions.continual.runtime.main import evaluate
from autoqec.store import jsonl
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from tests.conftest import Workspace, made_workspace
from tests.unit.extensions.continual.runtime.test_checkpoint_agents import config

SMALL = ("--profile", "smoke", "--scale", "0.1")  # no assertion depends on how good the networks are


@pytest.fixture(scope="module")
def searched(tmp_path_factory: pytest.TempPathFactory) -> tuple[Workspace, RunLayout]:
    workspace = made_workspace(tmp_path_factory.mktemp("policy"))
    options = (*SMALL, "--rounds", "2", "--seed", "3", "--memory", "memory.jsonl")
    result = workspace.autoqec("run", "env.yaml", "--ideator", "policy", *options, timeout=600)
    assert result.code == 0, result.err
    return workspace, newest(workspace)


def newest(workspace: Workspace) -> RunLayout:
    return RunLayout(workspace.root, max(path.name for path in (workspace.root / "runs").glob("[0-9]*")))


def test_policy_searches_without_a_model(searched: tuple[Workspace, RunLayout]) -> None:
    _, run = searched
    first, second = History(run).rows()
    assert (first.ideator_source, second.ideator_source) == ("policy 0", "policy 1")
    assert History(run).info().ideator == "policy" and not run.cassette.exists()
    assert second.hypothesis.endswith("settings with low error rates") and first.dsl_config != second.dsl_config


def test_trained_agent_continues_with_its_memory(searched: tuple[Workspace, RunLayout], tmp_path: Path) -> None:
    workspace, _ = searched
    checkpoint = evaluate(config(tmp_path)).results_dir / "c/latest"
    reply = {"type": "mlp", "mlp.hidden": 64, "mlp.depth": 1, "training.batch_size": 2048}
    rules = tmp_path / "says.jsonl"
    rules.write_text(json.dumps({"when": "F: .*Design a neural", "say": json.dumps(reply)}) + "\n", encoding="utf-8")
    options = (*SMALL, "--rounds", "1", "--memory", "memory.jsonl", "--model", f"scripted:{rules}")
    result = workspace.autoqec("run", "env.yaml", "--ideator", "llm", "--ideator-memory", str(checkpoint), *options)
    assert result.code == 0, result.err
    (row,) = History(newest(workspace)).rows()
    assert checkpoint.is_symlink() and row.dsl_config is not None
    stored = f"MemoryAgent {checkpoint.resolve().name} "
    assert row.ideator_source.startswith(stored), "the run names the checkpoint itself: `latest` may move"
    assert row.dsl_config["mlp"]["hidden"] == 64 and "1 round added to " in result.err
    (line, *_) = jsonl.read(newest(workspace).cassette)
    assert "Q: q0 A: " in json.dumps(line["request"]), "what it learned elsewhere is in the prompt"
    result = workspace.autoqec("memory", "memory.jsonl", "--env", "env.yaml", "--json")
    assert result.objects[-1]["entries"] == 3 and len(result.objects[-1]["notes"]) == 3
