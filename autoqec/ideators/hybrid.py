"""A search in charge, a language model on some rounds: which ones, seed and round alone decide.

The model is shown what the search knows and would do next; a model without a usable answer leaves the round to it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from autoqec.contracts.messages import IdeatorResponse
from autoqec.ideators import evolve, space, tpe
from autoqec.ideators.moves import SearchState

ProposeFn = Callable[[dict[str, Any]], IdeatorResponse]
Model = Callable[[dict[str, Any]], IdeatorResponse | None]

LM_SHARE = 0.3  # of the rounds
GOOD_ONE_IN = 4  # one measured round in so many counts as good, when the sampler's state is told


class Hybrid:
    """View -> proposal. model: a role that gets the view with the sampler's state under `sampler`."""

    def __init__(self, model: Model, *, search: ProposeFn = tpe.propose, share: float = LM_SHARE) -> None:
        self._model, self._search, self._share = model, search, share

    def __call__(self, view: dict[str, Any]) -> IdeatorResponse:
        state, search_response = SearchState.read(view), self._search(view)
        response = (
            self._model(view | {"sampler": sampler_summary(state, search_response)}) if self.uses_model(state) else None
        )
        chosen = search_response if response is None else response
        return chosen.model_copy(update={"source": f"hybrid {chosen.source}"[:200]})

    def uses_model(self, state: SearchState) -> bool:
        """Never in a run's first round: a template goes before every guess."""
        return state.n_proposed > 0 and state.rng("hybrid").random() < self._share


def sampler_summary(state: SearchState, search_response: IdeatorResponse) -> dict[str, Any]:
    """What the search knows, in few words: the families that pay, the ranges of good rounds, its own plan."""
    measured = [(row, point) for row in state.observed if (point := evolve.objectives(row))]
    measured.sort(key=lambda pair: pair[1], reverse=True)
    good = [row for row, _ in measured[: max(1, len(measured) // GOOD_ONE_IN)]]
    ranges: dict[str, str] = {}
    for dimension in space.SEARCH_SPACE:
        values = [params[dimension.key] for row in good if (params := _params(state, row)) and dimension.key in params]
        if dimension.choices or len(values) < 2:
            continue
        ranges[dimension.key] = f"{min(values):g}..{max(values):g}"
    return {
        "measured": len(measured),
        "good rounds": [row["round"] for row in good][:8],
        "their families": dict(Counter(row["dsl_config"]["type"] for row in good if row["dsl_config"])),
        "its own next proposal": search_response.hypothesis[:200],
        "their ranges": ranges,
    }


def _params(state: SearchState, row: dict[str, Any]) -> space.Params | None:
    return state.params_of(row["dsl_config"]) if row["dsl_config"] else None
