"""Sampling of environments that are stepped: trajectories of several steps, an agent and a policy gradient for them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import Tensor

from autoqec.extensions.continual.environments.multi import BatchEnv
from autoqec.runner.agents import Agent
from autoqec.runner.algorithms import GradientAlgo, OptInfo
from autoqec.runner.samplers import Sampler
from autoqec.runner.samples import TrajInfos


@dataclass(frozen=True)
class EnvironmentInterface:
    """How a sampler sees and rewards environments.

    Attributes:
        stepper: Passed to `step` of the environments.
        observe: Maps a state to an observation, float [n_inputs].
        valid_actions: Maps a state to a mask over the actions.
        loss: Maps the state at the end of an episode to its loss; not finite means that the episode failed. The reward
            is the negative loss, at the last step; earlier steps have none.
    """

    stepper: Any
    observe: Callable[[Any], Tensor]
    valid_actions: Callable[[Any], Sequence[bool]]
    loss: Callable[[Any], float]


@dataclass(frozen=True, eq=False)
class EnvironmentSamples:
    """A batch of n = steps x environments samples, ordered by step, then by environment.

    Attributes:
        observations: float32 [n, n_inputs].
        valid: Mask over the actions, bool [n, n_actions].
        actions: int64 [n].
        rewards: float32 [n].
        dones: Whether the episode ended with this step, bool [n].
        returns: Discounted sum of the rewards from this step to the end of the episode, float32 [n].
        complete: Whether the episode ended within the batch, so that `returns` is the whole sum, bool [n].
    """

    observations: Tensor
    valid: Tensor
    actions: Tensor
    rewards: Tensor
    dones: Tensor
    returns: Tensor
    complete: Tensor

    def __len__(self) -> int:
        return len(self.actions)

    def __getitem__(self, part: slice) -> EnvironmentSamples:
        return EnvironmentSamples(**{field.name: getattr(self, field.name)[part] for field in fields(self)})


class CategoricalAgent(Agent):
    """A policy over discrete actions.

    Args:
        model: Maps observations [n, n_inputs] to one logit per action [n, n_actions].
    """

    def log_probs(self, observations: Tensor, valid: Tensor) -> Tensor:
        """Return log-probabilities [n, n_actions]; -inf for actions that are not valid."""
        logits: Tensor = self.model(observations.to(self.device))
        return torch.log_softmax(logits.masked_fill(~valid.to(self.device), -math.inf), dim=1)

    def step(self, observations: Tensor, valid: Tensor, generator: torch.Generator | None) -> Tensor:
        """Choose an action [n] per observation: drawn from the policy, or the likeliest without a generator."""
        with torch.no_grad():
            log_probs = self.log_probs(observations, valid).cpu()
        if generator is None:
            return log_probs.argmax(dim=1)
        return torch.multinomial(log_probs.exp(), 1, generator=generator).squeeze(1)


class _Episode:
    """Running statistics of one trajectory."""

    def __init__(self, discount: float) -> None:
        self._discount, self._weight = discount, 1.0
        self.statistics = {"Length": 0.0, "Return": 0.0, "NonzeroRewards": 0.0, "DiscountedReturn": 0.0, "Failed": 0.0}

    def add(self, reward: float, failed: bool) -> None:
        self.statistics["Length"] += 1
        self.statistics["Return"] += reward
        self.statistics["NonzeroRewards"] += reward != 0
        self.statistics["DiscountedReturn"] += self._weight * reward
        self.statistics["Failed"] += failed
        self._weight *= self._discount


class EnvironmentSampler(Sampler):
    """Step several environments and return all their steps; an environment that is done is reset at once.

    Episodes continue from one batch to the next. Statistics per completed trajectory: `Length`, `Return`,
    `NonzeroRewards`, `DiscountedReturn` and `Failed` (1 if the loss was not finite).

    Args:
        envs: The environments.
        interface: How they are observed, stepped and rewarded.
        steps: Steps of each environment per batch; `batch_size` is steps x environments.
        seed: Seed of the actions; each rank has its own stream.
        discount: Discount per step.
        failure_reward: Reward of an episode whose loss is not finite.
    """

    def __init__(
        self,
        envs: Sequence[BatchEnv],
        interface: EnvironmentInterface,
        steps: int,
        seed: int = 0,
        *,
        discount: float = 1.0,
        failure_reward: float = -1.0,
    ) -> None:
        self.envs, self.interface, self.steps, self.seed = list(envs), interface, steps, seed
        self.discount, self.failure_reward = discount, failure_reward
        self.batch_size = steps * len(self.envs)

    def initialize(self, agent: CategoricalAgent, *, rank: int = 0, world_size: int = 1) -> None:
        """Reset the environments and seed the actions of one rank."""
        self.agent, self.rank = agent, rank
        self._generator = torch.Generator().manual_seed(self.train_seed("actions"))
        for env in self.envs:
            env.reset()
        self._episodes = [_Episode(self.discount) for _ in self.envs]

    def train_seed(self, *key: str | int) -> int:
        """Return a seed of this rank, derived from `key`."""
        entropy = [byte for part in key for byte in str(part).encode()]
        return int(np.random.SeedSequence([self.seed, self.rank, *entropy]).generate_state(1, np.uint64)[0] >> 1)

    def obtain_samples(self, itr: int) -> tuple[EnvironmentSamples, TrajInfos]:
        """Step every environment `steps` times."""
        steps: list[tuple[Tensor, ...]] = []
        completed: list[_Episode] = []
        for _ in range(self.steps):
            observations, valid = self._observe(self.envs)
            actions = self.agent.step(observations, valid, self._generator)
            outcomes = [self._step(env, int(action)) for env, action in zip(self.envs, actions, strict=True)]
            rewards, dones, failed = zip(*outcomes, strict=True)
            steps.append((observations, valid, actions, torch.tensor(rewards), torch.tensor(dones)))
            for number, env in enumerate(self.envs):
                self._episodes[number].add(rewards[number], failed[number])
                if dones[number]:
                    completed.append(self._episodes[number])
                    self._episodes[number] = _Episode(self.discount)
                    env.reset()
        return self._batch(steps), _statistics(completed)

    def evaluate_agent(self, itr: int) -> TrajInfos:
        """Run one greedy episode on a copy of each environment; training episodes are not affected."""
        episodes = []
        for original in self.envs:
            env, episode = original.clone(), _Episode(self.discount)
            env.reset()
            while not env.done:
                (action,) = self.agent.step(*self._observe([env]), None)
                reward, _, failed = self._step(env, int(action))
                episode.add(reward, failed)
            episodes.append(episode)
        return _statistics(episodes)

    def _observe(self, envs: Sequence[BatchEnv]) -> tuple[Tensor, Tensor]:
        observations = torch.stack([self.interface.observe(env.state) for env in envs])
        return observations, torch.tensor([list(self.interface.valid_actions(env.state)) for env in envs])

    def _step(self, env: BatchEnv, action: int) -> tuple[float, bool, bool]:
        """Return reward, done, and whether the episode failed."""
        env.step(action, self.interface.stepper)
        if not env.done:
            return 0.0, False, False
        loss = self.interface.loss(env.state)
        return (-loss, True, False) if math.isfinite(loss) else (self.failure_reward, True, True)

    def _batch(self, steps: list[tuple[Tensor, ...]]) -> EnvironmentSamples:
        observations, valid, actions, rewards, dones = (torch.stack(parts) for parts in zip(*steps, strict=True))
        returns, complete = torch.zeros_like(rewards), torch.zeros_like(dones)
        later_return, later_complete = torch.zeros(len(self.envs)), torch.zeros(len(self.envs), dtype=torch.bool)
        for step in reversed(range(self.steps)):
            later_return = rewards[step] + self.discount * later_return * ~dones[step]
            later_complete = dones[step] | later_complete
            returns[step], complete[step] = later_return, later_complete
        flat = (part.flatten(0, 1) for part in (observations, valid, actions, rewards, dones, returns, complete))
        return EnvironmentSamples(*flat)


class EpisodeReinforce(GradientAlgo):
    """REINFORCE on whole episodes, with the batch's mean return as the baseline (doi.org/10.1007/BF00992696).

    Steps of episodes that do not end within the batch are left out. Figures: `entropy` of the policy.

    Args:
        learning_rate: Peak learning rate of Adam.
        entropy_weight: Weight of the entropy bonus.
    """

    warmup_shots = 0

    def __init__(self, *, learning_rate: float, entropy_weight: float = 0.0) -> None:
        super().__init__(learning_rate=learning_rate)
        self.entropy_weight = entropy_weight

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return Adam."""
        return torch.optim.Adam(self.agent.parameters(), lr=self.learning_rate)

    def optimize_agent(self, itr: int, samples: EnvironmentSamples) -> OptInfo:
        """Take one optimizer step on the complete episodes of a batch."""
        self._n_complete = max(1, int(samples.complete.sum()))
        self._baseline = float(samples.returns[samples.complete].sum()) / self._n_complete
        return super().optimize_agent(itr, samples)

    def loss(self, samples: EnvironmentSamples, n: int) -> tuple[Tensor, OptInfo]:
        """Return the surrogate loss whose gradient is the policy gradient."""
        assert isinstance(self.agent, CategoricalAgent)
        log_probs = self.agent.log_probs(samples.observations, samples.valid)
        chosen = log_probs.gather(1, samples.actions.to(log_probs.device)[:, None]).squeeze(1)
        weights = (samples.complete * (samples.returns - self._baseline)).to(chosen) / self._n_complete
        entropy = -(log_probs.exp() * log_probs.clamp(min=-1e9)).sum() / n
        return -(weights * chosen).sum() - self.entropy_weight * entropy, {"entropy": entropy.item()}


def _statistics(episodes: Sequence[_Episode]) -> TrajInfos:
    names = _Episode(1.0).statistics
    return {name: np.array([episode.statistics[name] for episode in episodes]) for name in names}
