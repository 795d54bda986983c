"""The env's limits on parameters and FLOPs, checked before a round is spent on a config."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from autoqec.contracts.base import canonical_json
from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.env import Constraints, EnvSpec
from autoqec.errors import AutoqecError

_LIMITS = (("n_params", "max_params"), ("flops_per_syndrome", "max_flops_per_syndrome"))


def exceeded_limits(cost: Mapping[str, int], constraints: Constraints | None) -> list[str]:
    """Return the limits of the env that a predicted cost exceeds, one sentence each.

    Args:
        cost: `n_params` and `flops_per_syndrome` of a config.
        constraints: The env's limits; None checks nothing.
    """
    limits = {} if constraints is None else {name: getattr(constraints, limit) for name, limit in _LIMITS}
    return [
        f"{name} = {cost[name]} exceeds the limit {limit} = {limits[name]} of the env"
        for name, limit in _LIMITS
        if name in limits and cost.get(name, 0) > limits[name]
    ]


def within_limits(config: dict[str, Any], env: EnvSpec | None) -> bool:
    """Return whether the network of a config, as the installed modules build it, is within the env's limits.

    A config that they cannot build is not judged here: code of a branch may build it.
    """
    if env is None:
        return True
    try:
        return not exceeded_limits(_cost(canonical_json(env.dump()), canonical_json(config)), env.constraints)
    except (AutoqecError, ValueError):
        return True


@lru_cache(maxsize=4096)
def _cost(env_text: str, config_text: str) -> dict[str, int]:
    """Return {n_params, flops_per_syndrome} of a config on an env, both as JSON."""
    import json

    from autoqec.decoders.dsl_compiler import compile_predecoder
    from autoqec.decoders.flops import count

    problem = _problem(env_text)
    cost = count(compile_predecoder(parse_dsl(json.loads(config_text)), problem, seed=0), problem.n_detectors)
    return {"n_params": cost.n_params, "flops_per_syndrome": cost.flops_per_syndrome}


@lru_cache(maxsize=2)
def _problem(env_text: str) -> Any:
    from autoqec.qec.problem import Problem

    return Problem.from_env(EnvSpec.model_validate_json(env_text))
