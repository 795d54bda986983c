"""Checks of a proposed config before a round is spent on it: novelty, the env's limits, and whether it builds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from autoqec.contracts.dsl import PredecoderDSL, parse_dsl
from autoqec.contracts.env import Constraints
from autoqec.contracts.round import Trial
from autoqec.contracts.views import IdeatorView, RoundRow
from autoqec.decoders.cost_limits import exceeded_limits
from autoqec.errors import ContractError
from autoqec.ideators.search_state import ABORTED_STATUSES

PredictCost = Callable[[PredecoderDSL], Mapping[str, int]]


class BuildFailedError(ContractError):
    """Config and code do not build, or cannot take a training step; `log` is the end of the traceback."""

    log: str = ""


def find_duplicate_round(
    view: IdeatorView, dsl: PredecoderDSL, *, has_same_code: Callable[[RoundRow], bool] = lambda row: True
) -> int | None:
    """Return the round, measured or running, whose config is equivalent to `dsl`; None for a new config.

    Args:
        view: The view.
        dsl: The config.
        has_same_code: Whether a round has the code that the config would have; others are not duplicates.
    """
    return find_equivalent_round([*view.history, *view.pending], dsl, view.finetunes, has_same_code)


def find_equivalent_round(
    rows: Iterable[RoundRow], dsl: PredecoderDSL, finetunes: bool, has_same_code: Callable[[RoundRow], bool]
) -> int | None:
    """As `find_duplicate_round`, of these rows."""
    from autoqec.decoders.equivalence import find_equivalent

    for row in rows:
        if row.get("status") in ABORTED_STATUSES or not row.get("dsl_config"):
            continue
        try:
            other = parse_dsl(row["dsl_config"])
        except ContractError:
            continue
        if find_equivalent(dsl, [other], finetunes=finetunes) is not None and has_same_code(row):
            return int(row["round"])
    return None


def require_build(trial: Trial) -> None:
    """Raise BuildFailedError with the reason and the traceback of a trial that failed."""
    if trial.status != "ok":
        error = BuildFailedError(f"{trial.status}: {trial.reason}", location="edits", hint="correct the code")
        error.log = trial.log
        raise error


def parent_branches_of(view: IdeatorView, fork_from: tuple[int | str, ...]) -> tuple[str, ...]:
    """Return the branches of the parents, each named by round number or by branch; () for the baseline."""
    if fork_from in ((), ("baseline",)):
        return ()
    branches: dict[int | str, str | None] = {row["round"]: row["branch"] for row in view.history if row.get("forkable")}
    chosen = []
    for parent in fork_from:
        branch = parent if parent in branches.values() else branches.get(parent)
        if branch is None:
            forkable = ", ".join(map(str, sorted(branches))) or "none"
            named = f"round {parent}" if isinstance(parent, int) else repr(parent)
            raise ContractError(f"{named} is not forkable; forkable rounds: {forkable}", location="fork_from")
        chosen.append(str(branch))
    if len(set(chosen)) != len(chosen):
        raise ContractError("a parent is named twice", location="fork_from")
    return tuple(chosen)


def check_cost(dsl: PredecoderDSL, predict_cost: PredictCost, constraints: Constraints | None) -> None:
    """Raise ContractError for a config that cannot be built for the env's code or exceeds its limits."""
    try:
        exceeded = exceeded_limits(predict_cost(dsl), constraints)
    except (ContractError, ValueError) as error:
        raise ContractError(f"the config cannot be built: {error}", location="proposal") from error
    if exceeded:
        raise ContractError("; ".join(exceeded), location="proposal", hint="propose a smaller network")
