"""A policy that writes designs step by step, trained by a risk-seeking policy gradient.

Only the best share of a batch is used, weighted relative to its worst member, and the hall of fame is imitated: a
search needs one excellent design, not a good average.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn

from autoqec.extensions.continual.environments.design import (
    ActionSpace,
    DesignEnv,
    DesignStepper,
    ExplicitObserver,
    FlatTensorizer,
)
from autoqec.extensions.continual.environments.multi import (
    AbstractMultiEnvironments,
    HallOfFame,
    Routine,
    SerialEnvironments,
)


@dataclass(frozen=True)
class DesignPolicyConfig:
    """Hyper-parameters of the policy.

    Attributes:
        hidden: Width of the network.
        learning_rate: Of Adam.
        entropy: Weight of the entropy bonus.
        elite_fraction: Share of a batch that is learned from.
        imitation_weight: Weight of the designs of the hall of fame.
    """

    hidden: int = 64
    learning_rate: float = 1e-2
    entropy: float = 0.02
    elite_fraction: float = 0.25
    imitation_weight: float = 0.5


class PolicyNet(nn.Module):
    """Maps an observation to one logit per action."""

    def __init__(self, inputs: int, outputs: int, hidden: int) -> None:
        super().__init__()
        last = nn.Linear(hidden, outputs)
        nn.init.zeros_(last.weight)  # the first designs are drawn uniformly
        nn.init.zeros_(last.bias)
        self.body = nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), last)

    def forward(self, observations: Tensor) -> Tensor:
        """Logits [rows, actions] of observations [rows, inputs]."""
        out: Tensor = self.body(observations)
        return out


@dataclass(frozen=True, eq=False)
class Trajectories:
    """All steps of some designs: observations [steps, inputs], valid [steps, actions], the rest [steps]."""

    observations: Tensor
    valid: Tensor
    actions: Tensor
    design_indices: Tensor
    n_designs: int


@dataclass(frozen=True, eq=False)
class EliteBatch:
    """The best designs of a batch, their weights [designs], and the best loss."""

    trajectories: Trajectories
    weights: Tensor
    best: float


class PolicyLearner:
    """Draws designs and learns from their losses. Equal seeds and losses give equal designs."""

    def __init__(
        self, action_space: ActionSpace, n_inputs: int, *, seed: int, config: DesignPolicyConfig | None = None
    ) -> None:
        self.action_space, self.config = action_space, config or DesignPolicyConfig()
        self.stepper, self.observer, self.tensorizer = (
            DesignStepper(action_space),
            ExplicitObserver(action_space),
            FlatTensorizer(),
        )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.net = PolicyNet(n_inputs, len(action_space), self.config.hidden)
        self._rng = torch.Generator().manual_seed(seed)
        self._optimizer = torch.optim.Adam(self.net.parameters(), lr=self.config.learning_rate)

    def design(self, envs: Sequence[DesignEnv]) -> None:
        """Write one drawn design into each environment, which records the actions."""
        SerialEnvironments(envs, 0).reset()
        while unfinished := [env for env in envs if not env.done]:
            batch = SerialEnvironments(unfinished, 0)
            valid = torch.tensor([self.action_space.valid(state) for state in batch.gather()])
            with torch.no_grad():
                probabilities = self._log_probs(batch.observe(self.observer, self.tensorizer), valid).exp()
            actions_drawn = torch.multinomial(probabilities, 1, generator=self._rng).squeeze(1).tolist()
            batch.step(actions_drawn, self.stepper)

    def learn(
        self, envs: Sequence[DesignEnv], losses: Sequence[float], hall_of_fame: HallOfFame | None = None
    ) -> float:
        """Take one step on finished designs; returns the best loss of the batch, +inf if none is finite."""
        elite_batch = self.elite_batch(envs, losses)
        if elite_batch is None:
            return math.inf
        self.apply(
            elite_batch, self.read(list(hall_of_fame)) if hall_of_fame is not None and len(hall_of_fame) else None
        )
        return elite_batch.best

    def elite_batch(self, envs: Sequence[DesignEnv], losses: Sequence[float]) -> EliteBatch | None:
        """Return the best share of finished designs; None if no loss is finite."""
        finite = sorted((loss, place) for place, loss in enumerate(losses) if math.isfinite(loss))
        if not finite:
            return None
        best = finite[: max(1, math.ceil(self.config.elite_fraction * len(losses)))]
        worst = best[-1][0]
        spread = worst - best[0][0]
        # A single design, or designs with equal losses, have full weight.
        weights = torch.tensor([(worst - loss) / spread if spread else 1.0 for loss, _ in best])
        return EliteBatch(self.read([envs[place] for _, place in best]), weights, best[0][0])

    def apply(self, elite_batch: EliteBatch, imitation_trajectories: Trajectories | None = None) -> None:
        """Take one step of the optimizer."""
        log_probs, entropy = self.score(elite_batch.trajectories)
        objective = (elite_batch.weights * log_probs).mean() + self.config.entropy * entropy
        if imitation_trajectories is not None:
            objective = objective + self.config.imitation_weight * self.score(imitation_trajectories)[0].mean()
        self._optimizer.zero_grad()
        (-objective).backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()

    def train(self, batch: AbstractMultiEnvironments, routine: Routine, rounds: int) -> list[float]:
        """Draw, evaluate and learn `rounds` times on a batch of DesignEnvs; returns the best loss of each batch."""
        envs = cast(list[DesignEnv], batch.envs)
        best = []
        for _ in range(rounds):
            self.design(envs)
            best.append(self.learn(envs, batch.get_reward(routine), batch.hall_of_fame))
        return best

    def read(self, envs: Sequence[DesignEnv]) -> Trajectories:
        """Replay finished designs to collect the observation and the valid actions of each step."""
        observations, valid, actions, design_indices = [], [], [], []
        for place, env in enumerate(envs):
            replayed = env.clone()
            replayed.reset()
            for action in env.actions:
                observations.append(self.tensorizer.tensorize(self.observer.observe(replayed.state)))
                valid.append(torch.tensor(self.action_space.valid(replayed.state)))
                actions.append(action)
                design_indices.append(place)
                replayed.step(action, self.stepper)
        return Trajectories(
            torch.stack(observations),
            torch.stack(valid),
            torch.tensor(actions),
            torch.tensor(design_indices),
            len(envs),
        )

    def score(self, trajectories: Trajectories) -> tuple[Tensor, Tensor]:
        """Log probability of each design [designs], and the mean entropy over its steps."""
        rows = self._log_probs(trajectories.observations, trajectories.valid)
        log_probs_of_actions = rows.gather(1, trajectories.actions[:, None]).squeeze(1)
        total = torch.zeros(trajectories.n_designs).index_add(0, trajectories.design_indices, log_probs_of_actions)
        entropy = -(rows.exp() * rows.masked_fill(~trajectories.valid, 0.0)).sum(1).mean()
        return total, entropy

    def _log_probs(self, observations: Tensor, valid: Tensor) -> Tensor:
        """Log probability of each action [rows, actions]; -inf for one that may not come next."""
        return torch.log_softmax(self.net(observations).masked_fill(~valid, -math.inf), dim=1)


def input_size(env: DesignEnv, action_space: ActionSpace) -> int:
    """Length of the observation vector of an environment."""
    observed: dict[str, Any] = ExplicitObserver(action_space).observe(env.state)
    return sum(map(len, observed.values()))
