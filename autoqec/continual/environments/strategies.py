"""Ways to spend a budget of evaluations on designs, side by side: random draws, evolution, the policy."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable
from typing import Any

from autoqec.continual.environments.design import ClauseLibrary, ClauseStepper, DesignEnv, PredecoderDraft
from autoqec.continual.environments.multi import Routine
from autoqec.continual.environments.serial import SerialEnvironments

BATCH = 8
POPULATION = 12
SAMPLE = 4

Strategy = Callable[[ClauseLibrary, DesignEnv, Routine, int, int], list[float]]


def random_search(library: ClauseLibrary, env: DesignEnv, routine: Routine, budget: int, seed: int) -> list[float]:
    """Losses of `budget` designs, each clause drawn evenly from those that may come next."""
    rng = random.Random(seed)
    return [routine(drawn(library, env.clone(), rng).state)[0] for _ in range(budget)]


def evolution(library: ClauseLibrary, env: DesignEnv, routine: Routine, budget: int, seed: int) -> list[float]:
    """Regularised evolution (Real et al., AAAI 2019): the best of a sample has a child, the oldest dies."""
    rng = random.Random(seed)
    population: list[tuple[float, PredecoderDraft]] = []
    losses: list[float] = []
    for _ in range(budget):
        if len(population) < POPULATION:
            child = drawn(library, env.clone(), rng).state
        else:
            parent = min(rng.sample(population, SAMPLE), key=lambda member: member[0])[1]
            child = mutant(library, env, parent, rng)
        loss = routine(child)[0]
        losses.append(loss)
        population = [*population, (loss, child)][-POPULATION:]
    return losses


def policy(library: ClauseLibrary, env: DesignEnv, routine: Routine, budget: int, seed: int) -> list[float]:
    """The learner, in batches; its hall of fame is the batch's."""
    from autoqec.continual.environments.policy import PolicyLearner, input_size

    learner = PolicyLearner(library, input_size(env, library), seed=seed)
    losses: list[float] = []

    def counted(state: Any) -> tuple[float, dict[str, Any]]:
        loss, info = routine(state)
        losses.append(loss)
        return loss, info

    batch = SerialEnvironments([env.clone() for _ in range(min(BATCH, budget))], 4)
    while len(losses) < budget:
        del batch.envs[max(budget - len(losses), 0) :]
        learner.train(batch, counted, 1)
    return losses


STRATEGIES: dict[str, Strategy] = {"random": random_search, "evolution": evolution, "policy": policy}


def drawn(library: ClauseLibrary, env: DesignEnv, rng: random.Random) -> DesignEnv:
    """`env` with a design drawn at random."""
    stepper = ClauseStepper(library)
    env.reset()
    while not env.done:
        valid = [action for action, ok in enumerate(library.valid(env.state)) if ok]
        env.step(rng.choice(valid), stepper)
    return env


def mutant(library: ClauseLibrary, env: DesignEnv, parent: PredecoderDraft, rng: random.Random) -> PredecoderDraft:
    """The parent with one clause drawn anew; a new type is a new design."""
    fixed = env.template.choices
    own = [key for key in parent.choices if key not in fixed]
    key = rng.choice(own)
    if key == "type":
        return drawn(library, env.clone(), rng).state
    rivals = [c for c in library.clauses if c.key == key and c.value != parent.choices[key]]
    if not rivals:
        return drawn(library, env.clone(), rng).state
    return PredecoderDraft(parent.facts, {**parent.choices, key: rng.choice(rivals).value})


def compare(
    library: ClauseLibrary, env: DesignEnv, routine: Routine, *, budget: int, seeds: range
) -> dict[str, dict[str, float]]:
    """Best loss within `budget` evaluations, per strategy: mean over seeds and a 95% interval of the mean.

    Every evaluation counts, repeats too. A seed that found nothing finite counts as loss 0: no gain.
    """
    table = {}
    for name, strategy in STRATEGIES.items():
        best = [min(strategy(library, env, routine, budget, seed)) for seed in seeds]
        table[name] = interval([value if math.isfinite(value) else 0.0 for value in best])
    return table


def interval(values: list[float]) -> dict[str, float]:
    """Mean and a normal 95% interval of it; of one value the interval is unbounded and left out."""
    mean = statistics.fmean(values)
    if len(values) < 2:
        return {"mean": mean, "n": 1}
    half = 1.96 * statistics.stdev(values) / math.sqrt(len(values))
    return {"mean": mean, "low": mean - half, "high": mean + half, "n": len(values)}
