"""Checks that an env's limits on cost admit a network at all."""

from __future__ import annotations

from typing import Any

from autoqec.contracts.dsl import PredecoderDSL
from autoqec.contracts.env import Constraints
from autoqec.decoders.cost_limits import LIMITS
from autoqec.errors import ContractError, UsageError
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
