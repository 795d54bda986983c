"""Batch search over predecoder designs: what is searched, and the files in which its result is kept."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoqec.contracts.env import EnvSpec
from autoqec.errors import UsageError
from autoqec.extensions.continual.environments.design import (
    ActionSpace,
    DesignEnv,
    EnvFeatures,
    PredecoderDraft,
    constant_keys,
)
from autoqec.extensions.continual.environments.multi import AbstractMultiEnvironments, Routine
from autoqec.extensions.continual.environments.routines import ScreenRoutine, TabularRoutine
from autoqec.store import atomic, files, jsonl

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
