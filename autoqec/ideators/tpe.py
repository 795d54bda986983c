"""Tree-structured Parzen estimators over the search space, as a function of the run's history.

Optuna's TPESampler (https://optuna.readthedocs.io) with three objectives: reduction of the logical error rate, FLOPs,
parameters. The study is rebuilt for every proposal, so that an interrupted search continues with the same proposal.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

from autoqec.contracts.messages import IdeatorResponse
from autoqec.contracts.views import IdeatorView, RoundRow
from autoqec.ideators import moves, space
from autoqec.ideators.search_state import SearchState
from autoqec.ideators.space import Dimension, Params

COMPOSE_PROBABILITY = 0.5  # of the proposals that could be compositions
EXTEND_PROBABILITY = 0.6  # of the rest, once a branch is verified
N_STARTUP_ROUNDS = 6  # measured rounds before the estimator is used; uniform draws until then
FAILED_TRIAL_VALUES = (-1.0, 1e12, 1e12)  # values of a config that did not compile or train


def propose(view: IdeatorView) -> IdeatorResponse:
    """Return the next proposal, as a function of the view alone. Round 1 is the best known template."""
    state = SearchState.read(view)
    return moves.to_response(_move(state), source=f"tpe {state.n_proposed}")


def _move(state: SearchState) -> moves.Move:
    first = moves.next_template(state)
    if first is not None:
        return first
    rng = state.rng("move")
    if rng.random() < COMPOSE_PROBABILITY and (composition := moves.compose(state)) is not None:
        return composition
    if rng.random() < EXTEND_PROBABILITY and (extension := moves.extend(state)) is not None:
        return extension
    return moves.unseen_config(state, suggestions)


def suggestions(state: SearchState) -> Iterator[Params]:
    """Endless suggestions. One that is not used stays pending, which moves the next one away from it."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            seed=state.rng("tpe").getrandbits(32),
            multivariate=True,
            group=True,
            constant_liar=True,
            n_startup_trials=N_STARTUP_ROUNDS,
        )
        study = optuna.create_study(directions=("maximize", "minimize", "minimize"), sampler=sampler)
        _add_trials(study, state)
    while True:
        trial = study.ask()
        params: Params = {"type": state.pins["type"]} if "type" in state.pins else {}
        for dimension in space.SEARCH_SPACE:
            if dimension.key in state.fixed_keys:
                continue
            if not dimension.families or params["type"] in dimension.families:
                params[dimension.key] = dimension.rounded(_suggest(trial, dimension))
        yield params


def _add_trials(study: Any, state: SearchState) -> None:
    """Add every row whose config lies in the search space."""
    from optuna.trial import TrialState, create_trial

    for row in (*state.observed, *state.pending):
        params = state.params_of(row["dsl_config"]) if row["dsl_config"] else None
        if params is None:
            continue
        params = {key: value for key, value in params.items() if key not in state.fixed_keys}
        distributions = {key: _distribution(space.DIMENSION_BY_KEY[key]) for key in params}
        pending = row["status"] is None
        study.add_trial(
            create_trial(
                params=params,
                distributions=distributions,
                values=None if pending else _values(row),
                state=TrialState.RUNNING if pending else TrialState.COMPLETE,
            )
        )


def _values(row: RoundRow) -> tuple[float, float, float]:
    point = moves.objectives(row)
    return FAILED_TRIAL_VALUES if point is None else (point[0], -point[1], -point[2])


def _distribution(dimension: Dimension) -> Any:
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if dimension.choices:
        return CategoricalDistribution(dimension.choices)
    if isinstance(dimension.low, int):
        return IntDistribution(dimension.low, int(dimension.high), log=True)
    return FloatDistribution(dimension.low, dimension.high, log=True)


def _suggest(trial: Any, dimension: Dimension) -> Any:
    if dimension.choices:
        return trial.suggest_categorical(dimension.key, dimension.choices)
    suggest = trial.suggest_int if isinstance(dimension.low, int) else trial.suggest_float
    return suggest(dimension.key, dimension.low, dimension.high, log=True)
