"""Moves of a search: try a template, draw a new config, extend a verified branch, compose two verified branches."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from autoqec.contracts.base import canonical_json
from autoqec.contracts.dsl import DEPTH_FIELDS, WIDTH_FIELDS, flatten, unflatten
from autoqec.contracts.messages import IdeatorResponse, parse_response
from autoqec.contracts.pins import format_pins
from autoqec.contracts.round import ComposeMode, ForkFrom, canonical_fork
from autoqec.contracts.views import RoundRow
from autoqec.errors import ContractError, UsageError
from autoqec.ideators import space
from autoqec.ideators.search_state import SearchState
from autoqec.ideators.space import Config, Params

MAX_TRIES = 200
MAX_DRAWS = 5000  # without a new config among them the space counts as exhausted


@dataclass(frozen=True)
class Move:
    """A proposal in the making."""

    slug: str
    hypothesis: str
    config: Config
    fork_from: ForkFrom = "baseline"
    compose_mode: ComposeMode | None = None


def to_response(move: Move, *, source: str) -> IdeatorResponse:
    """Validate a move as an IdeatorResponse, in the same way as the answer of a language model."""
    return parse_response(
        IdeatorResponse,
        canonical_json(
            {
                "hypothesis": move.hypothesis[:400],
                "slug": slug(move.slug),
                "fork_from": move.fork_from,
                "compose_mode": move.compose_mode,
                "proposal": move.config,
                "source": source,
            }
        ),
    )


def objectives(row: RoundRow) -> tuple[float, float, float] | None:
    """(gain, -FLOPs, -parameters) of a measured row, all maximised; None for a row without a measurement.

    The gain is the verifier's if there is one, otherwise the Runner's on validation shots.
    """
    gain = row["delta_vs_baseline_holdout"]
    gain = row["delta_ler"] if gain is None else gain
    if row["status"] != "ok" or gain is None:
        return None
    return float(gain), -float(row["flops_per_syndrome"] or 0), -float(row["n_params"] or 0)


def parent_of(row: RoundRow) -> tuple[str, Config]:
    """Return branch and config of a row that can be forked."""
    branch, config = row["branch"], row["dsl_config"]
    assert branch is not None and config is not None  # `forkable`
    return branch, config


def slug(text: str) -> str:
    """Return the text as lower-case words joined by dashes, at most 40 characters."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-") or "try"


def next_template(state: SearchState) -> Move | None:
    """Return the first template that was not tried yet."""
    for template in state.templates:
        config = state.with_pins(template.config)
        if config is not None and state.is_admissible(config):
            return Move(template.slug, template.hypothesis, config)
    return None


def unseen_config(state: SearchState, candidates: Callable[[SearchState], Iterator[Params]]) -> Move:
    """Return a config of the space that was never tried, forked from the baseline.

    Args:
        state: State of the search.
        candidates: Suggests values; uniform draws follow when they give nothing new.

    Raises:
        UsageError: No new config was found under the pins.
    """
    for params in itertools.chain(
        itertools.islice(candidates(state), MAX_TRIES), itertools.islice(draw(state), MAX_DRAWS)
    ):
        config = state.build(params)
        if config is not None and state.is_admissible(config):
            return Move(_name(config), _hypothesis(config), config)
    message = (
        f"{MAX_DRAWS} draws gave no new config within the env's limits, with {format_pins(state.pins) or 'no pins'}"
    )
    raise UsageError(message, location="--pin", hint="start a run with fewer pins")


def draw(state: SearchState) -> Iterator[Params]:
    """Endless uniform draws from the search space."""
    rng = state.rng("draw")
    while True:
        params: Params = {"type": state.pins.get("type") or space.DIMENSION_BY_KEY["type"].draw(rng)}
        params |= {
            dimension.key: dimension.draw(rng)
            for dimension in state.active_dimensions(params["type"])
            if dimension.key != "type"
        }
        yield params


def extend(state: SearchState) -> Move | None:
    """Change one or two keys of one of the best verified branches by a step; None without a verified branch.

    If only training keys or the gate change, half of the children start from the weights of the parent.
    """
    rng = state.rng("extend")
    for _ in range(MAX_TRIES if state.verified else 0):
        parent = state.verified[min(int(rng.expovariate(1.5)), len(state.verified) - 1)]
        branch, parent_config = parent_of(parent)
        steps = _steps(state, parent_config, rng)
        if not steps:
            continue
        keep_weights = all(key == "gate" or key.startswith("training.") for key in steps) and rng.random() < 0.5
        keep_weights &= "training.init" not in state.pins
        before = flatten(parent_config)
        init = {"training.init": "parent" if keep_weights else "fresh"}
        config = space.normalise(unflatten(before | steps | init | state.pins))
        if state.is_admissible(config):
            changes, rationale = space.describe_changes(before, steps, steps)
            weights = "from its weights" if keep_weights else "from fresh weights"
            text = f"Round {parent['round']} is verified; {changes} ({weights}) should add to it: {rationale}"
            name = "-".join(key.split(".")[-1] for key in steps)
            return Move(f"r{parent['round']}-{name}", text, config, fork_from=branch)
    return None


def _steps(state: SearchState, config: Config, rng: random.Random) -> Params:
    dimensions = [dimension for dimension in state.active_dimensions(config["type"]) if dimension.key != "type"]
    chosen = rng.sample(dimensions, min(1 if rng.random() < 0.6 else 2, len(dimensions)))
    flat = flatten(config)
    steps = {dimension.key: dimension.step_from(flat, rng) for dimension in chosen}
    return {key: value for key, value in steps.items() if value is not None}


def compose(state: SearchState) -> Move | None:
    """Merge two verified children of one parent that changed different keys; the best pair first."""
    for first, second in itertools.combinations(state.verified, 2):
        (branch_1, config_1), (branch_2, config_2) = parent_of(first), parent_of(second)
        parents = (branch_1, branch_2)
        if canonical_fork(parents) in state.composed_parents or first["fork_from"] != second["fork_from"]:
            continue
        base = state.config_of(first["fork_from"]) if isinstance(first["fork_from"], str) else None
        config = merge_configs(base, config_1, config_2) if base else None
        if config is not None and state.is_admissible(config):
            text = (
                f"Rounds {first['round']} and {second['round']} are verified and changed different keys of one parent; "
            )
            text += "their gains should add up"
            return Move(f"r{first['round']}-with-r{second['round']}", text, config, parents, "pure")
    return None


def merge_configs(base: Config, first: Config, second: Config) -> Config | None:
    """Return the changes of both configs to `base`; None if they overlap, are empty or contradict each other."""
    mine, theirs = space.changed_keys(first, base), space.changed_keys(second, base)
    if not mine or not theirs or set(mine) & set(theirs):
        return None
    flat = flatten(base) | mine | theirs
    try:
        return space.normalise(unflatten({key: value for key, value in flat.items() if value is not None}))
    except ContractError:
        return None


def _size(config: Config) -> tuple[int | None, int | None]:
    """Width and depth of a config; None for what its family does not have."""
    family = config["type"]
    block = config[family]
    return block.get(WIDTH_FIELDS.get(family)), block.get(DEPTH_FIELDS.get(family))


def _name(config: Config) -> str:
    width, depth = _size(config)
    return f"{config['type']}-h{width}-{depth}" if width else f"{config['type']}-{depth}"


def _hypothesis(config: Config) -> str:
    """Return the hypothesis of a drawn config: its size, head and training."""
    width, depth = _size(config)
    training = config["training"]
    size = f"width {width}, {depth} layers" if width else f"{depth} iterations"
    return (
        f"A {config['type']} of {size}, head {config['head']}, trained by {training['loss']} at rate "
        f"{space.format_value(training['learning_rate'])} in batches of {training['batch_size']}, may reach "
        "a better trade-off between "
        "errors and cost than the configs tried so far"
    )
