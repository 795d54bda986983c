"""Limits on cost that no network can keep."""

from __future__ import annotations

import pytest

from autoqec.contracts.dsl import FAMILIES
from autoqec.contracts.env import Constraints
from autoqec.decoders import cost_limits
from autoqec.errors import UsageError
from autoqec.locate import BUILTIN
from autoqec.qec.problem import Problem
from autoqec.store.files import load_env


def problem_of(name: str) -> Problem:
    env, _ = load_env(BUILTIN / f"{name}.yaml")
    return Problem.from_env(env, env.points[0])


@pytest.mark.parametrize("limit", ["max_params", "max_flops_per_syndrome"])
def test_limit_is_refused_below_the_smallest_network_and_accepted_from_it_on(limit: str) -> None:
    problem, cost = problem_of("smoke"), {"max_params": "n_params"}.get(limit, "flops_per_syndrome")
    smallest = min(costs[cost] for costs in cost_limits.smallest_costs(problem, "other_sector"))
    cost_limits.require_feasible_limits(Constraints(**{limit: smallest}), problem, "other_sector")
    with pytest.raises(UsageError, match=f"{limit} = {smallest - 1}, but the smallest network") as error:
        cost_limits.require_feasible_limits(Constraints(**{limit: smallest - 1}), problem, "other_sector")
    assert error.value.hint is not None and str(smallest) in error.value.hint


@pytest.mark.parametrize(("name", "inputs"), [("smoke", "other_sector"), ("colour_d5_depol", "all")])
def test_ample_limits_exceed_the_cost_of_the_smallest_mlp(
    name: str, inputs: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = problem_of(name)
    size = problem.n_detectors + problem.graph.n_edges
    mlp = cost_limits.smallest_costs(problem, inputs)[0]
    assert mlp["n_params"] <= cost_limits._AMPLE_PARAMS * size
    assert mlp["flops_per_syndrome"] <= cost_limits._AMPLE_FLOPS * size
    monkeypatch.setattr(cost_limits, "smallest_costs", lambda *_: pytest.fail("built a network"))
    cost_limits.require_feasible_limits(Constraints(), problem, inputs)


def test_every_family_has_a_smallest_network() -> None:
    assert set(cost_limits.SMALLEST) == set(FAMILIES)
