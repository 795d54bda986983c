"""Batch search over designs: strategies, what is searched, and the files in which the result is kept.

A strategy fills a batch of environments with designs and learns from their losses. The same seed and the same losses
give the same designs.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

from autoqec.contracts.env import EnvSpec
from autoqec.errors import UsageError
from autoqec.extensions.continual.environments.design import (
    ActionSpace,
    DesignEnv,
    DesignStepper,
    EnvFeatures,
    PredecoderDraft,
    constant_keys,
)
from autoqec.extensions.continual.environments.multi import (
    AbstractMultiEnvironments,
    HallOfFame,
    Routine,
    SerialEnvironments,
)
from autoqec.extensions.continual.environments.routines import ScreenRoutine, TabularRoutine
from autoqec.store import atomic, files, jsonl

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


EVALUATIONS, HALL_OF_FAME, DESIGNS, FIGURES = "evaluations.jsonl", "hall_of_fame.json", "designs", "figures"


@dataclass(frozen=True)
class SearchProblem:
    """What a strategy searches.

    Attributes:
        template: Draft that every design starts from.
        action_space: Choices that a design is made of.
        routine: Evaluates a design.
    """

    template: PredecoderDraft
    action_space: ActionSpace
    routine: Routine

    @classmethod
    def tabular(cls, env: EnvSpec, table: Path | str) -> SearchProblem:
        """Designs of a table of measured configs; an evaluation is a look-up."""
        routine = TabularRoutine.read(table, env)
        template = PredecoderDraft(EnvFeatures.of(env), constant_keys(routine.configs))
        return cls(template, ActionSpace.of_configs(routine.configs), routine)

    @classmethod
    def screen(cls, env: EnvSpec, routine: ScreenRoutine) -> SearchProblem:
        """Designs of the whole search space; an evaluation is a small training."""
        return cls(PredecoderDraft(EnvFeatures.of(env)), ActionSpace.standard(), routine)

    def environments(self, count: int) -> list[DesignEnv]:
        """Environments of a batch, in which a design may set every key."""
        keys = {assignment.key for assignment in self.action_space.assignments}
        return [DesignEnv(self.template.clone(), max_assignments=len(keys)) for _ in range(count)]


class SearchOutput:
    """Directory with the result of a search; must not exist or be empty.

    `evaluations.jsonl` has one row per evaluation and can be used as the table of another search; the best designs are
    in `hall_of_fame.json`, as config files in `designs/`, and as plots in `figures/`.
    """

    def __init__(self, directory: Path) -> None:
        if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
            raise UsageError("the output directory is not empty", location=str(directory), hint="name a new directory")
        self.directory = directory
        atomic.make_dir(directory)

    def record(self, envs: Sequence[DesignEnv], losses: Sequence[float]) -> None:
        """Append one row per evaluation."""
        for env, loss in zip(envs, losses, strict=True):
            row = {"dsl_config": env.state.config(), **(env.state.last_task_info or {})}
            row["loss"] = loss if math.isfinite(loss) else None
            jsonl.append(self.directory / EVALUATIONS, row)

    def write_best(self, batch: AbstractMultiEnvironments, tasks: Iterable[str]) -> list[dict[str, Any]]:
        """Write the hall of fame of the batch and one set of figures per task.

        Returns:
            The entries of `hall_of_fame.json`, best first.
        """
        assert batch.hall_of_fame is not None
        best, losses = list(batch.hall_of_fame), list(batch.hall_of_fame.losses)
        entries = [_entry(rank, env, loss) for rank, (env, loss) in enumerate(zip(best, losses, strict=True), start=1)]
        atomic.write_json(self.directory / HALL_OF_FAME, entries)
        atomic.make_dir(self.directory / DESIGNS)
        for entry in entries:
            text = files.dump_config(entry["dsl_config"])
            atomic.write_text(
                self.directory / DESIGNS / f"{entry['rank']:02d}-{entry['dsl_config']['type']}.yaml", text
            )
        batch.envs = best
        for task in tasks if best else ():
            mode = {"style": "file", "path": str(self.directory / FIGURES), "task": task}
            batch.render(losses, n_best=len(best), disregarded_percentage=0.0, mode=mode)
        return entries


def _entry(rank: int, env: DesignEnv, loss: float) -> dict[str, Any]:
    info = env.state.last_task_info or {}
    names = ("relative", "relative_low", "relative_high", "val_shots", "n_params", "flops_per_syndrome", "fidelity")
    figures = {name: info[name] for name in names if name in info}
    return {"rank": rank, "loss": loss, **figures, "dsl_config": env.state.config()}
