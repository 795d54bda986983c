"""Losses checked by hand, the learning rate schedule, passes of bounded memory, and training through matching."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from autoqec.contracts.dsl import Labels
from autoqec.qec import sampling
from autoqec.qec.logical_classes import LogicalClassMatcher
from autoqec.qec.problem import Problem
from autoqec.runner.agents import PredecoderAgent
from autoqec.runner.algorithms import GradientAlgo, MatchingFinetune, SupervisedEdges
from autoqec.runner.samples import Samples

from .conftest import make_agent


def labelled(problem: Problem, n: int, seed: int = 1) -> Samples:
    drawn = sampling.LabelledSampler(problem, seed).draw(n)
    return Samples(drawn.detections, drawn.observables, drawn.edges)


def perturbed(problem: Problem, seed: int = 2, by: float = 0.1) -> PredecoderAgent:
    """Return an agent whose outputs differ from the priors."""
    agent = make_agent(problem)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        for value in agent.parameters():
            value.data += by * torch.randn_like(value)
    return agent


def ready(algo: GradientAlgo, agent: PredecoderAgent, n_itr: int = 100, batch_size: int = 64) -> Any:
    algo.initialize(agent, n_itr=n_itr, batch_size=batch_size)
    return algo


@pytest.mark.parametrize("variant", ["bce", "focal", "weighted_bce"])
def test_supervised_losses_equal_hand_computed_values(problem: Problem, variant: str) -> None:
    agent, samples = perturbed(problem), labelled(problem, 64)
    algo = ready(SupervisedEdges(learning_rate=1e-3, weight_decay=0.0, loss=variant), agent)
    chance = 1 / (1 + np.exp(-agent.infer(samples.detections).astype(float)))
    assert samples.edges is not None
    of_truth = np.where(samples.edges == 1, chance, 1 - chance)
    weight = {
        "bce": np.ones_like(chance),
        "focal": (1 - of_truth) ** 2,
        "weighted_bce": np.where(samples.edges == 1, 2.0, 1.0),
    }[variant]
    by_hand = -(weight * np.log(of_truth)).sum() / 64
    assert algo.optimize_agent(0, samples)["loss"] == pytest.approx(by_hand, rel=1e-4)


@pytest.mark.parametrize("variant", ["bce", "focal", "weighted_bce"])
def test_loss_of_expected_labels_is_the_mean_over_labels_drawn_from_them(problem: Problem, variant: str) -> None:
    agent, samples = perturbed(problem), labelled(problem, 8)
    expected = np.random.default_rng(3).random((8, problem.graph.n_edges), np.float32)

    def loss(labels: Labels, edges: np.ndarray) -> float:
        algo = ready(SupervisedEdges(learning_rate=1e-3, weight_decay=0.0, loss=variant, labels=labels), agent)
        return float(algo.loss(replace(samples, edges=edges), 8)[0].detach())

    chance = 1 / (1 + np.exp(-agent.infer(samples.detections).astype(float)))
    power, positive = (2 if variant == "focal" else 0), (2 if variant == "weighted_bce" else 1)
    of_one, of_zero = -positive * np.log(chance) * (1 - chance) ** power, -np.log(1 - chance) * chance**power
    by_hand = (expected * of_one + (1 - expected) * of_zero).sum() / 8
    assert loss("expected", expected) == pytest.approx(by_hand, rel=1e-4)
    assert loss("expected", samples.edges) == pytest.approx(loss("sampled", samples.edges), rel=1e-5)


def test_hidden_detectors_are_not_seen(problem: Problem) -> None:
    agent, samples, hidden = perturbed(problem), labelled(problem, 64), problem.graph.out_of_sector[:5]
    silenced = samples.detections.copy()
    silenced[:, hidden] = 0
    losses = [SupervisedEdges(learning_rate=1e-3, weight_decay=0.0, hidden_detectors=each) for each in (None, hidden)]
    seen, unseen = (ready(algo, agent).loss(samples, 64)[0].item() for algo in losses)
    expected, _ = losses[0].loss(Samples(silenced, samples.observables, samples.edges), 64)
    assert unseen == expected.item() != seen
    assert not np.array_equal(samples.detections, silenced), "the caller's samples stay"


def test_matching_loss_equals_hand_computed_values(problem: Problem) -> None:
    agent, samples = perturbed(problem), labelled(problem, 64)
    algo = ready(MatchingFinetune(problem, learning_rate=1e-3), agent)
    z = agent.infer(samples.detections)
    unflipped, flipped = LogicalClassMatcher(problem).match_both_classes(samples.detections, z)
    logit = (-z * (unflipped.astype(float) - flipped)).sum(1)  # weight(calm) - weight(flipped)
    truth = samples.observables[:, 0]
    by_hand = np.logaddexp(0, np.where(truth, -logit, logit)).mean()
    found = algo.optimize_agent(0, samples)
    assert found["loss"] == pytest.approx(by_hand, rel=1e-4)
    assert found["alpha"] == pytest.approx(1.0)
    assert found["wrong"] == pytest.approx(((logit > 0) != truth).mean())
    assert algo.log_alpha.item() != 0, "the scale is learned"


@pytest.mark.parametrize("kind", ["supervised", "matching"])
def test_passes_of_bounded_memory_sum_to_the_full_batch(problem: Problem, kind: str) -> None:
    samples = labelled(problem, 48)
    results = []
    for per_pass in (48, 7):
        agent = perturbed(problem)
        agent.shots_per_pass = per_pass
        algo = (
            SupervisedEdges(learning_rate=1e-3, weight_decay=0.0)
            if kind == "supervised"
            else MatchingFinetune(problem, learning_rate=1e-3)
        )
        info = ready(algo, agent, batch_size=48).optimize_agent(0, samples)
        results.append((info, torch.cat([value.grad.flatten() for value in agent.parameters()])))
    assert results[0][0] == pytest.approx(results[1][0], rel=1e-4)
    assert torch.allclose(results[0][1], results[1][1], atol=1e-5)


def test_pass_size_is_limited_by_the_cost(problem: Problem, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    original = PredecoderAgent.__call__

    def watch(self: PredecoderAgent, detections: np.ndarray) -> torch.Tensor:
        sizes.append(len(detections))
        return original(self, detections)

    monkeypatch.setattr(PredecoderAgent, "__call__", watch)
    model = make_agent(problem).model
    agent = PredecoderAgent(model, flops_per_syndrome=2_000_000)
    whole = labelled(problem, 500)
    agent.infer(whole.detections)
    ready(SupervisedEdges(learning_rate=1e-3, weight_decay=0.0), agent).optimize_agent(0, whole)
    assert max(sizes) <= 50 and sum(sizes) == 1000


def test_pass_has_enough_shots_to_amortize_its_weights(problem: Problem) -> None:
    wide = make_agent(problem, config={"type": "mlp", "mlp": {"hidden": 2048, "depth": 3}})
    weights = sum(value.numel() for value in wide.parameters())
    assert 200 <= wide.shots_per_pass <= 256 < 512, "two flops a weight and shot, 512 of them"
    assert PredecoderAgent(wide.model, 2 * weights).shots_per_pass == 256
    assert PredecoderAgent(make_agent(problem).model, 10**10).shots_per_pass == 8


def test_schedule_warms_up_by_shots_then_follows_a_cosine(agent: PredecoderAgent) -> None:
    algo = ready(SupervisedEdges(learning_rate=1e-2, weight_decay=0.0), agent, n_itr=10_000, batch_size=100)
    factors = [algo.schedule(itr) for itr in range(10_000)]
    assert factors[0] == pytest.approx(0.02, rel=0.01)
    assert factors[250] == pytest.approx(0.52, rel=0.01), "half of 50 000 shots"
    assert max(factors) == pytest.approx(1.0, abs=0.01)
    assert factors[5000] == pytest.approx(0.503) and 0 < factors[-1] < 0.0031
    short = ready(SupervisedEdges(learning_rate=1e-2, weight_decay=0.0), agent, n_itr=100, batch_size=10)
    assert max(short.schedule(itr) for itr in range(100)) > 0.9, "a short training does not drown in warm-up"


def test_training_through_the_matching_generalizes(problem: Problem) -> None:
    agent = perturbed(problem, by=0.2)
    algo = ready(MatchingFinetune(problem, learning_rate=3e-3), agent, n_itr=40)
    unseen = labelled(problem, 512, seed=9)

    def held_out() -> float:
        with torch.no_grad():
            return float(algo.loss(unseen, len(unseen))[0])

    before = held_out()
    stream = labelled(problem, 40 * 64)
    for itr in range(40):
        algo.optimize_agent(itr, stream[slice(itr * 64, itr * 64 + 64)])
    assert held_out() < 0.96 * before


def test_supervised_training_needs_edge_labels(problem: Problem, agent: PredecoderAgent) -> None:
    algo = ready(SupervisedEdges(learning_rate=1e-3, weight_decay=0.0), agent)
    with pytest.raises(ValueError, match="needs samples with `edges`"):
        algo.optimize_agent(0, replace(labelled(problem, 8), edges=None))


def test_replay_buffers_keep_the_probabilities_of_expected_labels(problem: Problem) -> None:
    algo = SupervisedEdges(learning_rate=1e-3, weight_decay=0.0, labels="expected")
    drawn = sampling.LabelledSampler(problem, 1, labels="expected").draw(8)
    fields = Samples(drawn.detections, drawn.observables, drawn.edges).fields()
    widths = {"detections": drawn.detections.shape[1]}
    stored = algo.samples_to_buffer.restore(algo.samples_to_buffer(fields), widths)
    assert np.array_equal(stored["edges"], drawn.edges) and np.array_equal(stored["detections"], drawn.detections)
