"""Trained agents in runs, and the measured gain of their memory."""

from __future__ import annotations

import json

import pytest
import yaml

from autoqec.contracts.dsl import parse_dsl
from autoqec.errors import ContractError, UsageError
from autoqec.extensions.continual.runtime.checkpoint_agents import analyst, ideator, load_agent
from autoqec.extensions.continual.runtime.main import evaluate, evaluate_ablation, gain
from tests.support import rounds
from tests.support.envs import surface
from tests.support.models import FunctionModel
from tests.support.role_views import analyst_view
from tests.unit.extensions.continual.environments.test_policy import row, view


def config(folder, **changes):
    rows = [{"question": f"q{n}", "answer": "a"} for n in range(3)]
    data = {
        "runtime": {"verbose": False, "num_trials": 2, "checkpoint_dir": "c", "checkpoint_every_episodes": 1},
        "dataset": {"items": rows},
        "lm": {"model": "scripted:model.jsonl"},
        "memory": {"_type": "history_list", "max_length": 5},
        "agent": {"type": "memory_agent"},
        "output": {"results_dir": "results"},
        **changes,
    }
    (folder / "model.jsonl").write_text('{"when": "A: ", "say": "a"}\n{"say": "no idea"}\n')
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(data))
    return path


@pytest.fixture
def checkpoint(tmp_path):
    return evaluate(config(tmp_path)).results_dir / "c/latest"


def test_agent_is_loaded_with_its_memory(checkpoint):
    agent = load_agent(checkpoint, FunctionModel(lambda system, user: "x"))
    assert len(agent.memory.recall()) == 5 and agent.memory.config.max_length == 5 and not agent.training


def test_trained_agent_proposes_in_a_live_run(checkpoint):
    lm = FunctionModel(lambda system, user: 'Wider: {"type": "mlp", "mlp.depth": 2}')
    propose = ideator(checkpoint, lm)
    answer = propose(
        view(row(1, {"type": "gnn", "gnn": {}}, 0.004), row(2, {"type": "gnn", "gnn": {}}, None, "train_error"))
    )
    assert parse_dsl(answer.proposal) == parse_dsl(
        {"type": "mlp", "mlp": {"depth": 2}, "training": {"labels": "expected"}}
    )
    prompt = lm.calls[0][1]
    assert prompt.count("F: ") == 5, "its memory is in the prompt"
    assert f"Design a neural predecoder for {surface(3, 0.01).name}" in prompt
    assert "the error rate fell by +0.004 per shot" in prompt and "failed: train_error" in prompt
    assert prompt.endswith("Proposal 3 of 3:")


def test_unreadable_reply_raises(checkpoint):
    with pytest.raises(UsageError, match="no JSON object"):
        ideator(checkpoint, FunctionModel(lambda system, user: "let me think"))(view())


def test_damaged_checkpoint_is_refused(checkpoint):
    path = checkpoint / "agent.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "state": {"x": 1}}))
    with pytest.raises(ContractError, match=r"agent\.json"):
        load_agent(checkpoint, FunctionModel(lambda system, user: "x"))


def test_gain_of_a_memory_is_paired_and_has_an_interval(tmp_path):
    ablation = evaluate_ablation(config(tmp_path))
    assert ablation.stateful.metrics["mean_score"] == pytest.approx(5 / 6)
    assert ablation.memoryless.metrics["mean_score"] == 0.0
    assert ablation.gain.mean == pytest.approx(5 / 6) and ablation.gain.n == 6
    assert ablation.gain.low < ablation.gain.mean < ablation.gain.high and ablation.exit_code == 0
    saved = (ablation.memoryless.results_dir / "config.yaml").read_text()
    agent = json.loads(json.dumps(yaml.safe_load(saved)))["agent"]
    assert agent["type"] == "memoryless_agent" and agent["system_prompt"].startswith("You are a helpful QA assistant")


def episodes(*scores):
    return {"episodes": [[{"feedback": {"score": score}}] for score in scores]}


def test_intervals_of_known_differences_are_exact():
    found = gain(episodes(0.5, 0.7, 0.9), episodes(0.4, 0.5, 0.6))
    assert (found.mean, found.n) == (pytest.approx(0.2), 3)
    assert found.high - found.mean == pytest.approx(4.302653 * 0.1 / 3**0.5, rel=1e-5)
    assert gain(episodes(1.0), episodes(0.0)).low is None
    with pytest.raises(UsageError, match="cannot be paired"):
        gain(episodes(1.0, 1.0), episodes(0.0))


def test_ablation_needs_an_agent_with_a_memory(tmp_path):
    with pytest.raises(UsageError, match="no memory"):
        evaluate_ablation(config(tmp_path, agent={"type": "memoryless_agent"}))


def measured(folder, **more):
    """Return the view that the Analyst receives for a round."""
    counts = {
        "val_shots": 4000,
        "val_errors_plain": 120,
        "val_errors_predecoder": 60,
        "val_fixed": 70,
        "val_broken": 10,
    }
    metrics = rounds.metrics(1, **{**counts, **more})
    (folder / "metrics.json").write_text(json.dumps(metrics.dump()))
    (folder / "config.yaml").write_text("type: mlp\nmlp: {depth: 2}\n")
    return analyst_view(folder / "metrics.json")


@pytest.mark.parametrize("reply, verdict", [("A", "candidate"), ("The answer is (B)", "ignore"), ("FAILED", "ignore")])
def test_trained_analyst_nominates_rounds_that_it_expects_to_be_verified(checkpoint, tmp_path, reply, verdict):
    lm = FunctionModel(lambda system, user: reply)
    nomination = analyst(checkpoint, lm)(measured(tmp_path))
    assert (
        nomination.verdict == verdict
        and "MemoryAgent expects" in nomination.summary_1line
        and "120" in nomination.analysis
    )
    prompt = lm.calls[0][1]
    assert prompt.count("F: ") == 5 and "On 4000 validation shots plain matching erred 120 times" in prompt
    assert "A. VERIFIED" in prompt and '"depth": 2' in prompt


def test_trained_analyst_without_a_verdict_raises_and_skips_failed_rounds(checkpoint, tmp_path):
    lm = FunctionModel(lambda system, user: "hard to tell")
    with pytest.raises(UsageError, match="no verdict"):
        analyst(checkpoint, lm)(measured(tmp_path))
    failed = measured(tmp_path, status="train_error", status_reason="NaN")
    assert analyst(checkpoint, lm)(failed).verdict == "ignore" and len(lm.calls) == 1
