"""Prediction of a config's cost by counting its network, and the env's limits on that cost.

Imports torch and stim only when a network is counted.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from autoqec.contracts.base import canonical_json
from autoqec.contracts.dsl import OutputMode, PredecoderDSL, parse_dsl
from autoqec.contracts.env import Constraints, EnvSpec
from autoqec.errors import AutoqecError, ContractError, UsageError

if TYPE_CHECKING:
    from autoqec.decoders.base import ProblemView
    from autoqec.qec.problem import Problem

# The smallest network of each family, by the bounds of the config's fields.
SMALLEST: dict[str, dict[str, Any]] = {
    "mlp": {"hidden": 4, "depth": 1, "skip": False},
    "gnn": {"hidden": 2, "layers": 1, "edge_features": False},
    "neural_bp": {"iterations": 1, "weight_sharing": "per_layer", "damping": "fixed"},
    "conv": {"channels": 1, "layers": 1, "kernel": 3},
    "local": {"hidden": 2, "depth": 1, "space": 0, "time": 0},
}
# Upper bounds on the cost of the smallest mlp, per detector and edge: larger limits need no network to be built.
_AMPLE_PARAMS, _AMPLE_FLOPS = 16, 64


def require_feasible_limits(constraints: Constraints, problem: Problem, inputs: str) -> None:
    """Check that the smallest networks of the config language do not all exceed a limit of the env.

    Args:
        constraints: The limits.
        problem: A decoding problem of the env.
        inputs: Which detectors a network of this env reads.

    Raises:
        UsageError: Every round would end as a compile error.
    """
    size = problem.n_detectors + problem.graph.n_edges
    if constraints.max_params >= _AMPLE_PARAMS * size and constraints.max_flops_per_syndrome >= _AMPLE_FLOPS * size:
        return
    costs = smallest_costs(problem, inputs)
    for what, limit in LIMITS:
        needed, allowed = min((cost[what] for cost in costs), default=0), getattr(constraints, limit)
        if needed > allowed:
            message = f"{limit} = {allowed}, but the smallest network for this code has {what} = {needed}"
            default = Constraints.model_fields[limit].default
            hint = f"set {limit} to {needed} or more; the default is {default}"
            raise UsageError(message, location=f"env: field `constraints.{limit}`", hint=hint)


def smallest_costs(problem: Problem, inputs: str) -> list[dict[str, int]]:
    """Return {n_params, flops_per_syndrome} of the smallest network of each family that the code admits."""
    from autoqec.decoders.dsl_compiler import compile_predecoder
    from autoqec.decoders.flops import count

    costs = []
    for family, options in SMALLEST.items():
        dsl = PredecoderDSL.model_validate({"type": family, family: {**options, "inputs": inputs}})
        try:
            cost = count(compile_predecoder(dsl, problem, seed=0), problem.n_detectors)
        except (ContractError, ValueError):  # a convolution needs a lattice
            continue
        costs.append({"n_params": cost.n_params, "flops_per_syndrome": cost.flops_per_syndrome})
    return costs


LIMITS = (("n_params", "max_params"), ("flops_per_syndrome", "max_flops_per_syndrome"))
_NOT_OF_THE_NETWORK = ("training", "gate")  # keys of a config


def predict_cost(env: EnvSpec, dsl: PredecoderDSL) -> dict[str, int]:
    """Return {n_params, flops_per_syndrome} of a config on an env, with the modules of the installed package.

    Configs that differ in training or gate alone are counted once.

    Raises:
        ContractError, ValueError: The config does not fit the env's code.
    """
    network = {key: value for key, value in dsl.config().items() if key not in _NOT_OF_THE_NETWORK}
    return dict(_cost(canonical_json(env.dump()), canonical_json(network)))


def exceeded_limits(cost: Mapping[str, int], constraints: Constraints | None) -> list[str]:
    """Return the limits of the env that a predicted cost exceeds, one sentence each.

    Args:
        cost: `n_params` and `flops_per_syndrome` of a config.
        constraints: The env's limits; None checks nothing.
    """
    limits = {} if constraints is None else {name: getattr(constraints, limit) for name, limit in LIMITS}
    return [
        f"{name} = {cost[name]} exceeds the limit {limit} = {limits[name]} of the env"
        for name, limit in LIMITS
        if name in limits and cost.get(name, 0) > limits[name]
    ]


def within_limits(config: dict[str, Any], env: EnvSpec | None) -> bool:
    """Return whether the network of a config, as the installed modules build it, is within the env's limits.

    A config that they cannot build counts as within them: code of a branch may build it.
    """
    if env is None:
        return True
    try:
        return not exceeded_limits(predict_cost(env, parse_dsl(config)), env.constraints)
    except (AutoqecError, ValueError):
        return True


@lru_cache(maxsize=4096)
def _cost(env_text: str, network_text: str) -> dict[str, int]:
    """Return {n_params, flops_per_syndrome} of a network on an env, both as JSON."""
    from autoqec.decoders.dsl_compiler import compile_for_cost
    from autoqec.decoders.flops import count, one_thread

    dsl = parse_dsl(json.loads(network_text))
    view = _view(env_text, dsl.output_mode)
    with one_thread():
        cost = count(compile_for_cost(dsl, view), view.n_detectors, full_shot_only=True)
    return {"n_params": cost.n_params, "flops_per_syndrome": cost.flops_per_syndrome}


@lru_cache(maxsize=4)
def _view(env_text: str, output_mode: OutputMode) -> ProblemView:
    from autoqec.decoders.base import ProblemView

    return ProblemView.of(_problem(env_text), output_mode)


@lru_cache(maxsize=2)
def _problem(env_text: str) -> Any:
    from autoqec.qec.problem import Problem

    return Problem.from_env(EnvSpec.model_validate_json(env_text))
