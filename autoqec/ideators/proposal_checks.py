"""Checks of a proposed config before a round is spent on it: novelty and the env's limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from autoqec.contracts.dsl import PredecoderDSL, parse_dsl
from autoqec.contracts.env import Constraints
from autoqec.contracts.views import IdeatorView
from autoqec.errors import ContractError
from autoqec.ideators.limits import exceeded_limits
from autoqec.ideators.search_state import ABORTED_STATUSES

PredictCost = Callable[[PredecoderDSL], Mapping[str, int]]


def find_duplicate_round(view: IdeatorView, dsl: PredecoderDSL) -> int | None:
    """Return the round, measured or running, whose config is equivalent to `dsl`; None for a new config."""
    from autoqec.decoders.equivalence import find_equivalent

    finetunes = view.finetunes
    for row in [*view.history, *view.pending]:
        if row.get("status") in ABORTED_STATUSES or not row.get("dsl_config"):
            continue
        try:
            other = parse_dsl(row["dsl_config"])
        except ContractError:
            continue
        if find_equivalent(dsl, [other], finetunes=finetunes) is not None:
            return int(row["round"])
    return None


def check_cost(dsl: PredecoderDSL, predict_cost: PredictCost, constraints: Constraints | None) -> None:
    """Raise ContractError for a config that cannot be built for the env's code or exceeds its limits."""
    try:
        exceeded = exceeded_limits(predict_cost(dsl), constraints)
    except (ContractError, ValueError) as error:
        raise ContractError(f"the config cannot be built: {error}", location="proposal") from error
    if exceeded:
        raise ContractError("; ".join(exceeded), location="proposal", hint="propose a smaller network")
