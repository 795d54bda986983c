"""Training budgets: shots and weighted work, independent of time."""

from __future__ import annotations

from typing import Any

import pytest

from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.profiles import PROFILES
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.errors import UsageError
from autoqec.qec.problem import Problem
from autoqec.runner import samplers
from autoqec.runner.agents import PredecoderAgent
from autoqec.runner.algorithms import MatchingFinetune, SupervisedEdges
from autoqec.runner.evaluate import val_counts
from autoqec.runner.logger import TrainLogger
from autoqec.runner.training import TrainingBudget, can_finetune, phases, train, training_flops
from autoqec.store.layout import RoundLayout

from .conftest import SMALL, make_agent

PROFILE = PROFILES["dev"]


def work_of(problem: Problem, config: dict[str, Any]) -> int:
    return training_flops(compile_predecoder(parse_dsl(config), problem, seed=0), problem.n_detectors)


def test_cheap_network_gets_all_shots_of_the_profile() -> None:
    budget = TrainingBudget.of(PROFILE, parse_dsl(SMALL), flops_per_shot=1000)
    assert budget == TrainingBudget(PROFILE.train_shots, PROFILE.finetune_shots)
    half = parse_dsl({**SMALL, "training": {"finetune_share": 0.5}})
    assert TrainingBudget.of(PROFILE, half, 1000).finetune_shots == PROFILE.finetune_shots // 2
    fourfold = parse_dsl({**SMALL, "training": {"finetune_share": 4}})
    assert TrainingBudget.of(PROFILE, fourfold, 1000) == TrainingBudget(PROFILE.train_shots, 4 * PROFILE.finetune_shots)


def test_expensive_network_gets_fewer_steps_in_both_phases() -> None:
    work = 10**8
    budget = TrainingBudget.of(PROFILE, parse_dsl(SMALL), work)
    spent = (budget.train_shots + budget.finetune_shots) * work
    assert 0.999 * PROFILE.train_gflops * 1e9 < spent <= PROFILE.train_gflops * 1e9
    ratio = PROFILE.finetune_shots / PROFILE.train_shots
    assert budget.finetune_shots / budget.train_shots == pytest.approx(ratio, rel=1e-3)


@pytest.mark.parametrize("work", [1000, 10**8])
def test_fine_tuning_gets_its_ratio_of_the_same_number_of_shots(work: int) -> None:
    default = TrainingBudget.of(PROFILE, parse_dsl(SMALL), work)
    budget = TrainingBudget.of(PROFILE, parse_dsl({**SMALL, "training": {"finetune_ratio": 3.0}}), work)
    total = default.train_shots + default.finetune_shots
    assert budget.train_shots + budget.finetune_shots == pytest.approx(total, abs=2)
    assert budget.finetune_shots == pytest.approx(3 * budget.train_shots, rel=1e-3)
    half = parse_dsl({**SMALL, "training": {"finetune_ratio": 3.0, "finetune_share": 0.5}})
    assert TrainingBudget.of(PROFILE, half, work).finetune_shots == budget.finetune_shots // 2
    without = parse_dsl({**SMALL, "training": {"finetune_ratio": 3.0, "finetune_share": 0.0}})
    assert TrainingBudget.of(PROFILE, without, 1000).train_shots == PROFILE.train_shots


def test_in_sector_detectors_are_hidden_from_labels_alone(problem: Problem) -> None:
    config = {"type": "local", "local": {"inputs": "all_in_finetuning"}}
    budget = TrainingBudget(100, 100)
    labels, near_failure = phases(problem, parse_dsl(config), PROFILE, budget, seed=1)
    assert isinstance(labels.algo, SupervisedEdges) and isinstance(near_failure.algo, MatchingFinetune)
    assert labels.algo.hidden_detectors is not None
    assert set(labels.algo.hidden_detectors) == set(problem.graph.in_sector)
    plain, _ = phases(problem, parse_dsl({"type": "local", "local": {}}), PROFILE, budget, seed=1)
    assert isinstance(plain.algo, SupervisedEdges) and plain.algo.hidden_detectors is None


@pytest.mark.parametrize("more", [{"local": {"inputs": "all_in_finetuning"}}, {"training": {"finetune_ratio": 1.0}}])
def test_options_of_fine_tuning_need_matching(env: EnvSpec, more: dict[str, Any]) -> None:
    graphless = Problem.from_env(env.model_copy(update={"backend": "bposd", "baselines": ("bposd0",)}))
    with pytest.raises(UsageError, match="no fine-tuning through the matching"):
        phases(graphless, parse_dsl({"type": "local", "local": {}, **more}), PROFILE, TrainingBudget(1, 1), seed=1)


def test_training_cost_counts_matrix_flops_and_written_elements(problem: Problem) -> None:
    config = {"type": "mlp", "mlp": {"hidden": 64, "depth": 1, "skip": False}}
    n_in, n_out = len(problem.graph.out_of_sector), problem.graph.n_edges
    matrix = 2 * 64 * (n_in + n_out)
    written = n_in + 64 + 64 + n_out + n_out  # gather, linear, relu, head, prior
    assert work_of(problem, config) == pytest.approx(3 * (matrix + 25 * written), rel=0.05)
    assert work_of(problem, {"type": "gnn", "gnn": {}}) > 10 * work_of(problem, config), "graph layers write a lot"


def test_fine_tuning_needs_a_matching_with_two_separable_classes(problem: Problem, env: EnvSpec) -> None:
    flips = parse_dsl({**SMALL, "output_mode": "hard_flip"})
    assert can_finetune(problem, parse_dsl(SMALL)) and not can_finetune(problem, flips)
    graphless = Problem.from_env(env.model_copy(update={"backend": "bposd", "baselines": ("bposd0",)}))
    assert not can_finetune(graphless, parse_dsl(SMALL))


@pytest.mark.parametrize(("backend", "mode"), [("mwpm", "hard_flip"), ("bposd", "soft_priors")])
def test_every_output_mode_and_backend_trains_and_is_evaluated(
    env: EnvSpec, layout: RoundLayout, backend: str, mode: str
) -> None:
    baselines = ("mwpm",) if backend == "mwpm" else ("bposd0",)
    problem = Problem.from_env(env.model_copy(update={"backend": backend, "baselines": baselines}))
    config = {"type": "mlp", "mlp": {"hidden": 8, "inputs": "all"}, "output_mode": mode, "training": {"batch_size": 64}}
    dsl, agent = parse_dsl(config), make_agent(problem, config=config)
    smoke = PROFILES["smoke"]
    plan = phases(problem, dsl, smoke, TrainingBudget(256, 64), seed=0)
    assert [phase.name for phase in plan] == ["training"]
    logger = TrainLogger(layout)
    assert train(agent, plan, dsl, logger, seed=0) == 256 and len(logger.losses) == 4
    samples, _ = plan[0].sampler.obtain_samples(0)
    assert samples.edges is not None and samples.edges.shape[1] == problem.variables(agent.output_mode).n_edges
    counts = val_counts(problem, agent, 100)
    assert counts.fixed - counts.broken == counts.errors_reference - counts.errors_candidate


def test_fewer_shots_are_drawn_at_once_if_labels_are_wide(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samplers, "MAX_LABEL_BYTES", 100 * problem.graph.n_edges)
    sampler = samplers.EdgeLabelSampler(problem, 30, seed=0)
    sampler.initialize(make_agent(problem))
    assert len(sampler._draw()[0]) == 90


def test_finetune_share_zero_skips_fine_tuning(problem: Problem) -> None:
    for share, names in ((0.0, ["training"]), (0.5, ["training", "finetuning"])):
        dsl = parse_dsl({**SMALL, "training": {"finetune_share": share}})
        model = compile_predecoder(dsl, problem, seed=0)
        agent = PredecoderAgent(model, 1000)
        assert agent.shots_per_pass == 4096
        assert [phase.name for phase in phases(problem, dsl, PROFILE, TrainingBudget(100, 100), 0)] == names
