"""State and views follow a history that grows, or is replaced."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoqec.contracts.history import HistoryRow
from autoqec.orchestrator.budget import used_hours
from autoqec.orchestrator.memory import RunMemory
from autoqec.orchestrator.round_recorder import deleted_row, restored_row, verified_row
from autoqec.store.files import load_env
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from autoqec.store.run_state import fold
from tests.support import rounds

ENV, _ = load_env(Path(__file__).parents[3] / "autoqec/envs/builtin/smoke.yaml")


def started(root: Path) -> RunMemory:
    layout = RunLayout(root, rounds.RUN_ID)
    layout.root.mkdir(parents=True)
    History(layout).write_info(rounds.info())
    memory = RunMemory(layout.root)
    memory.rebuild_views()  # as a new start does
    return memory


def recorded(memory: RunMemory, row: HistoryRow) -> None:
    memory.layout.round(row.round).dir.mkdir(exist_ok=True)
    memory.append_round(row)
    memory.rebuild_views()


def row_of(number: int, kind: str, figure: int) -> HistoryRow:
    if kind in ("VERIFIED", "SUSPICIOUS", "FAILED"):
        return rounds.row(
            number, verify_verdict=kind, delta_vs_baseline_holdout=0.001 * figure,
            judge_flops_per_syndrome=100 * (figure % 3), judge_n_params=10 * (figure % 5),
        )  # fmt: skip
    lost = {"status": "orphaned_branch", "status_reason": "x", "verify_verdict": None, "verdict": "ignore"}
    if kind == "lost":
        return rounds.row(number, branch=f"quarantine/{rounds.RUN_ID}/{number:02d}-try", **lost)
    return rounds.row(number, verify_verdict=None, verdict="ignore")


def follow_up(row: HistoryRow, kind: str) -> HistoryRow:
    name = str(row.round_attempt_id)
    if kind == "deleted":
        return deleted_row(row, name)
    again = row_of(row.round, kind, row.round)
    return restored_row(again, name)


KINDS = st.sampled_from(["VERIFIED", "SUSPICIOUS", "FAILED", "lost", "quiet"])
LATER = st.sampled_from(["deleted", "VERIFIED", "FAILED"])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(KINDS, st.integers(0, 6), st.none() | st.tuples(st.integers(0, 9), LATER)), max_size=9))
def test_state_follows_the_history_as_it_grows(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, object]]
) -> None:
    """Also if earlier rounds get follow-up rows on the way."""
    memory = started(tmp_path_factory.mktemp("run"))
    rows: list[HistoryRow] = []
    for number, (kind, figure, later) in enumerate(steps, start=1):
        rows.append(row_of(number, kind, figure))
        recorded(memory, rows[-1])
        if isinstance(later, tuple):
            recorded(memory, follow_up(rows[later[0] % len(rows)], later[1]))
    fresh = RunMemory(memory.layout.root)
    assert fresh.state == fold(fresh.history.rows()) == memory.state and fresh.stale_views() == []


def test_totals_count_each_round_once() -> None:
    rows = [row_of(n, kind, n) for n, kind in enumerate(["VERIFIED", "quiet", "lost", "FAILED"], start=1)]
    totals = fold([*rows, follow_up(rows[1], "VERIFIED"), follow_up(rows[2], "FAILED")]).totals
    assert (totals.finished, totals.ended, totals.lost, totals.nominated) == (3, 4, 0, 4)
    assert {name: n for name, n in totals.verdicts.items() if n} == {"VERIFIED": 2, "FAILED": 2}


def test_round_measured_once_counts_once_for_the_budget() -> None:
    row = rounds.row(1, verify_verdict=None, train_wallclock_s=3600.0, eval_wallclock_s=0.0)
    later = verified_row(row, "attempt-1", rounds.report(1))
    assert used_hours(fold([row, later]), "compute") == 1.0
