"""What the Ideator reads about the limits of its run."""

from __future__ import annotations

from autoqec.contracts.run_spec import RunSpec
from autoqec.extensions.language_models.budget_left import remaining
from autoqec.store.model_calls import Usage, UsageTotals
from autoqec.store.run_state import fold
from tests.support.rounds import row


def test_every_limit_has_a_line_with_what_is_left() -> None:
    spec = RunSpec(
        rounds=10, budget={"rounds": 8, "usd": 3.0, "tokens": 1000, "hours": 2.0, "compute_hours": 1.0, "plateau": 5}
    )
    spent = UsageTotals(known_usd=2.5, usage=Usage(input_tokens=1200))
    unverified = row(2, verify_verdict=None, train_wallclock_s=0.0, eval_wallclock_s=0.0)
    state = fold([row(1, train_wallclock_s=1800.0, eval_wallclock_s=0.0), unverified])
    assert remaining(spec, state, spent, 3600.0, trial_hours=0.25) == [
        "rounds: 6 of 8",
        "US dollars for models: 0.5 of 3",
        "tokens: 0 of 1000",
        "hours: 1 of 2",
        "compute hours: 0.25 of 1",
        "rounds until the run stops without a change of the front: 4 of 5",
    ]


def test_run_without_limits_has_no_lines() -> None:
    assert remaining(RunSpec(), fold([]), UsageTotals(), 0.0) == []
