"""Every training option changes the weights if it applies, and does not if it has no effect; in both bases."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from autoqec.contracts.dsl import MACHINE_FIELDS, TrainingConfig, parse_dsl
from autoqec.contracts.profiles import PROFILES
from autoqec.qec.problem import Problem
from autoqec.runner.agents import PredecoderAgent
from autoqec.runner.evaluate import val_counts
from autoqec.runner.logger import TrainLogger
from autoqec.runner.training import TrainingBudget, phases, train
from autoqec.store.layout import RoundLayout
from tests.support.envs import problem as surface_problem

from .conftest import make_agent

BASE: dict[str, Any] = {"batch_size": 64, "finetune_share": 0.5}
MOVED: dict[str, list[Any]] = {
    "loss": ["focal", "weighted_bce"],
    "labels": ["expected"],
    "learning_rate": [1e-3],
    "batch_size": [128],
    "weight_decay": [0.5],
    "finetune_learning_rate": [3e-3],
    "finetune_share": [0.0, 1.0],
    "finetune_gap": [2.0],
    "finetune_ratio": [1.0],
}
# not learnt from; source of weights (test_runner.py); options of the loops (test_policy_gradient.py)
ELSEWHERE = {"loop", "init", "finetune_shots", "sync", "replay", "policy_gradient", *MACHINE_FIELDS}


def trained(problem: Problem, directory: Path, hidden: int, training: dict[str, Any], shots: int) -> PredecoderAgent:
    config = {"type": "mlp", "mlp": {"hidden": hidden}, "training": training}
    dsl, agent = parse_dsl(config), make_agent(problem, config=config)
    profile = PROFILES["smoke"].model_copy(update={"train_shots": shots, "finetune_shots": shots // 4})
    budget = TrainingBudget.of(profile, dsl, flops_per_shot=1)
    train(agent, phases(problem, dsl, profile, budget, seed=0), dsl, TrainLogger(RoundLayout(directory, 1)), seed=0)
    return agent


def weights(problem: Problem, directory: Path, **training: Any) -> torch.Tensor:
    agent = trained(problem, directory, 8, {**BASE, **training}, 512)
    return torch.cat([value.detach().flatten() for value in agent.parameters()])


@pytest.fixture(scope="module")
def base(problem: Problem, tmp_path_factory: pytest.TempPathFactory) -> torch.Tensor:
    return weights(problem, tmp_path_factory.mktemp("base"))


@pytest.mark.parametrize(("option", "value"), [(option, value) for option, values in MOVED.items() for value in values])
def test_every_training_option_changes_the_weights(
    problem: Problem, base: torch.Tensor, tmp_path: Path, option: str, value: Any
) -> None:
    assert not torch.equal(weights(problem, tmp_path, **{option: value}), base)


def test_every_training_option_is_tested() -> None:
    assert set(TrainingConfig.model_fields) == {*MOVED, *ELSEWHERE}


@pytest.mark.parametrize(
    ("config", "changed_config"),
    [
        ({}, {"loop": "minibatch_eval"}),
        ({"finetune_share": 0.0}, {"finetune_share": 0.0, "finetune_gap": 2.0, "finetune_learning_rate": 3e-3}),
    ],
    ids=["how a loop reports", "fine-tuning that is left out"],
)
def test_options_without_effect_do_not_change_the_weights(
    problem: Problem, tmp_path: Path, config: dict[str, Any], changed_config: dict[str, Any]
) -> None:
    recipes = [
        parse_dsl({"type": "mlp", "mlp": {}, "training": {**BASE, **more}}).training_signature()
        for more in (config, changed_config)
    ]
    assert recipes[0] == recipes[1]
    (tmp_path / "other").mkdir()
    assert torch.equal(weights(problem, tmp_path, **config), weights(problem, tmp_path / "other", **changed_config))


@pytest.mark.parametrize("basis", ["z", "x"])
def test_both_bases_learn_and_are_fine_tuned(basis: str, tmp_path: Path) -> None:
    """Labels, gap and fine-tuning are those of the observable's own sector, X checks for memory_x."""
    prob = surface_problem(3, 0.01, basis)
    agent = trained(prob, tmp_path, 64, {"batch_size": 256}, 30_000)
    counts = val_counts(prob, agent, 40_000)
    assert counts.fixed > 1.1 * counts.broken, counts
