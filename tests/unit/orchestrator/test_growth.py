"""A late round costs as much as an early one, and views updated row by row equal views built from the whole history."""

from __future__ import annotations

import copy
import json
import pickle
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoqec.contracts.history import HistoryRow
from autoqec.contracts.views import RoundRow
from autoqec.orchestrator.budget import used_hours
from autoqec.orchestrator.memory import RunMemory
from autoqec.orchestrator.round_recorder import deleted_row, restored_row, verified_row
from autoqec.store import atomic
from autoqec.store.files import load_env
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from autoqec.store.run_state import apply_rows, fold
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
    memory.update_views(row)


def on_disk(memory: RunMemory) -> dict[Path, str]:
    return {path: path.read_text(encoding="utf-8") for path in memory.views()}


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
def test_incremental_views_equal_rebuilt_views(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, object]]
) -> None:
    """Also if earlier rounds get follow-up rows on the way."""
    memory = started(tmp_path_factory.mktemp("run"))
    rows: list[HistoryRow] = []
    for number, (kind, figure, later) in enumerate(steps, start=1):
        rows.append(row_of(number, kind, figure))
        recorded(memory, rows[-1])
        if isinstance(later, tuple):
            earlier = rows[later[0] % len(rows)]
            recorded(memory, follow_up(earlier, later[1]))
        fresh = RunMemory(memory.layout.root)
        assert on_disk(memory) == fresh.views()
        assert fresh.state == fold(fresh.history.rows()) == memory.state
        assert fresh.stale_views() == []


def test_torn_or_edited_log_is_rewritten(tmp_path: Path) -> None:
    memory = started(tmp_path)
    recorded(memory, rounds.row(1))
    whole = memory.layout.log.read_text(encoding="utf-8")
    memory.layout.log.write_text(whole[:-20], encoding="utf-8")
    recorded(memory, rounds.row(2))
    assert RunMemory(memory.layout.root).stale_views() == [memory.layout.log]
    RunMemory(memory.layout.root).rebuild_views()
    assert whole[whole.index("\n## ") :] in memory.layout.log.read_text(encoding="utf-8")
    assert RunMemory(memory.layout.root).stale_views() == []
    memory.layout.log.unlink()
    memory.rebuild_views()
    assert RunMemory(memory.layout.root).stale_views() == []


def test_history_restored_from_a_backup_is_reread(tmp_path: Path) -> None:
    memory = started(tmp_path)
    for number in (1, 2, 3):
        recorded(memory, rounds.row(number))
    lines = memory.layout.history.read_bytes().splitlines(keepends=True)
    atomic.write_bytes(memory.layout.history, b"".join(lines[:2]))
    memory.rebuild_views()
    assert [row["round"] for row in memory.l2_for_ideator(ENV, rounds.CONFIG).history] == [1, 2]
    assert on_disk(memory) == RunMemory(memory.layout.root).views()


def test_views_of_roles_can_be_copied_and_not_changed(tmp_path: Path) -> None:
    """Rows are passed without a copy; a role cannot change what the next role receives."""
    memory = started(tmp_path)
    recorded(memory, rounds.row(1))
    view = memory.l2_for_ideator(ENV, rounds.CONFIG)
    (row,) = view.history
    writes: list[Callable[[], object]] = [
        lambda: row.__setitem__("status", "forged"), lambda: row.__delitem__("status"), lambda: row.pop("status"),
        lambda: row.update(status="forged"), lambda: row.setdefault("new", 1), row.clear, row.popitem,
    ]  # fmt: skip
    for write in writes:
        with pytest.raises(TypeError, match="copy"):
            write()
    for mine in (dict(row), row | {"status": "ok"}, copy.deepcopy(row), pickle.loads(pickle.dumps(row))):
        assert type(mine) is dict and mine == row and json.loads(json.dumps(row)) == json.loads(json.dumps(mine))
        mine["status"] = "forged"
    assert memory.l2_for_ideator(ENV, rounds.CONFIG).history[0]["status"] == "ok"
    assert memory.l2_for_ideator(ENV, rounds.CONFIG).history[0] is row


def one_round(memory: RunMemory, number: int) -> None:
    """Call everything that a round needs of the run's memory."""
    assert memory.next_round() == number
    memory.history.append_attempt(rounds.begun(number))
    memory.l2_for_ideator(ENV, rounds.CONFIG)
    memory.history.append_attempt(rounds.planned(number))
    memory.state.by_branch((rounds.branch(1),))
    memory.history.append_attempt(rounds.nominated(number))
    recorded(memory, row_of(number, "quiet", 0))


def calls_of(memory: RunMemory, number: int) -> Counter[str]:
    """Count the Python functions that one round calls, by name."""
    found: Counter[str] = Counter()

    def called(frame: FrameType, event: str, arg: object) -> None:
        if event == "call" and "autoqec" in frame.f_code.co_filename:
            found[frame.f_code.co_qualname] += 1

    sys.setprofile(called)
    try:
        one_round(memory, number)
    finally:
        sys.setprofile(None)
    return found


def test_late_round_calls_as_many_functions_as_an_early_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only comprehensions over existing rows grow with the run; no function is called once per earlier round."""
    memory = started(tmp_path)
    recorded(memory, row_of(1, "VERIFIED", 3))
    memory.history.append_attempt(rounds.begun(1))
    for number in range(2, 20):
        one_round(memory, number)
    early = calls_of(memory, 20)
    for number in range(21, 120):
        one_round(memory, number)
    appended: list[int] = []
    real = atomic.append_bytes
    monkeypatch.setattr(atomic, "append_bytes", lambda path, data: (appended.append(len(data)), real(path, data)))
    late = calls_of(memory, 120)
    late.subtract(early)
    assert {name: number for name, number in late.items() if number and "<" not in name} == {}
    assert len(appended) == 1 and appended[0] < 2000, "the log is added to, not written again"


def test_reducer_leaves_the_given_state_as_it_was() -> None:
    rows = [row_of(n, kind, n) for n, kind in enumerate(["VERIFIED", "quiet", "lost", "FAILED"], start=1)]
    rows += [deleted_row(rows[0], "attempt-1"), follow_up(rows[1], "VERIFIED")]
    states = [fold(rows[:n]) for n in range(len(rows) + 1)]
    copies = [fold(rows[:n]) for n in range(len(rows) + 1)]
    for state, row, after in zip(states, rows, states[1:], strict=False):
        assert apply_rows(state, [row]) == after
    assert states == copies


def test_totals_count_each_round_once() -> None:
    rows = [row_of(n, kind, n) for n, kind in enumerate(["VERIFIED", "quiet", "lost", "FAILED"], start=1)]
    totals = fold([*rows, follow_up(rows[1], "VERIFIED"), follow_up(rows[2], "FAILED")]).totals
    assert (totals.finished, totals.ended, totals.lost, totals.nominated) == (3, 4, 0, 4)
    assert {name: n for name, n in totals.verdicts.items() if n} == {"VERIFIED": 2, "FAILED": 2}


def test_round_measured_once_counts_once_for_the_budget() -> None:
    row = rounds.row(1, verify_verdict=None, train_wallclock_s=3600.0, eval_wallclock_s=0.0)
    later = verified_row(row, "attempt-1", rounds.report(1))
    assert used_hours(fold([row, later]), "compute") == 1.0


def test_charges_are_read_from_the_file(tmp_path: Path) -> None:
    memory = started(tmp_path)
    for number in (1, 2):
        for line in (rounds.begun(number), rounds.planned(number), rounds.charged(number)):
            memory.history.append_attempt(line)
        assert [line.round for line in memory.attempt_state.registered_tests] == [1, 2][:number]
    lines = memory.layout.attempts.read_bytes().splitlines(keepends=True)
    atomic.write_bytes(memory.layout.attempts, b"".join(lines[:3]))
    assert [line.round for line in memory.attempt_state.registered_tests] == [1]


def test_summaries_hold_the_keys_of_the_role_view(tmp_path: Path) -> None:
    """The view's rows are typed; mypy checks their readers, and this test their writers."""
    memory = started(tmp_path)
    recorded(memory, rounds.row(1))
    memory.history.append_attempt(rounds.begun(2))
    memory.history.append_attempt(rounds.planned(2))
    view = memory.l2_for_ideator(ENV, rounds.CONFIG)
    assert set(view.history[0]) == set(view.pending[0]) == set(RoundRow.__annotations__)
