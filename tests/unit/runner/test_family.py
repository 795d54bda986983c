"""Rounds of a family: circuits take turns in training, and every one of them is validated."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.profiles import PROFILES
from autoqec.decoders import checkpoint, family
from autoqec.decoders.decoding import CheckpointDecoder
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import band_seed, sample
from autoqec.qec.stats import error_mask
from autoqec.runner.family import build_agent
from autoqec.runner.logger import TrainLogger
from autoqec.runner.training import TrainingBudget, phases, train
from autoqec.store.files import dump_config
from autoqec.store.layout import RoundLayout
from tests.support.envs import surface_family
from tests.unit.runner.conftest import Ran, config_for

ENV = surface_family((3, 3), (3, 5), (5, 3))
LOCAL: dict[str, Any] = {
    "type": "local",
    "local": {"hidden": 4, "space": 1, "time": 1},
    "training": {"batch_size": 32, "learning_rate": 0.01},
}


@pytest.fixture(scope="module")
def family_round(tmp_path_factory: pytest.TempPathFactory, quick_smoke: None) -> Ran:
    return Ran(config_for(dump_config(ENV.dump()), tmp_path_factory.mktemp("family") / "round_1", LOCAL))


def test_every_circuit_is_validated(family_round: Ran) -> None:
    metrics = family_round.metrics
    assert metrics.status == "ok", metrics.status_reason
    assert metrics.val_members is not None and metrics.delta_ler is not None
    assert [(each.distance, each.rounds, each.p) for each in metrics.val_members] == [
        (3, 3, 0.01),
        (3, 5, 0.01),
        (5, 3, 0.01),
    ]
    target = metrics.val_members[0].counts
    assert (target.errors_reference, target.errors_candidate) == (
        metrics.val_errors_plain,
        metrics.val_errors_predecoder,
    )
    for each, env in zip(metrics.val_members[1:], ENV.other_members, strict=True):
        problem = Problem.from_env(env)
        shots = sample(problem, each.counts.shots, band_seed(env.seed_policy.val, "val"))
        decoder = CheckpointDecoder.of(ENV, Path(str(metrics.checkpoint_path)), problem.dem)
        wrong = error_mask(decoder.decode(shots.detection_events), shots.observables)
        assert abs(int(wrong.sum()) - each.counts.errors_candidate) <= 1  # rounding may break a tie


def test_dense_networks_are_refused_before_training(tmp_path: Path) -> None:
    ran = Ran(config_for(dump_config(ENV.dump()), tmp_path / "round_1", {"type": "mlp", "mlp": {"hidden": 8}}))
    assert ran.metrics.status == "compile_error" and ran.metrics.train_steps is None
    assert "the env has 3 circuits, and weights of type `mlp` belong to one circuit" in str(ran.metrics.status_reason)


def test_circuits_take_turns_with_one_optimizer(tmp_path: Path) -> None:
    dsl, problem = parse_dsl(LOCAL), Problem.from_env(ENV)
    model = compile_predecoder(dsl, problem, seed=1)
    agent = build_agent(model, dsl, problem)
    plan = phases(problem, dsl, PROFILES["smoke"], TrainingBudget(32 * 9, 64), seed=0)
    assert [phase.name for phase in plan] == ["training", "finetuning"]
    shapes, before = [], torch.cat([each.detach().flatten() for each in model.parameters()])
    obtain = plan[0].sampler.obtain_samples

    def recorded(itr: int) -> Any:
        samples, infos = obtain(itr)
        shapes.append(samples.detections.shape)
        return samples, infos

    plan[0].sampler.obtain_samples = recorded  # type: ignore[method-assign]
    assert train(agent, plan, dsl, TrainLogger(RoundLayout(tmp_path, 1)), 0) == 32 * 9 + 64
    sizes = [Problem.from_env(env).n_detectors for env in (ENV, *ENV.other_members)]
    assert shapes == [(32, size) for size in sizes] * 3
    assert not torch.equal(before, torch.cat([each.detach().flatten() for each in model.parameters()]))
    assert plan[0].algo.optimizer.param_groups[0]["params"][0] is next(iter(model.parameters()))


def test_circuits_have_equal_weight() -> None:
    dsl, problem = parse_dsl(LOCAL), Problem.from_env(ENV)
    agent = build_agent(compile_predecoder(dsl, problem, seed=1), dsl, problem)
    phase = phases(problem, dsl, PROFILES["smoke"], TrainingBudget(96, 0), seed=0)[0]
    phase.sampler.initialize(agent)
    phase.algo.initialize(agent, n_itr=3, batch_size=32)
    losses = [phase.algo.optimize_agent(itr, phase.sampler.obtain_samples(itr)[0])["loss"] for itr in range(3)]
    n_edges = [Problem.from_env(env).graph.n_edges for env in (ENV, *ENV.other_members)]
    assert n_edges[2] > 2 * n_edges[0]
    assert max(losses) < 1.5 * min(losses), "a sum over edges without the weight differs by more than a factor of two"


def test_checkpoint_of_a_family_decodes_every_circuit(family_round: Ran) -> None:
    path = Path(str(family_round.metrics.checkpoint_path))
    for env in ENV.other_members:
        problem = Problem.from_env(env)
        for model in (
            checkpoint.load_for_member(path, problem)[0],
            checkpoint.load_for_other_circuit(path, problem)[0],
        ):
            shots = np.zeros((2, problem.n_detectors), np.float32)
            assert model(torch.from_numpy(shots)).shape == (2, problem.graph.n_edges)
    found = family.evaluate_members(ENV, path, [family.Member(5, 3, 0.01)], shots=200, seed=1)
    assert next(found).trained
