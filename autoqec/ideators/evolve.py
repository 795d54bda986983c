"""Regularised evolution (Real et al., AAAI 2019): the most recent rounds are the population.

The population is read from history for every proposal, so that an interrupted search continues with the same proposal.
A child is forked from the branch of its parent if possible, so that git shows the lineage.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from autoqec.contracts.messages import IdeatorResponse
from autoqec.contracts.pareto import dominates
from autoqec.contracts.views import IdeatorView, RoundRow
from autoqec.ideators import moves, space
from autoqec.ideators.moves import Move
from autoqec.ideators.search_state import SearchState
from autoqec.ideators.space import Params

POPULATION_SIZE = 24  # most recent measured rounds, which may become parents
TOURNAMENT_SIZE = 6  # sampled members, of which the best becomes the parent
N_STARTUP_ROUNDS = 8  # measured rounds before mutation starts; uniform draws until then
SECOND_KEY_PROBABILITY = 0.3  # that a second key is mutated


def propose(view: IdeatorView) -> IdeatorResponse:
    """Return the next proposal, as a function of the view alone. Round 1 is the best known template."""
    state = SearchState.read(view)
    move = moves.next_template(state) or _child(state) or moves.unseen_config(state, moves.draw)
    return moves.to_response(move, source=f"evolve {state.n_proposed}")


def _child(state: SearchState) -> Move | None:
    """Return a mutant of the best of a sample; None with too few measured rounds, or if every mutant was tried."""
    population = [
        row
        for row in state.observed
        if moves.objectives(row) and row["dsl_config"] and state.params_of(row["dsl_config"])
    ]
    if len(population) < N_STARTUP_ROUNDS:
        return None
    rng = state.rng("evolve")
    for _ in range(moves.MAX_TRIES):
        pool = population[-POPULATION_SIZE:]
        parent = best_ranked(rng.sample(pool, min(TOURNAMENT_SIZE, len(pool))))
        params = state.params_of(parent["dsl_config"] or {})
        assert params is not None  # the population has params
        child = mutate(params, rng, state.active_dimensions)
        config = state.build(child)
        if config is not None and state.is_admissible(config):
            return _move(parent, params, child, config)
    return None


def best_ranked(rows: list[RoundRow]) -> RoundRow:
    """Return the row that the fewest others dominate; ties are broken by gain, then by recency."""
    points = {row["round"]: moves.objectives(row) for row in rows}
    known = [point for point in points.values() if point]

    def rank(row: RoundRow) -> tuple[int, float, int]:
        point = points[row["round"]]
        assert point is not None  # the population is measured
        return sum(dominates(other, point) for other in known), -point[0], -row["round"]

    return min(rows, key=rank)


def mutate(
    params: Params,
    rng: random.Random,
    active_dimensions: Callable[[str], list[space.Dimension]] = space.active_dimensions,
) -> Params:
    """Mutate one key, sometimes a second one. A new family draws its own keys and keeps the training keys.

    Args:
        params: Values of the parent.
        rng: Random generator.
        active_dimensions: Dimensions that may change, by family.
    """
    for _ in range(2 if rng.random() < SECOND_KEY_PROBABILITY else 1):
        dimensions = active_dimensions(params["type"])
        if not dimensions:
            break
        dimension = rng.choice(dimensions)
        value = dimension.step_from(params, rng)
        if value is None:
            continue
        params = params | {dimension.key: value}
        if dimension.key == "type":
            new_family = active_dimensions(value)
            params = {
                family_dimension.key: params[family_dimension.key]
                if family_dimension.key in params
                else family_dimension.draw(rng)
                for family_dimension in new_family
            }
    return params


def _move(parent: RoundRow, params: Params, child: Params, config: space.Config) -> Move:
    keys = [
        key for key in child if params.get(key) != child[key] and (key in params or params["type"] == child["type"])
    ]
    changes, rationale = space.describe_changes(params, child, keys)
    return Move(
        slug="-".join([f"r{parent['round']}", *(key.split(".")[-1] for key in keys)]),
        hypothesis=f"Round {parent['round']} is the best of its sample; {changes} may improve it: {rationale}",
        config=config,
        fork_from=moves.parent_of(parent)[0] if parent["forkable"] else "baseline",
    )
