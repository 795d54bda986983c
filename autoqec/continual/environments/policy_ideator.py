"""The policy as an ideator: what history taught it, it draws the next design from."""

from __future__ import annotations

import math
from typing import Any

from autoqec.continual.environments.design import (
    STOP,
    ClauseLibrary,
    ClauseStepper,
    DesignEnv,
    Facts,
    PredecoderDraft,
    fits,
)
from autoqec.contracts.env import EnvSpec
from autoqec.contracts.messages import IdeatorResponse
from autoqec.ideators import moves, space
from autoqec.ideators.moves import Move, State
from autoqec.ideators.space import Config

MAX_STEPS = 40  # of learning
STEPS_A_ROUND = 2  # of a measured round: few rounds must not settle anything
DRAWS = 50


def propose(view: dict[str, Any]) -> IdeatorResponse:
    """The next proposal; a function of the view alone. Round 1 is the best known template.

    The net learns anew for every proposal: a run's history is short, and a killed search goes on as it would have.
    """
    from autoqec.continual.environments.policy import PolicyLearner, input_size

    state = State.read(view)
    move = moves.template(state)
    if move is None:
        library = ClauseLibrary.standard()
        env = DesignEnv(PredecoderDraft(Facts.of(EnvSpec.read(view["env"], where="view"))), max_clauses=len(library))
        learner = PolicyLearner(library, input_size(env, library), seed=state.rng("policy").getrandbits(31))
        written = [(rewritten(row["dsl_config"], library, env), _loss(row)) for row in state.told if row["dsl_config"]]
        lesson = learner.lesson([one for one, _ in written], [loss for _, loss in written])
        if lesson is not None:
            for _ in range(min(MAX_STEPS, STEPS_A_ROUND * len(written))):
                learner.apply(lesson)
        for _ in range(DRAWS):
            learner.design([env])
            config = state.held(env.state.config())
            if config is not None and state.is_new(config):
                move = Move(f"policy-{config['type']}", _about(config, len(written)), config)
                break
    return moves.reply(move or moves.fresh(state, moves.draw), source=f"policy {state.spoken}")


def rewritten(config: Config, library: ClauseLibrary, env: DesignEnv) -> DesignEnv:
    """A design as the policy would have written it: each key by the clause that is nearest to its value."""
    env, stepper = env.clone(), ClauseStepper(library)
    env.reset()
    flat = space.flatten(config)
    for key in dict.fromkeys(clause.key for clause in library.clauses[:-1]):
        if key in flat and fits(key, config["type"]):
            places = [place for place, clause in enumerate(library.clauses) if clause.key == key]
            nearest = min(places, key=lambda place: _distance(library.clauses[place].value, flat[key]))
            env.step(nearest, stepper)
    if not env.done:
        env.step(library.clauses.index(STOP), stepper)
    return env


def _distance(one: Any, other: Any) -> float:
    if isinstance(one, bool | str) or isinstance(other, bool | str):
        return 0.0 if one == other else math.inf
    return abs(math.log(max(one, 1e-12)) - math.log(max(other, 1e-12)))


def _loss(row: dict[str, Any]) -> float:
    """Minus the gain; +inf for a round without one."""
    gain = row["delta_vs_baseline_holdout"] if row["delta_vs_baseline_holdout"] is not None else row["delta_ler"]
    return math.inf if row["status"] != "ok" or gain is None else -float(gain)


def _about(config: Config, measured: int) -> str:
    size = {key: value for key, value in config[config["type"]].items() if isinstance(value, int | str)}
    words = ", ".join(f"{key} {value}" for key, value in list(size.items())[:4])
    return (
        f"A {config['type']} with {words} is what a policy draws that learned from {measured} measured rounds which "
        "clauses go with low error rates"
    )
