"""Ways to spend a budget of evaluations on designs, side by side: random draws, evolution, the policy."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from typing import Any

from autoqec.continual.environments.design import ActionSpace, DesignEnv, DesignStepper, PredecoderDraft
from autoqec.continual.environments.multi import Routine
from autoqec.continual.environments.serial import SerialEnvironments

BATCH_SIZE = 8
POPULATION_SIZE = 12
TOURNAMENT_SIZE = 4

Strategy = Callable[[ActionSpace, DesignEnv, Routine, int, int], list[float]]


def random_search(action_space: ActionSpace, env: DesignEnv, routine: Routine, budget: int, seed: int) -> list[float]:
    """Losses of `budget` designs, each clause drawn evenly from those that may come next."""
    rng = random.Random(seed)
    return [routine(random_design(action_space, env.clone(), rng).state)[0] for _ in range(budget)]


def evolution(action_space: ActionSpace, env: DesignEnv, routine: Routine, budget: int, seed: int) -> list[float]:
    """Regularised evolution (Real et al., AAAI 2019): the best of a sample has a child, the oldest dies."""
    rng = random.Random(seed)
    population: list[tuple[float, PredecoderDraft]] = []
    losses: list[float] = []
    for _ in range(budget):
        if len(population) < POPULATION_SIZE:
            child = random_design(action_space, env.clone(), rng).state
        else:
            parent = min(rng.sample(population, TOURNAMENT_SIZE), key=lambda member: member[0])[1]
            child = mutate(action_space, env, parent, rng)
        loss = routine(child)[0]
        losses.append(loss)
        population = [*population, (loss, child)][-POPULATION_SIZE:]
    return losses


def policy(action_space: ActionSpace, env: DesignEnv, routine: Routine, budget: int, seed: int) -> list[float]:
    """The learner, in batches; its hall of fame is the batch's."""
    from autoqec.continual.environments.policy import PolicyLearner, input_size

    learner = PolicyLearner(action_space, input_size(env, action_space), seed=seed)
    losses: list[float] = []

    def counted(state: Any) -> tuple[float, dict[str, Any]]:
        loss, info = routine(state)
        losses.append(loss)
        return loss, info

    batch = SerialEnvironments([env.clone() for _ in range(min(BATCH_SIZE, budget))], 4)
    while len(losses) < budget:
        del batch.envs[max(budget - len(losses), 0) :]
        learner.train(batch, counted, 1)
    return losses


STRATEGIES: dict[str, Strategy] = {"random": random_search, "evolution": evolution, "policy": policy}


def random_design(action_space: ActionSpace, env: DesignEnv, rng: random.Random) -> DesignEnv:
    """`env` with a design drawn at random."""
    stepper = DesignStepper(action_space)
    env.reset()
    while not env.done:
        valid = [action for action, ok in enumerate(action_space.valid(env.state)) if ok]
        env.step(rng.choice(valid), stepper)
    return env


def mutate(action_space: ActionSpace, env: DesignEnv, parent: PredecoderDraft, rng: random.Random) -> PredecoderDraft:
    """The parent with one clause drawn anew; a new type is a new design."""
    fixed = env.template.choices
    mutable_keys = [key for key in parent.choices if key not in fixed]
    key = rng.choice(mutable_keys)
    if key == "type":
        return random_design(action_space, env.clone(), rng).state
    alternatives = [c for c in action_space.assignments if c.key == key and c.value != parent.choices[key]]
    if not alternatives:
        return random_design(action_space, env.clone(), rng).state
    return PredecoderDraft(parent.features, {**parent.choices, key: rng.choice(alternatives).value})


def compare(
    action_space: ActionSpace, env: DesignEnv, routine: Routine, *, budget: int, seeds: range
) -> dict[str, dict[str, float]]:
    """Best loss within `budget` evaluations, per strategy: mean over seeds and a 95% interval of the mean.

    Every evaluation counts, repeats too. A seed that found nothing finite counts as loss 0: no gain.
    """
    table = {}
    for name, strategy in STRATEGIES.items():
        best = [min(strategy(action_space, env, routine, budget, seed)) for seed in seeds]
        table[name] = mean_with_interval([value if math.isfinite(value) else 0.0 for value in best])
    return table


def mean_with_interval(values: list[float]) -> dict[str, float]:
    """Mean and a normal 95% interval of it; of one value the interval is unbounded and left out."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return {"mean": mean, "n": 1}
    half = 1.96 * statistics.stdev(values) / math.sqrt(len(values))
    return {"mean": mean, "low": mean - half, "high": mean + half, "n": len(values)}
