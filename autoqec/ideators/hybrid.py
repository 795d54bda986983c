"""A search in charge, a language model on some rounds: which ones, seed and round alone decide.

The model is shown what the search knows and would do next; a model without a usable answer leaves the round to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from autoqec.contracts.messages import IdeatorResponse
from autoqec.ideators import evolve, space, tpe
from autoqec.ideators.moves import State

Propose = Callable[[dict[str, Any]], IdeatorResponse]
Model = Callable[[dict[str, Any]], IdeatorResponse | None]

SHARE = 0.3  # of the rounds
GOOD = 4  # one measured round in so many counts as good, when the sampler's state is told


class Hybrid:
    """View -> proposal. model: a role that gets the view with the sampler's state under `sampler`."""

    def __init__(self, model: Model, *, search: Propose = tpe.propose, share: float = SHARE) -> None:
        self._model, self._search, self._share = model, search, share

    def __call__(self, view: dict[str, Any]) -> IdeatorResponse:
        state, own = State.read(view), self._search(view)
        said = self._model(view | {"sampler": told(state, own)}) if self.model_speaks(state) else None
        reply = own if said is None else said
        return reply.model_copy(update={"source": f"hybrid {reply.source}"[:200]})

    def model_speaks(self, state: State) -> bool:
        """Never in a run's first round: a template goes before every guess."""
        return state.spoken > 0 and state.rng("hybrid").random() < self._share


def told(state: State, own: IdeatorResponse) -> dict[str, Any]:
    """What the search knows, in few words: the families that pay, the ranges of good rounds, its own plan."""
    measured = [(row, point) for row in state.told if (point := evolve.merit(row))]
    measured.sort(key=lambda pair: pair[1], reverse=True)
    good = [row for row, _ in measured[: max(1, len(measured) // GOOD)]]
    ranges: dict[str, str] = {}
    for dimension in space.SPACE:
        found = [params[dimension.key] for row in good if (params := _params(state, row)) and dimension.key in params]
        if dimension.choices or len(found) < 2:
            continue
        ranges[dimension.key] = f"{min(found):g}..{max(found):g}"
    return {
        "measured": len(measured),
        "good rounds": [row["round"] for row in good][:8],
        "their families": dict(Counter(row["dsl_config"]["type"] for row in good if row["dsl_config"])),
        "its own next proposal": own.hypothesis[:200],
        "their ranges": ranges,
    }


def _params(state: State, row: dict[str, Any]) -> space.Params | None:
    return state.params_of(row["dsl_config"]) if row["dsl_config"] else None
