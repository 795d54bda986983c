"""Policy gradient for hard_flip predecoders: a sampler that acts and decodes, and a REINFORCE algorithm.

A trajectory is one shot. The policy flips each error mechanism independently with probability sigmoid(z / temperature),
z being the network's log-odds. The reward is success with the flips minus success without them: the baseline's result
on the same shot is the control variate of REINFORCE (https://doi.org/10.1007/BF00992696). The cost of the flips is
differentiated exactly, as cost times the sum of the probabilities.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from autoqec.contracts.dsl import TrainingConfig
from autoqec.errors import UsageError
from autoqec.qec import backends, sampling
from autoqec.qec.problem import Problem
from autoqec.runner.agents import PredecoderAgent
from autoqec.runner.algorithms import GradientAlgo, OptInfo
from autoqec.runner.round_memory import SHOTS_PER_DRAW
from autoqec.runner.samplers import NearFailureSampler, ShotSampler
from autoqec.runner.samples import GAP, FieldSelection, Samples, TrajInfos

MAX_IMPORTANCE_WEIGHT = 2.0  # bound on the likelihood ratio of an action of older parameters


def finetuning(
    problem: Problem, training: TrainingConfig, seed: int, **shots: Any
) -> tuple[PolicySampler, PolicyGradient]:
    """Return sampler and algorithm of fine-tuning by reward: the entry point of a config with `policy_gradient`.

    Args:
        problem: The circuit.
        training: The config; its block `policy_gradient` is present.
        seed: Seed of the training.
        shots: Keyword arguments of `ShotSampler`.
    """
    assert training.policy_gradient is not None
    reward = training.policy_gradient.dump()
    sampler = PolicySampler(problem, training.batch_size, seed, gap=training.finetune_gap, **shots, **reward)
    return sampler, PolicyGradient(learning_rate=training.finetune_learning_rate, **reward)


class PlainSampler(ShotSampler):
    """Shots of the circuit without selection or statistics."""

    _draws = 0

    def _draw(self) -> tuple[Samples, TrajInfos]:
        shots = self.source.training(SHOTS_PER_DRAW, self.train_seed(self._draws))
        self._draws += 1
        return Samples(sampling.unpack(shots.detection_events, self.problem.n_detectors), shots.observables), {}


class PolicySampler(ShotSampler):
    """Acts on shots and decodes them with and without the flips.

    Shots have a complementary gap below `gap` nats if the problem has two logical classes, else they are not selected.
    Statistics: `Return` (reward minus cost), `Flips`, `PlainFail`, `PredecoderFail`, `Detections`, `Residual`
    (detection events left by the flips), and `Gap` where it is known. Online statistics are of the exploring policy,
    offline ones of the predecoder in use, which flips where z > 0.
    """

    def __init__(
        self,
        problem: Problem,
        batch_size: int,
        seed: int,
        *,
        gap: float,
        flip_cost: float,
        temperature: float,
        **more: Any,
    ) -> None:
        super().__init__(problem, batch_size, seed, **more)
        self.flip_cost, self.temperature = flip_cost, temperature
        self._plain = backends.make_backend(problem.env.backend, problem)
        self._flipper = backends.HardFlipBackend(problem, self._plain)
        try:
            self.shots: ShotSampler = NearFailureSampler(problem, batch_size, seed, gap=gap, **more)
        except UsageError:  # the problem has no matching graph, or several observables
            self.shots = PlainSampler(problem, batch_size, seed, **more)

    def initialize(self, agent: PredecoderAgent, *, rank: int = 0, world_size: int = 1) -> None:
        """Set up the source of shots and the random stream of actions for one rank."""
        super().initialize(agent, rank=rank, world_size=world_size)
        self.shots.initialize(agent, rank=rank, world_size=world_size)
        self._rng = np.random.default_rng(self.train_seed("actions"))

    def obtain_samples(self, itr: int) -> tuple[Samples, TrajInfos]:
        """Draw a batch, act on it and decode it."""
        shots, known = self.shots.obtain_samples(itr)
        assert shots.observables is not None
        logits = self.agent.infer(shots.detections) / self.temperature
        flip_prob = 1 / (1 + np.exp(-np.clip(logits, -60, 60)))
        flips = self._rng.random(flip_prob.shape, dtype=np.float32) < flip_prob
        packed = sampling.pack(shots.detections)
        cleaned, frame = self._flipper.apply(packed, flips)
        failed = ((self._plain.decode(cleaned) ^ frame) != shots.observables).any(axis=1)
        plain = (self._plain.decode(packed) != shots.observables).any(axis=1)
        reward = plain.astype(np.float32) - failed
        count = flips.sum(1, dtype=np.int32)
        samples = Samples(
            shots.detections,
            flips=flips.astype(np.uint8),
            rewards=reward,
            log_probs=flip_log_prob(torch.from_numpy(logits), torch.from_numpy(flips)).numpy(),
        )
        return samples, {
            "Return": reward - np.float32(self.flip_cost) * count,
            "Flips": count,
            "PlainFail": plain,
            "PredecoderFail": failed,
            "Detections": shots.detections.sum(1, dtype=np.int32),
            "Residual": np.bitwise_count(cleaned).sum(1, dtype=np.int32),
            **{name: values for name, values in known.items() if name == GAP},
        }

    def shutdown(self) -> None:
        """Release the shots drawn ahead."""
        self.shots.shutdown()

    def _draw(self) -> tuple[Samples, TrajInfos]:
        raise NotImplementedError("shots come from `shots`")


class PolicyGradient(GradientAlgo):
    """REINFORCE with the paired reward; actions of older parameters are weighted by min(2, likelihood ratio).

    Figures: `weight`, the mean weight of the actions, and `expected_flips` per shot under the policy.
    """

    agent: PredecoderAgent
    warmup_shots = 2_000
    samples_to_buffer = FieldSelection(("detections", "flips", "rewards", "log_probs"), bits=("detections", "flips"))

    def __init__(self, *, learning_rate: float, flip_cost: float, temperature: float) -> None:
        super().__init__(learning_rate=learning_rate)
        self.flip_cost, self.temperature = flip_cost, temperature

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(self.agent.parameters(), lr=self.learning_rate, betas=(0.9, 0.99), fused=True)

    def loss(self, samples: Samples, n: int) -> tuple[Tensor, OptInfo]:
        """Return the surrogate loss whose gradient is the policy gradient plus the gradient of the expected cost."""
        if samples.flips is None or samples.rewards is None or samples.log_probs is None:
            raise ValueError("PolicyGradient needs samples with `flips`, `rewards` and `log_probs`")
        logits = self.agent(samples.detections) / self.temperature
        log_probs = flip_log_prob(logits, torch.from_numpy(samples.flips).to(logits))
        behavior_log_probs = torch.from_numpy(samples.log_probs).to(logits)
        weight = (log_probs.detach() - behavior_log_probs).clamp(max=math.log(MAX_IMPORTANCE_WEIGHT)).exp()
        weighted_reward = (weight * torch.from_numpy(samples.rewards).to(logits) * log_probs).sum() / n
        expected = torch.sigmoid(logits).sum() / n
        figures = {"weight": float(weight.sum()) / n, "expected_flips": expected.item()}
        return self.flip_cost * expected - weighted_reward, figures


def flip_log_prob(logits: Tensor, flips: Tensor) -> Tensor:
    """Return the log-probability [n] of `flips` [n, n_faults] under independent flips with these logits."""
    return -F.binary_cross_entropy_with_logits(logits, flips.to(logits), reduction="none").sum(1)
