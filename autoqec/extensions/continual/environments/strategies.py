"""Search strategies over batches of designs: random draws, evolution, the policy; and their comparison.

A strategy fills a batch of environments with designs and learns from their losses. The same seed and the same losses
give the same designs.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

from autoqec.extensions.continual.environments.design import ActionSpace, DesignEnv, DesignStepper
from autoqec.extensions.continual.environments.hall_of_fame import HallOfFame
from autoqec.extensions.continual.environments.multi import AbstractMultiEnvironments, Routine
from autoqec.extensions.continual.environments.serial import SerialEnvironments

POPULATION_SIZE = 12
TOURNAMENT_SIZE = 4
POLICY_BATCH_SIZE = 8
HALL_OF_FAME_SIZE = 4


class Strategy(Protocol):
    """What fills a batch with designs."""

    batch_size: int

    def propose(self, envs: Sequence[DesignEnv]) -> None:
        """Write one finished design into each environment."""

    def learn(self, envs: Sequence[DesignEnv], losses: Sequence[float], hall_of_fame: HallOfFame | None) -> None:
        """Learn from the losses of the designs."""


class RandomStrategy:
    """Draws every choice uniformly from those that may come next."""

    batch_size = 1

    def __init__(self, action_space: ActionSpace, env: DesignEnv, seed: int) -> None:
        self._stepper, self._rng = DesignStepper(action_space), random.Random(seed)

    def propose(self, envs: Sequence[DesignEnv]) -> None:
        """Write one finished design into each environment."""
        for env in envs:
            draw_design(env, self._stepper, self._rng)

    def learn(self, envs: Sequence[DesignEnv], losses: Sequence[float], hall_of_fame: HallOfFame | None) -> None:
        """Nothing: draws do not depend on losses."""


class EvolutionStrategy:
    """Regularised evolution (Real et al., AAAI 2019): the best of a sample is mutated, the oldest member leaves."""

    batch_size = 1

    def __init__(self, action_space: ActionSpace, env: DesignEnv, seed: int) -> None:
        self._stepper, self._rng = DesignStepper(action_space), random.Random(seed)
        self._population: list[tuple[float, dict[str, Any]]] = []

    def propose(self, envs: Sequence[DesignEnv]) -> None:
        """Write one finished design into each environment."""
        for env in envs:
            if len(self._population) < POPULATION_SIZE:
                draw_design(env, self._stepper, self._rng)
                continue
            rivals = self._rng.sample(self._population, TOURNAMENT_SIZE)
            mutate(env, min(rivals, key=lambda member: member[0])[1], self._stepper, self._rng)

    def learn(self, envs: Sequence[DesignEnv], losses: Sequence[float], hall_of_fame: HallOfFame | None) -> None:
        """Add the designs to the population."""
        members = [(loss, dict(env.state.choices)) for env, loss in zip(envs, losses, strict=True)]
        self._population = [*self._population, *members][-POPULATION_SIZE:]


class PolicyStrategy:
    """The policy gradient learner; it imitates the hall of fame of the batch."""

    batch_size = POLICY_BATCH_SIZE

    def __init__(self, action_space: ActionSpace, env: DesignEnv, seed: int) -> None:
        from autoqec.extensions.continual.environments.policy import PolicyLearner, input_size

        self._learner = PolicyLearner(action_space, input_size(env, action_space), seed=seed)

    def propose(self, envs: Sequence[DesignEnv]) -> None:
        """Write one finished design into each environment."""
        self._learner.design(envs)

    def learn(self, envs: Sequence[DesignEnv], losses: Sequence[float], hall_of_fame: HallOfFame | None) -> None:
        """Take one step of the policy gradient."""
        self._learner.learn(envs, losses, hall_of_fame)


STRATEGIES: dict[str, Callable[[ActionSpace, DesignEnv, int], Strategy]] = {
    "random": RandomStrategy,
    "evolution": EvolutionStrategy,
    "policy": PolicyStrategy,
}


def run_search(
    strategy: Strategy,
    batch: AbstractMultiEnvironments,
    routine: Routine,
    budget: int,
    on_batch: Callable[[Sequence[DesignEnv], Sequence[float]], None] = lambda envs, losses: None,
) -> list[float]:
    """Evaluate designs batch by batch until the budget is spent.

    Args:
        strategy: Proposes designs and learns from their losses.
        batch: DesignEnvs; the last batch is shortened to the rest of the budget.
        routine: Evaluates a design.
        budget: Number of evaluations; a repeated design counts again.
        on_batch: Called with the environments and losses of every batch.

    Returns:
        The losses in the order of evaluation.
    """
    losses: list[float] = []
    while len(losses) < budget:
        del batch.envs[budget - len(losses) :]
        envs = cast(list[DesignEnv], batch.envs)
        strategy.propose(envs)
        batch_losses = batch.get_reward(routine)
        strategy.learn(envs, batch_losses, batch.hall_of_fame)
        on_batch(envs, batch_losses)
        losses += batch_losses
    return losses


def draw_design(env: DesignEnv, stepper: DesignStepper, rng: random.Random) -> None:
    """Write a uniformly drawn design into `env`."""
    env.reset()
    while not env.done:
        valid = [action for action, ok in enumerate(stepper.action_space.valid(env.state)) if ok]
        env.step(rng.choice(valid), stepper)


def mutate(env: DesignEnv, parent: dict[str, Any], stepper: DesignStepper, rng: random.Random) -> None:
    """Write the parent with one choice drawn again into `env`; a new type is a new design."""
    own = {key: value for key, value in parent.items() if key not in env.template.choices}
    key = rng.choice(list(own))
    alternatives = [
        assignment.value
        for assignment in stepper.action_space.assignments
        if assignment.key == key and assignment.value != own[key]
    ]
    if key == "type" or not alternatives:
        draw_design(env, stepper, rng)
    else:
        env.write({**own, key: rng.choice(alternatives)}, stepper)


def compare(
    action_space: ActionSpace, env: DesignEnv, routine: Routine, *, budget: int, seeds: range
) -> dict[str, dict[str, float]]:
    """Best loss within `budget` evaluations per strategy, as a mean over seeds with a 95% interval.

    Every evaluation counts, repeated designs too. A seed without a finite loss counts as loss 0, which is no gain.
    """
    table = {}
    for name, make in STRATEGIES.items():
        best = []
        for seed in seeds:
            strategy = make(action_space, env, seed)
            n_envs = min(strategy.batch_size, budget)
            batch = SerialEnvironments([env.clone() for _ in range(n_envs)], HALL_OF_FAME_SIZE)
            best.append(min(run_search(strategy, batch, routine, budget)))
        table[name] = mean_with_interval([value if math.isfinite(value) else 0.0 for value in best])
    return table


def mean_with_interval(values: list[float]) -> dict[str, float]:
    """Return the mean with its normal 95% interval; a single value has no interval."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return {"mean": mean, "n": 1}
    half = 1.96 * statistics.stdev(values) / math.sqrt(len(values))
    return {"mean": mean, "low": mean - half, "high": mean + half, "n": len(values)}
