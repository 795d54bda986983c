"""The policy as an ideator: trained on the history of a run, it draws the next design."""

from __future__ import annotations

import math
from typing import Any

from autoqec.contracts.dsl import flatten
from autoqec.contracts.messages import IdeatorResponse
from autoqec.contracts.views import IdeatorView, RoundRow
from autoqec.extensions.continual.environments.design import (
    STOP,
    ActionSpace,
    DesignEnv,
    DesignStepper,
    EnvFeatures,
    PredecoderDraft,
    applies_to_family,
)
from autoqec.ideators import moves
from autoqec.ideators.moves import Move
from autoqec.ideators.search_state import SearchState
from autoqec.ideators.space import Config

MAX_LEARNING_STEPS = 40
STEPS_PER_ROUND = 2  # learning steps per measured round: few rounds must not determine the policy
MAX_DRAWS = 50


def propose(view: IdeatorView) -> IdeatorResponse:
    """Return the next proposal, as a function of the view alone. Round 1 is the best known template.

    The network is trained from scratch for every proposal: a history is short, and an interrupted search continues with
    the same proposal.
    """
    from autoqec.extensions.continual.environments.policy import PolicyLearner, input_size

    state = SearchState.read(view)
    move = moves.next_template(state)
    if move is None:
        action_space = ActionSpace.standard()
        env = DesignEnv(
            PredecoderDraft(EnvFeatures.of(view.require_env())),
            max_assignments=len(action_space),
        )
        learner = PolicyLearner(action_space, input_size(env, action_space), seed=state.rng("policy").getrandbits(31))
        designs = [
            (design_from_config(row["dsl_config"], action_space, env), _loss(row))
            for row in state.observed
            if row["dsl_config"]
        ]
        elite_batch = learner.elite_batch([design for design, _ in designs], [loss for _, loss in designs])
        if elite_batch is not None:
            for _ in range(min(MAX_LEARNING_STEPS, STEPS_PER_ROUND * len(designs))):
                learner.apply(elite_batch)
        for _ in range(MAX_DRAWS):
            learner.design([env])
            config = state.with_pins(env.state.config())
            if config is not None and state.is_admissible(config):
                move = Move(f"policy-{config['type']}", _hypothesis(config, len(designs)), config)
                break
    return moves.to_response(move or moves.unseen_config(state, moves.draw), source=f"policy {state.n_proposed}")


def design_from_config(config: Config, action_space: ActionSpace, env: DesignEnv) -> DesignEnv:
    """Return a config as a design of the policy: each key is set to the nearest value of the action space."""
    env, stepper = env.clone(), DesignStepper(action_space)
    env.reset()
    flat = flatten(config)
    for key in dict.fromkeys(assignment.key for assignment in action_space.assignments[:-1]):
        if key in flat and applies_to_family(key, config["type"]):
            places = [place for place, assignment in enumerate(action_space.assignments) if assignment.key == key]
            nearest = min(places, key=lambda place: _distance(action_space.assignments[place].value, flat[key]))
            env.step(nearest, stepper)
    if not env.done:
        env.step(action_space.assignments.index(STOP), stepper)
    return env


def _distance(first: Any, second: Any) -> float:
    if isinstance(first, bool | str) or isinstance(second, bool | str):
        return 0.0 if first == second else math.inf
    return abs(math.log(max(first, 1e-12)) - math.log(max(second, 1e-12)))


def _loss(row: RoundRow) -> float:
    """Minus the gain of a row; +inf without one."""
    point = moves.objectives(row)
    return math.inf if point is None else -point[0]


def _hypothesis(config: Config, measured: int) -> str:
    size = {key: value for key, value in config[config["type"]].items() if isinstance(value, int | str)}
    words = ", ".join(f"{key} {value}" for key, value in list(size.items())[:4])
    return (
        f"A {config['type']} with {words} is drawn by a policy that was trained on {measured} measured rounds to "
        "prefer settings with low error rates"
    )
