"""Uniform draws from the search space: the reference for every other search."""

from __future__ import annotations

from autoqec.contracts.messages import IdeatorResponse
from autoqec.contracts.views import IdeatorView
from autoqec.ideators import moves
from autoqec.ideators.search_state import SearchState


def propose(view: IdeatorView) -> IdeatorResponse:
    """Return the next proposal, as a function of the view alone. Round 1 is the best known template."""
    state = SearchState.read(view)
    first = moves.next_template(state)
    if first is not None:
        return moves.to_response(first, source=f"random {state.n_proposed}")
    return moves.to_response(moves.unseen_config(state, moves.draw), source=f"random {state.n_proposed}")
