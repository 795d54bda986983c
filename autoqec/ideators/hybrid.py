"""A search that asks a language model on some rounds, which seed and round number determine.

The model is shown what the search knows and what it would propose. Without a usable answer, the proposal of the search
is used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from autoqec.contracts.messages import IdeatorResponse
from autoqec.contracts.views import IdeatorView, RoundRow
from autoqec.ideators import moves, space, tpe
from autoqec.ideators.search_state import SearchState

ProposeFn = Callable[[IdeatorView], IdeatorResponse]
Model = Callable[[IdeatorView], IdeatorResponse | None]

LM_SHARE = 0.3  # of the rounds, on average
GOOD_SHARE = 1 / 4  # of the measured rounds, the best ones, are described to the model


class Hybrid:
    """Proposes a round from a view.

    Args:
        model: Role that gets the view with the state of the search under `sampler`. TPE proposes all other rounds.
        share: Share of rounds on which the model is asked.
    """

    def __init__(self, model: Model, *, share: float = LM_SHARE) -> None:
        self._model, self._share = model, share

    def __call__(self, view: IdeatorView) -> IdeatorResponse:
        """Propose the next round."""
        state, search_response = SearchState.read(view), tpe.propose(view)
        response = (
            self._model(view.model_copy(update={"sampler": sampler_summary(state, search_response)}))
            if self.uses_model(state)
            else None
        )
        chosen = search_response if response is None else response
        return chosen.model_copy(update={"source": f"hybrid {chosen.source}"[:200]})

    def uses_model(self, state: SearchState) -> bool:
        """Return whether the model is asked; never on the first round, which tries a template."""
        return state.n_proposed > 0 and state.rng("hybrid").random() < self._share


def sampler_summary(state: SearchState, search_response: IdeatorResponse) -> dict[str, Any]:
    """Return what the search knows: the best rounds with their families and ranges, and its own next proposal."""
    measured = [(row, point) for row in state.observed if (point := moves.objectives(row))]
    measured.sort(key=lambda pair: pair[1], reverse=True)
    good = [row for row, _ in measured[: max(1, int(GOOD_SHARE * len(measured)))]]
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


def _params(state: SearchState, row: RoundRow) -> space.Params | None:
    return state.params_of(row["dsl_config"]) if row["dsl_config"] else None
