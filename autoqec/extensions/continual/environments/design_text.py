"""DesignTextEnv: predecoder design as a text task of several proposals, each evaluated before the next."""

from __future__ import annotations

import json
import logging
import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from autoqec.contracts.base import Contract
from autoqec.contracts.profiles import ProfileName
from autoqec.errors import AutoqecError, UsageError
from autoqec.extensions.continual.environments.base import (
    EnvDataset,
    EnvDatasetConfig,
    Environment,
    Step,
    episode_done_error,
)
from autoqec.extensions.continual.environments.design import (
    ActionSpace,
    EnvFeatures,
    PredecoderDraft,
    applies_to_family,
    constant_keys,
)
from autoqec.extensions.continual.environments.multi import HallOfFame
from autoqec.extensions.continual.environments.routines import (
    RoundRoutine,
    RoutineResult,
    ScreenRoutine,
    TabularRoutine,
    score_of_loss,
)
from autoqec.ideators.space import Config
from autoqec.store import files

Routine = Callable[[PredecoderDraft], RoutineResult]
RoundRunner = Callable[[str, ProfileName, Config], Mapping[str, Any]]
_OBJECT = re.compile(r"\{.*\}", re.DOTALL)


class DesignTextEnv(Environment):
    """Takes `n_proposals` steps; each action is a JSON object of dotted keys, e.g. {"type": "mlp", "mlp.hidden": 128}.

    The score of a step is `score_of_loss` of its proposal; `correct` means that the interval of its gain lies above 0.
    A proposal that cannot be read or built scores 0 with the reason, and the episode continues.
    """

    env_type: ClassVar[str] = "design"

    def __init__(
        self,
        template: PredecoderDraft,
        action_space: ActionSpace,
        routine: Routine,
        *,
        n_proposals: int = 3,
        best: float | None = None,
        env_id: str | None = None,
    ) -> None:
        self.template, self.action_space, self.routine = template, action_space, routine
        self.n_proposals, self.best = n_proposals, best
        self.env_id = env_id or f"design_{template.features.name}"
        self._proposal_log: list[str] | None = None

    def reset(self) -> str:
        """Start an episode and return its first observation."""
        self._proposal_log = []
        return self._observation()

    def step(self, action: str) -> Step:
        """Evaluate one proposal."""
        if self._proposal_log is None or len(self._proposal_log) >= self.n_proposals:
            raise episode_done_error(self)
        feedback, info = self._evaluate_action(action)
        self._proposal_log.append(f"{len(self._proposal_log) + 1}. {feedback['message']}")
        done = len(self._proposal_log) == self.n_proposals
        return None if done else self._observation(), feedback, done, info

    def evaluate(self, action: str) -> dict[str, Any]:
        """Return the feedback on a proposal."""
        return self._evaluate_action(action)[0]

    def _evaluate_action(self, action: str) -> tuple[dict[str, Any], dict[str, Any]]:
        target = "" if self.best is None else f"{score_of_loss(self.best):.4f}"
        try:
            draft = parse_proposal(action, self.action_space, self.template)
            loss, info = self.routine(draft)
        except AutoqecError as error:
            return {"correct": False, "target": target, "message": f"refused: {error}", "score": 0.0}, {}
        if not math.isfinite(loss):
            message = f"failed: {info.get('status_reason') or info.get('status')}"
            return {"correct": False, "target": target, "message": message, "score": 0.0}, {
                "signature": draft.signature
            }
        figures = {name: info[name] for name in ("relative", "relative_low", "n_params") if info.get(name) is not None}
        own = {key: value for key, value in draft.choices.items() if key not in self.template.choices}
        message = f"{format_choices(own)}: relative gain {info['relative']:+.4f}, surely {info['relative_low']:+.4f}"
        feedback = {
            "correct": info["relative_low"] > 0,
            "target": target,
            "message": message,
            "extra": {"loss": loss, **figures},
            "score": score_of_loss(loss),
        }
        return feedback, {"signature": draft.signature, "fidelity": info.get("fidelity")}

    def _observation(self) -> str:
        return format_observation(self.template.features, self.action_space, self._proposal_log or [], self.n_proposals)


def parse_proposal(action: str, action_space: ActionSpace, template: PredecoderDraft) -> PredecoderDraft:
    """Parse a reply into a draft. UsageError for a reply without a proposal, or with a value that is not offered."""
    match = _OBJECT.search(action)
    try:
        proposal = json.loads(match[0]) if match else None
    except ValueError as error:
        raise UsageError(f"the proposal is not JSON: {error}", location="proposal") from error
    if not isinstance(proposal, dict):
        raise UsageError("the answer contains no JSON object", location="proposal")
    if "type" not in proposal:
        raise UsageError("the proposal has no `type`", location="proposal")
    allowed = {
        (assignment.key, json.dumps(assignment.value)) for assignment in action_space.assignments if assignment.key
    }
    for key, value in proposal.items():
        if (key, json.dumps(value)) not in allowed:
            values = [assignment.value for assignment in action_space.assignments if assignment.key == key]
            known = f"one of {values}" if values else f"keys: {', '.join(settable_keys(action_space))}"
            raise UsageError(f"`{key}` = {value!r} is not offered", location="proposal", hint=known)
        if not applies_to_family(key, str(proposal["type"])):
            raise UsageError(f"`{key}` does not apply to type {proposal['type']!r}", location="proposal")
    return PredecoderDraft(template.features, {**template.choices, **proposal})


def format_observation(
    features: EnvFeatures, action_space: ActionSpace, previous: Sequence[str], n_proposals: int
) -> str:
    """Return the observation before a proposal; `previous` has one line per earlier proposal."""
    offered = [
        f"- {key}: "
        f"{', '.join(json.dumps(assignment.value) for assignment in action_space.assignments if assignment.key == key)}"
        for key in settable_keys(action_space)
    ]
    return "\n".join(
        [
            f"{task(features)} Keys and values:",
            *offered,
            "Reply with one JSON object of keys and values; `type` is needed. A higher relative gain over plain "
            "matching is better.",
            *(["Proposals so far:", *previous] if previous else []),
            f"Proposal {len(previous) + 1} of {n_proposals}:",
        ]
    )


def task(features: EnvFeatures) -> str:
    """Return the task in one sentence, by which memories find similar tasks."""
    return (
        f"Design a neural predecoder for {features.name} (distance {features.distance}, {features.rounds} rounds, "
        f"p = {features.p:g}, {features.n_detectors} detectors)."
    )


def format_choices(choices: Mapping[str, Any]) -> str:
    """Choices in the form in which an agent writes them."""
    return json.dumps(dict(choices), sort_keys=True)


def settable_keys(action_space: ActionSpace) -> list[str]:
    """Return the keys that can be set, in the order of the action space."""
    return list(dict.fromkeys(assignment.key for assignment in action_space.assignments if assignment.key))


class DesignTask(Contract):
    """One env to design for, with the table in which its results are looked up."""

    env: str = Field(description="an env.yaml")
    table: str | None = Field(default=None, description="a JSON-lines table, for the routine `tabular`")
    id: str | None = None


class ScreenSettings(Contract):
    """Size of the trainings of the routine `screen`."""

    train_shots: int = Field(default=60_000, ge=1)
    finetune_shots: int = Field(default=1_000, ge=0)
    val_shots: int = Field(default=10_000, ge=1)
    seed: int = Field(default=0, ge=0)
    cache_dir: str | None = None


class DesignDatasetConfig(EnvDatasetConfig):
    """Envs to design for, and the routine that evaluates designs."""

    kind: Literal["design"] = "design"
    tasks: tuple[DesignTask, ...] = Field(min_length=1)
    routine: Literal["tabular", "screen", "round"] = "tabular"
    screen: ScreenSettings = ScreenSettings()
    promote: int = Field(default=1, ge=1, description="routine `round`: designs that are the best so far in the screen")
    profile: ProfileName = Field(default="smoke", description="of the rounds that promoted designs become")
    n_proposals: int = Field(default=3, ge=1)

    @model_validator(mode="after")
    def _tables(self) -> DesignDatasetConfig:
        if self.routine == "tabular" and any(task.table is None for task in self.tasks):
            raise ValueError("the routine `tabular` needs a `table` for each task")
        return self

    def resolved(self, base: Path) -> Self:
        """Return the config with absolute paths; relative ones are relative to `base`."""

        def absolute(value: str | None) -> str | None:
            return None if value is None else str((base / value).resolve())

        tasks = tuple(
            task.model_copy(update={"env": absolute(task.env), "table": absolute(task.table)}) for task in self.tasks
        )
        screen = self.screen.model_copy(update={"cache_dir": absolute(self.screen.cache_dir)})
        return self.model_copy(update={"tasks": tasks, "screen": screen})


class DesignDataset(EnvDataset[DesignDatasetConfig]):
    """One environment per task.

    Args:
        config: Tasks and routine.
        logger: Logger of the dataset.
        round_runner: Runs a round, (env text, profile, config) -> row of history; needed by the routine `round`.
    """

    def __init__(
        self,
        config: DesignDatasetConfig,
        *,
        logger: logging.Logger | None = None,
        round_runner: RoundRunner | None = None,
    ) -> None:
        if config.routine == "round" and round_runner is None:
            message = "the routine `round` needs a workspace to run in"
            raise UsageError(
                message, location="dataset.routine", hint="autoqec init workspace && cd workspace, and evaluate there"
            )
        self._round_runner = round_runner
        super().__init__(config, logger=logger)

    def load_dataset(self) -> list[Environment]:
        """Build one environment per task."""
        return [self._env(task) for task in self.config.tasks]

    def _env(self, task: DesignTask) -> DesignTextEnv:
        env, text = files.load_env(task.env)
        features, n = EnvFeatures.of(env), self.config.n_proposals
        if self.config.routine == "tabular":
            table = TabularRoutine.read(str(task.table), env)
            template = PredecoderDraft(features, constant_keys(table.configs))
            action_space = ActionSpace.of_configs(table.configs)
            return DesignTextEnv(template, action_space, table, n_proposals=n, best=table.best(), env_id=task.id)
        routine: Routine = ScreenRoutine(text, **self.config.screen.dump())
        if self._round_runner is not None and self.config.routine == "round":
            run_round = partial(self._round_runner, text, self.config.profile)
            routine = RoundRoutine(env, routine, run_round, HallOfFame(self.config.promote))
        return DesignTextEnv(PredecoderDraft(features), ActionSpace.standard(), routine, n_proposals=n, env_id=task.id)
