"""Predecoder design as a batch environment: the state is a draft, an action sets one config key."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from autoqec.contracts.base import sha256_json
from autoqec.contracts.dsl import FAMILIES, flatten
from autoqec.contracts.env import EnvSpec, StimGeneratorCode
from autoqec.errors import ContractError, UsageError
from autoqec.extensions.continual.environments.rendering import RenderMode, draw_task, new_figure
from autoqec.ideators import space
from autoqec.ideators.space import Config, Dimension

if TYPE_CHECKING:
    import torch

GRID_POINTS = 4  # values of a numeric dimension, evenly spaced on a log scale


@dataclass(frozen=True)
class EnvFeatures:
    """Features of the env that a design is for, so that one policy can serve many envs."""

    name: str
    distance: int
    rounds: int
    p: float
    n_detectors: int
    max_params: int
    max_flops: int

    @classmethod
    def of(cls, env: EnvSpec) -> EnvFeatures:
        """Return the features of an env."""
        code = env.code
        return cls(
            name=env.name,
            distance=code.distance if isinstance(code, StimGeneratorCode) else 0,
            rounds=code.rounds,
            p=env.target or 0.0,
            n_detectors=_n_detectors(env),
            max_params=env.constraints.max_params,
            max_flops=env.constraints.max_flops_per_syndrome,
        )

    def vector(self) -> list[float]:
        """Return the numeric features, scaled to about one."""
        return [
            self.distance / 10,
            self.rounds / 10,
            10 * self.p,
            math.log10(self.n_detectors + 1) / 4,
            math.log10(self.max_params) / 8,
            math.log10(self.max_flops) / 8,
        ]


@lru_cache(maxsize=32)
def _n_detectors(env: EnvSpec) -> int:
    from autoqec.qec.problem import Problem

    return Problem.from_env(env).n_detectors


@dataclass(frozen=True)
class Assignment:
    """One config key with a value; the empty key ends the design."""

    key: str
    value: Any

    def __str__(self) -> str:
        return f"{self.key} = {self.value}" if self.key else "stop"


STOP = Assignment("", None)


@dataclass
class PredecoderDraft:
    """An unfinished design. Keys that are not set have the default of the config."""

    features: EnvFeatures
    choices: dict[str, Any] = field(default_factory=dict)
    stopped: bool = False
    last_task_info: dict[str, Any] | None = None

    def config(self) -> Config:
        """Return the complete config. ContractError without a `type`, or for values that contradict each other."""
        if "type" not in self.choices:
            raise ContractError("the draft has no `type` yet", location="draft")
        family = self.choices["type"]
        return space.build({key: value for key, value in self.choices.items() if applies_to_family(key, family)})

    def clone(self) -> PredecoderDraft:
        """Return an independent copy."""
        return copy.deepcopy(self)

    @property
    def signature(self) -> str:
        """Hash of the config: a key that is set to its default changes nothing."""
        try:
            return space.digest(self.config()) or ""
        except ContractError:
            return sha256_json(self.choices)


class ActionSpace:
    """All assignments in a fixed order, `stop` last. An action is an index into them."""

    def __init__(self, assignments: Iterable[Assignment]) -> None:
        self.assignments: tuple[Assignment, ...] = (*assignments, STOP)
        if len(set(map(repr, self.assignments))) != len(self.assignments):
            raise UsageError("an assignment occurs twice", location="action space")

    @classmethod
    def standard(cls, grid: int = GRID_POINTS) -> ActionSpace:
        """Return the whole search space, numeric dimensions on a grid."""
        return cls(Assignment(one.key, value) for one in space.SEARCH_SPACE for value in grid_values(one, grid))

    @classmethod
    def of_configs(cls, configs: Sequence[Config]) -> ActionSpace:
        """Return the values in a table of configs of `type` and the keys that vary. See also `constant_keys`."""
        return cls(
            Assignment(key, value)
            for key, values in sorted(_values_by_key(configs).items(), key=lambda item: (item[0] != "type", item[0]))
            for value in sorted(values, key=repr)
            if key == "type" or len(values) > 1
        )

    def valid(self, draft: PredecoderDraft) -> list[bool]:
        """Return which actions may come next: first the type, then unset keys of its family, and `stop`."""
        chosen = draft.choices
        if draft.stopped:
            return [False] * len(self)
        if "type" not in chosen:
            return [assignment.key == "type" for assignment in self.assignments]
        return [
            c is STOP or (c.key not in chosen and applies_to_family(c.key, chosen["type"])) for c in self.assignments
        ]

    def index(self, key: str, value: Any) -> int:
        """Return the action that sets `key` to `value`; the empty key ends the design. UsageError if there is none."""
        for index, assignment in enumerate(self.assignments):
            if assignment.key == key and assignment.value == value:
                return index
        raise UsageError(f"`{key} = {value}` is not in the action space", location="design")

    def __len__(self) -> int:
        return len(self.assignments)


def applies_to_family(key: str, family: str) -> bool:
    """Return whether a dotted config key applies to a family."""
    dimension = space.DIMENSION_BY_KEY.get(key)
    if dimension is not None:
        return not dimension.families or family in dimension.families
    return key.partition(".")[0] not in FAMILIES or key.startswith(f"{family}.")


def constant_keys(configs: Sequence[Config]) -> dict[str, Any]:
    """Return the keys with one value in all configs, which a template needs so that its drafts are in the table."""
    by_key = sorted(_values_by_key(configs).items())
    return {key: values[0] for key, values in by_key if len(values) == 1 and key != "type"}


def _values_by_key(configs: Sequence[Config]) -> dict[str, list[Any]]:
    """Return the values of each key in the configs, each once, in the order of their first occurrence."""
    values: dict[str, list[Any]] = {}
    for config in configs:
        for key, value in flatten(config).items():
            if value not in values.setdefault(key, []):
                values[key].append(value)
    return values


def grid_values(dimension: Dimension, grid: int) -> tuple[Any, ...]:
    """Return the values of a dimension; for a numeric one `grid` values on a log scale, including both ends."""
    if dimension.choices:
        return tuple(dimension.choices)
    low, high = math.log(dimension.low), math.log(dimension.high)
    found = [dimension.rounded(math.exp(low + (high - low) * i / max(grid - 1, 1))) for i in range(grid)]
    return tuple(dict.fromkeys(found))


class DesignStepper:
    """Applies actions to drafts."""

    def __init__(self, action_space: ActionSpace) -> None:
        self.action_space = action_space

    def step(self, draft: PredecoderDraft, action: int) -> None:
        """Apply an action. UsageError for one that may not come next; the draft is then unchanged."""
        if not 0 <= action < len(self.action_space) or not self.action_space.valid(draft)[action]:
            name = self.action_space.assignments[action] if 0 <= action < len(self.action_space) else action
            raise UsageError(f"`{name}` cannot come next", location="draft")
        assignment = self.action_space.assignments[action]
        if assignment is STOP:
            draft.stopped = True
        else:
            draft.choices[assignment.key] = assignment.value

    def exhausted(self, draft: PredecoderDraft) -> bool:
        """Return whether `stop` is the only action left."""
        return not any(self.action_space.valid(draft)[:-1])


class ExplicitObserver:
    """Observes the assignments as a multi-hot vector, the features of the env, and the number of assignments."""

    def __init__(self, action_space: ActionSpace) -> None:
        self.action_space = action_space

    def observe(self, draft: PredecoderDraft) -> dict[str, list[float]]:
        """Return the observation of a draft."""
        chosen = draft.choices
        mask = [float(c.key in chosen and chosen[c.key] == c.value) for c in self.action_space.assignments[:-1]]
        return {"clauses": [*mask, float(draft.stopped)], "facts": draft.features.vector(), "count": [len(chosen) / 10]}


class FlatTensorizer:
    """Concatenates the parts of an observation, in the order of their names, to one float vector."""

    def tensorize(self, observation: Mapping[str, Sequence[float]]) -> torch.Tensor:
        """Return the observation as float32 [n]."""
        import torch

        flat = [value for name in sorted(observation) for value in observation[name]]
        return torch.tensor(flat, dtype=torch.float32)


class DesignEnv:
    """One design from a template. Done at `stop`, after `max_assignments`, or when every key is set."""

    def __init__(self, template: PredecoderDraft, max_assignments: int = 8) -> None:
        if max_assignments < 1:
            raise UsageError(f"max_assignments is {max_assignments}; at least 1 is needed", location="max_assignments")
        self.template, self.max_assignments = template, max_assignments
        self.state = copy.deepcopy(template)
        self._actions: list[int] = []
        self._raw_actions: list[Any] = []

    @property
    def signature(self) -> str:
        """Signature of the state."""
        return self.state.signature

    def reset(self) -> PredecoderDraft:
        """Start a design from the template and return its state."""
        self.state = copy.deepcopy(self.template)
        self._actions, self._raw_actions = [], []
        return self.state

    def step(self, action: int, stepper: DesignStepper, raw_action: Any = None) -> tuple[PredecoderDraft, bool]:
        """Apply one action; returns (state, done). UsageError after the end, or if the action may not come next."""
        if self.done:
            raise UsageError("the design is finished", location=self.state.features.name, hint="call reset()")
        stepper.step(self.state, action)
        self._actions.append(action)
        self._raw_actions.append(raw_action)
        if stepper.exhausted(self.state):
            self.state.stopped = True
        return self.state, self.done

    @property
    def done(self) -> bool:
        """Whether the design is finished."""
        return self.state.stopped or len(self._actions) >= self.max_assignments

    @property
    def actions(self) -> tuple[int, ...]:
        """Every action so far."""
        return tuple(self._actions)

    def get_action(self, index: int) -> int:
        """Return the action of step `index`, from 0."""
        return self._actions[index]

    def get_raw_action(self, index: int) -> Any:
        """Return the raw action that the policy emitted at step `index`."""
        return self._raw_actions[index]

    def write(self, choices: Mapping[str, Any], stepper: DesignStepper) -> None:
        """Reset, then choose these values, the type first. UsageError for a value that the action space lacks."""
        self.reset()
        for key in sorted(choices, key=lambda key: key != "type"):
            self.step(stepper.action_space.index(key, choices[key]), stepper)
        if not self.done:
            self.step(stepper.action_space.index("", None), stepper)

    def clone(self) -> DesignEnv:
        """Return a copy that later steps of this environment do not change."""
        return copy.deepcopy(self)

    def render(self, mode: RenderMode) -> Any:
        """Return a figure with the choices of the design, and the design drawn for the task of the mode."""
        figure = new_figure((8, 4))
        left, right = figure.subplots(1, 2)
        lines = [f"{key} = {value}" for key, value in sorted(self.state.choices.items())] or ["(nothing is set)"]
        left.text(0.0, 1.0, "\n".join(lines), va="top", family="monospace", fontsize=8, transform=left.transAxes)
        left.set(title=f"{self.state.features.name} {self.signature[:10]}")
        left.axis("off")
        draw_task(right, [self.state], mode.get("task", "transients"))
        return figure
