"""User-defined environments and agents, and the seed, from the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from autoqec.errors import UsageError
from autoqec.extensions.continual.environments.base import Environment
from autoqec.extensions.continual.runtime import checkpoint_agents, checkpoints
from autoqec.extensions.continual.runtime.config import load_config
from autoqec.extensions.continual.runtime.main import evaluate
from autoqec.extensions.language_models.clients.scripted import ScriptedLM

OWN_ENV = """
import neighbour
from autoqec.extensions.continual.environments.qa import QAEnv


class Lenient(QAEnv):
    def normalize_action(self, action):
        return neighbour.clean(action)


class Drawing(QAEnv):
    \"\"\"Scores with four generators that nothing has imported before.\"\"\"

    def evaluate(self, action):
        import random
        import numpy as np
        import torch

        draws = {"own": self.rng.random(), "python": random.random(), "numpy": float(np.random.random()),
                 "torch": float(torch.rand(1))}
        return {"correct": False, "target": "t", "message": "m", "score": draws["own"], "extra": draws}
"""
OWN_AGENT = """
from autoqec.extensions.continual.agents.base import MemoryAgent, MemorylessAgent


class Polite(MemoryAgent):
    default_system_prompt = "Answer politely."

    def act(self, obs):
        return super().act(obs) + ", please"
"""


def write(folder: Path, **changes: object) -> Path:
    """Write a config and its classes to one directory."""
    (folder / "my_env.py").write_text(OWN_ENV)
    (folder / "neighbour.py").write_text("def clean(text):\n    return text.strip('!')\n")
    (folder / "my_agent.py").write_text(OWN_AGENT)
    (folder / "rules.jsonl").write_text('{"say": "4!"}\n')
    config = {
        "runtime": {"verbose": False},
        "dataset": {"items": [{"question": "2+2?", "answer": "4"}]},
        "lm": {"model": "scripted:rules.jsonl"},
        "agent": {"type": "memory_agent"},
        "output": {"results_dir": "results"},
        **changes,
    }
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(json.loads(json.dumps(config))))  # without aliases
    return path


def run_command(path: Path, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "autoqec.cli", "evaluate", str(path), "--json"]
    return subprocess.run(command, cwd="/", capture_output=True, text=True, env={**os.environ, **env}, check=False)


@pytest.mark.parametrize("name", ["my_env.Lenient", "my_env.py:Lenient", "./my_env.py:Lenient"])
def test_env_class_next_to_the_config_is_found_from_another_directory(tmp_path, monkeypatch, name):
    path = write(tmp_path, dataset={"items": [{"question": "2+2?", "answer": "4"}], "env_class": name})
    monkeypatch.chdir("/")
    result = evaluate(path)
    assert result.metrics["mean_score"] == 1.0
    assert load_config(result.results_dir / "config.yaml") == load_config(path)


def test_agent_class_next_to_the_config_is_found(tmp_path):
    path = write(tmp_path, agent={"type": "memory_agent", "agent_class": "my_agent.Polite"})
    (step,) = evaluate(path).metrics["episodes"][0]
    assert step["action"] == "4!, please"


def test_agent_class_must_extend_the_class_of_its_type(tmp_path):
    path = write(tmp_path, agent={"type": "reflexion_agent", "agent_class": "my_agent.Polite"})
    with pytest.raises(UsageError, match="not a subclass of ReflexionAgent"):
        evaluate(path)


def test_two_configs_with_equally_named_modules_use_their_own(tmp_path):
    scores = []
    for name, cleaned in (("one", "4"), ("two", "5")):
        folder = tmp_path / name
        folder.mkdir()
        path = write(folder, dataset={"items": [{"question": "q", "answer": "4"}], "env_class": "own.Env"})
        (folder / "own.py").write_text(
            "from autoqec.extensions.continual.environments.qa import QAEnv\n\n\nclass Env(QAEnv):\n"
            f"    def normalize_action(self, action):\n        return {cleaned!r}\n"
        )
        scores.append(evaluate(path).metrics["mean_score"])
    assert scores == [1.0, 0.0]


def test_failing_module_is_named(tmp_path):
    path = write(tmp_path, dataset={"items": [{"question": "q", "answer": "a"}], "env_class": "broken.Env"})
    (tmp_path / "broken.py").write_text("1 / 0\n")
    with pytest.raises(UsageError, match="broken.py:Env.*ZeroDivisionError"):
        evaluate(path)


def test_checkpoint_cannot_name_code_to_run(tmp_path):
    runtime = {"verbose": False, "checkpoint_dir": "checkpoints", "checkpoint_every_episodes": 1}
    path = write(tmp_path, runtime=runtime, agent={"type": "memory_agent", "agent_class": "my_agent.Polite"})
    checkpoint = evaluate(path).results_dir / "checkpoints/latest"
    (tmp_path / "my_agent.py").write_text("raise SystemExit('ran')\n")
    with pytest.raises(UsageError, match="may not name code"):
        checkpoint_agents.load_agent(checkpoint, ScriptedLM(["4"]))


def test_same_seed_gives_the_same_scores_from_the_command_line(tmp_path):
    """Each evaluation is a separate process, in which only the environment imports numpy and torch."""
    dataset = {"items": [{"question": str(n), "answer": "4"} for n in range(2)], "env_class": "my_env.Drawing"}
    runtime = {"verbose": False, "scores_path": "scores.jsonl", "validation_freq": 1, "num_parallel_episodes": 2}

    def draws(seed: int, *, in_process: bool = False) -> tuple[list[dict[str, float]], list[float]]:
        path = write(tmp_path, dataset=dataset, validation_dataset=dataset, runtime=runtime, seed=seed)
        if in_process:
            results = evaluate(path).results_dir
        else:
            done = run_command(path)
            assert done.returncode == 0, done.stderr
            results = Path(json.loads(done.stdout)["results_dir"])
        rows = [json.loads(line) for line in (results / "scores/train/scores.jsonl").read_text().splitlines()]
        val = [json.loads(line) for file in sorted(results.glob("scores/val/*")) for line in file.open()]
        # Parallel validation episodes share the global generators, so only their own generator is reproducible.
        return [row["feedback"]["extra"] for row in rows][:1], [row["feedback"]["extra"]["own"] for row in val]

    first, again, other = draws(7), draws(7), draws(8, in_process=True)
    assert first == again
    assert all(first[0][0][name] != other[0][0][name] for name in ("own", "python", "numpy", "torch"))
    assert len(set(first[1])) == len(first[1]) and set(first[1]).isdisjoint(other[1])


def test_seeds_of_environments_differ():
    seeds = {checkpoints.env_seed(seed, phase, n) for seed in (1, 2) for phase in ("train", "val 1") for n in (0, 1)}
    assert len(seeds) == 8
    env = type("Env", (Environment,), {"reset": lambda self: "", "step": lambda self, action: None})()
    env.seed(3)
    first = env.rng.random()
    env.seed(3)
    assert env.rng.random() == first


def test_missing_key_has_a_hint_for_a_run_without_one(tmp_path):
    done = run_command(write(tmp_path, lm={"model": "claude-opus-5-5"}), ANTHROPIC_API_KEY="", ANTHROPIC_AUTH_TOKEN="")
    assert done.returncode == 2
    shown = done.stdout + done.stderr
    assert "ANTHROPIC_API_KEY" in shown and "scripted:" in shown and "--ideator" not in shown
