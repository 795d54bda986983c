"""Samplers: seed bands, order of shots, and near-failure selection."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autoqec.contracts.env import EnvSpec
from autoqec.contracts.round import PairedCounts
from autoqec.errors import RoundError
from autoqec.qec import backends, sampling
from autoqec.qec.problem import Problem
from autoqec.runner import evaluate, samplers
from autoqec.runner.agents import PredecoderAgent
from autoqec.runner.samplers import EdgeLabelSampler, NearFailureSampler

from .conftest import make_agent


@pytest.fixture
def seeds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Record every seed from which shots are drawn."""
    used: list[int] = []
    sample, labelled = sampling.sample, sampling.LabelledSampler

    def spy_sample(problem: Problem, n: int, seed: int) -> Any:
        used.append(seed)
        return sample(problem, n, seed)

    def spy_labelled(problem: Problem, seed: int, *more: Any) -> Any:
        used.append(seed)
        return labelled(problem, seed, *more)

    monkeypatch.setattr(sampling, "sample", spy_sample)
    monkeypatch.setattr(sampling, "LabelledSampler", spy_labelled)
    return used


def test_training_seeds_lie_in_the_train_band_and_differ_by_seed_sampler_and_rank(
    env: EnvSpec, agent: PredecoderAgent, seeds: list[int]
) -> None:
    policy = env.seed_policy.model_copy(update={"train": (500, 900)})
    narrow = Problem.from_env(env.model_copy(update={"seed_policy": policy}))
    for seed in (0, 1):
        for rank in (0, 1):
            for sampler in (EdgeLabelSampler(narrow, 32, seed), NearFailureSampler(narrow, 32, seed, gap=6.0)):
                sampler.initialize(agent, rank=rank, world_size=2)
                sampler.obtain_samples(0)
    assert len(seeds) == 8 == len(set(seeds))
    assert all(500 <= seed <= 900 for seed in seeds)


def test_evaluation_uses_the_same_val_shots_every_time(
    problem: Problem, agent: PredecoderAgent, seeds: list[int]
) -> None:
    sampler = EdgeLabelSampler(problem, 32, seed=3, eval_shots=300)
    sampler.initialize(agent)
    seeds.clear()
    first, second = sampler.evaluate_agent(0), sampler.evaluate_agent(9)
    low, high = problem.env.seed_policy.val
    assert len(set(seeds)) == 1 and low <= seeds[0] <= high
    for name in ("PlainFail", "PredecoderFail"):
        assert np.array_equal(first[name], second[name]) and len(first[name]) == 300


def test_batches_return_every_drawn_shot_once_in_order(
    problem: Problem, agent: PredecoderAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samplers, "NEAR_FAILURE_SHOTS_PER_DRAW", 2048)
    sampler = NearFailureSampler(problem, 50, seed=3, gap=6.0)
    sampler.initialize(agent)
    drawn: list[np.ndarray] = []
    original = NearFailureSampler._draw

    def keep(self: NearFailureSampler) -> Any:
        fresh, infos = original(self)
        drawn.append(fresh.detections)
        return fresh, infos

    monkeypatch.setattr(NearFailureSampler, "_draw", keep)
    got = np.concatenate([sampler.obtain_samples(itr)[0].detections for itr in range(60)])
    assert len(drawn) >= 3, "batches run across draws"
    assert np.array_equal(got, np.concatenate(drawn)[: len(got)])
    samples, infos = sampler.obtain_samples(60)
    assert len(samples) == 50 == len(infos["Gap"]) == len(infos["PlainFail"])


def test_near_failure_shots_have_a_small_gap(problem: Problem, agent: PredecoderAgent) -> None:
    sampler = NearFailureSampler(problem, 1000, seed=3, gap=4.0)
    sampler.initialize(agent)
    samples, infos = sampler.obtain_samples(0)
    assert infos["Gap"].max() < 4.0
    plain = backends.make_backend("mwpm", problem).decode(sampling.pack(samples.detections))
    failed = (plain != samples.observables)[:, 0]
    assert (failed == infos["PlainFail"])[infos["Gap"] > 1e-2].all()
    everywhere = sampling.sample(problem, 20_000, seed=1)
    rate = (backends.make_backend("mwpm", problem).decode(everywhere.detection_events) != everywhere.observables).mean()
    assert failed.mean() > 1.5 * rate


def test_without_shots_near_failure_the_error_names_the_option(
    problem: Problem, agent: PredecoderAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(samplers, "NEAR_FAILURE_SHOTS_PER_DRAW", 128)
    sampler = NearFailureSampler(problem, 32, seed=3, gap=1e-9)
    sampler.initialize(agent)
    sampler._class_matcher.complementary_gap = lambda detections, cap: np.full(len(detections), 1.0)  # type: ignore[method-assign]
    with pytest.raises(RoundError, match="finetune_gap"):
        sampler.obtain_samples(0)


def test_val_counts_are_paired_and_bounded_in_memory(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    largest = 0
    original = sampling.unpack

    def watch(packed: np.ndarray, n_bits: int) -> np.ndarray:
        nonlocal largest
        largest = max(largest, len(packed) if n_bits == problem.n_detectors else 0)
        return original(packed, n_bits)

    agent = make_agent(problem)
    with_bias = agent.model.body.head.bias.data
    with_bias += 2.0 * (problem_edges_flipping(problem) - 0.5)
    progress: list[tuple[PairedCounts, int]] = []
    whole = evaluate.val_counts(problem, agent, 2500, lambda counts, total: progress.append((counts, total)))
    assert whole.fixed - whole.broken == whole.errors_reference - whole.errors_candidate
    assert whole.fixed + whole.broken > 0
    monkeypatch.setattr(evaluate, "CHUNK", 100)
    monkeypatch.setattr(evaluate.sampling, "unpack", watch)
    assert evaluate.val_counts(problem, agent, 2500) == whole
    assert largest == 100
    assert [counts.shots for counts, _ in progress] == [2048, 2500]
    assert progress[-1] == (whole, 2500)


def problem_edges_flipping(problem: Problem) -> Any:
    import torch

    return torch.from_numpy(problem.graph.observables[:, 0].astype(np.float32))
