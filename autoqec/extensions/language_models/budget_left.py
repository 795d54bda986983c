"""What is left of the limits of a run, as lines for a prompt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoqec.contracts.run_spec import RunSpec
from autoqec.orchestrator.budget import rounds_since_front_change, used_hours
from autoqec.store.run_state import RunState

if TYPE_CHECKING:
    from autoqec.store.model_calls import UsageTotals

HOURS = ("compute_hours", "cpu_hours", "gpu_hours")


def remaining(
    spec: RunSpec, state: RunState, spent: UsageTotals, elapsed_s: float, trial_hours: float = 0.0
) -> list[str]:
    """Return one line for each limit of a run.

    Args:
        spec: The run, with its limits.
        state: State of the run.
        spent: What the language models cost so far.
        elapsed_s: Seconds that count for `hours`: since the run was started or resumed, or since its first job began.
        trial_hours: Compute hours of trials, which no row has.
    """
    limits, used = dict(spec.budget), {"rounds": float(state.totals.finished), "hours": elapsed_s / 3600}
    if spec.rounds is not None:
        limits["rounds"] = min(spec.rounds, limits.get("rounds", spec.rounds))
    used |= {"usd": spent.known_usd, "tokens": float(spent.usage.total)}
    used |= {name: used_hours(state, name.removesuffix("_hours")) for name in HOURS if name in limits}
    used |= {name: used[name] + trial_hours for name in ("compute_hours", "cpu_hours") if name in used}
    if "plateau" in limits:
        used["plateau"] = float(rounds_since_front_change(state))
    return [
        f"{_NAMES.get(name, name.replace('_', ' '))}: {max(limit - used[name], 0.0):.4g} of {limit:g}"
        for name, limit in limits.items()
        if name in used
    ]


_NAMES = {"usd": "US dollars for models", "plateau": "rounds until the run stops without a change of the front"}
