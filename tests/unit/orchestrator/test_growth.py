"""A late round costs what an early one does, and views grown row by row are the views that history gives at once."""

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
from autoqec.orchestrator import told, views
from autoqec.orchestrator.attempts import standings
from autoqec.orchestrator.memory import RunMemory
from autoqec.orchestrator.round_recorder import adopted_row, deleted_row
from autoqec.store import atomic
from autoqec.store.files import load_env
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from tests.support import rounds

ENV, _ = load_env(Path(__file__).parents[3] / "autoqec/envs/builtin/smoke.yaml")


def started(root: Path) -> RunMemory:
    layout = RunLayout(root, rounds.RUN_ID)
    layout.root.mkdir(parents=True)
    History(layout).write_info(rounds.info())
    return RunMemory(layout.root)


def recorded(memory: RunMemory, row: HistoryRow) -> None:
    memory.layout.round(row.round).dir.mkdir(exist_ok=True)
    memory.append_round(row)
    memory.rebuild_views()


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
    return adopted_row(again, name)


KINDS = st.sampled_from(["VERIFIED", "SUSPICIOUS", "FAILED", "lost", "quiet"])
LATER = st.sampled_from(["deleted", "VERIFIED", "FAILED"])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.tuples(KINDS, st.integers(0, 6), st.none() | st.tuples(st.integers(0, 9), LATER)), max_size=9))
def test_grown_is_rebuilt(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, object]]) -> None:
    """Whatever becomes of earlier rounds on the way."""
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
        assert fresh.update_pareto() == views.verified_front(standings(fresh.history.rows()))
        assert fresh.stale_views() == []


def test_the_summary_at_the_top_is_written_ever_more_seldom_and_says_when(tmp_path: Path) -> None:
    due = [count for count in range(1, 20_001) if views.summary_is_due(count)]
    assert due[: views.ALWAYS] == list(range(1, views.ALWAYS + 1))
    later = due[views.ALWAYS - 1 :]
    assert len(later) < 80 and all(0 < now - was <= was // 10 for was, now in zip(later, later[1:], strict=False))
    memory, text = started(tmp_path), ""
    for number in range(1, views.ALWAYS + 7):
        recorded(memory, row_of(number, "VERIFIED" if number == 2 else "quiet", 3))
        text = memory.layout.log.read_text(encoding="utf-8")
        top = text[: text.index("\n## ")]
        if number <= views.ALWAYS:
            assert f"**Summary.** {number} round" in top and ("| 2 |" in top) is (number > 1)
        assert f"{number} round" in text[text.rindex("**So far.**") :]
    assert f"after {views.ALWAYS + 5} rows" in top and f"{views.ALWAYS + 5} rounds ended" in top
    assert RunMemory(memory.layout.root).stale_views() == []


def test_a_torn_or_edited_log_is_written_anew(tmp_path: Path) -> None:
    memory = started(tmp_path)
    recorded(memory, rounds.row(1))
    whole = memory.layout.log.read_text(encoding="utf-8")
    memory.layout.log.write_text(whole[:-20], encoding="utf-8")
    recorded(memory, rounds.row(2))
    assert whole[whole.index("\n## ") :] in memory.layout.log.read_text(encoding="utf-8")
    assert RunMemory(memory.layout.root).stale_views() == []
    memory.layout.log.unlink()
    memory.rebuild_views()
    assert RunMemory(memory.layout.root).stale_views() == []


def test_a_history_from_a_backup_is_read_anew(tmp_path: Path) -> None:
    memory = started(tmp_path)
    for number in (1, 2, 3):
        recorded(memory, rounds.row(number))
    lines = memory.layout.history.read_bytes().splitlines(keepends=True)
    atomic.write_bytes(memory.layout.history, lines[0] + lines[2])
    memory.rebuild_views()
    assert [row["round"] for row in memory.l2_for_ideator(ENV, rounds.CONFIG)["history"]] == [1, 3]
    assert on_disk(memory) == RunMemory(memory.layout.root).views()


def test_what_a_role_sees_it_may_copy_and_cannot_change(tmp_path: Path) -> None:
    """Rows are handed out as they are, whatever their number; no role changes what the next one sees."""
    memory = started(tmp_path)
    recorded(memory, rounds.row(1))
    view = memory.l2_for_ideator(ENV, rounds.CONFIG)
    (row,) = view["history"]
    writes: list[Callable[[], object]] = [
        lambda: row.__setitem__("status", "forged"), lambda: row.__delitem__("status"), lambda: row.pop("status"),
        lambda: row.update(status="forged"), lambda: row.setdefault("new", 1), row.clear, row.popitem,
    ]  # fmt: skip
    for write in writes:
        with pytest.raises(TypeError, match="copy"):
            write()
    view["history"].clear()
    for mine in (dict(row), row | {"status": "ok"}, copy.deepcopy(row), pickle.loads(pickle.dumps(row))):
        assert type(mine) is dict and mine == row and json.loads(json.dumps(row)) == json.loads(json.dumps(mine))
        mine["status"] = "forged"
    assert memory.l2_for_ideator(ENV, rounds.CONFIG)["history"][0]["status"] == "ok"
    assert memory.l2_for_ideator(ENV, rounds.CONFIG)["history"][0] is row


def one_round(memory: RunMemory, number: int) -> None:
    """All that a round asks of the run's memory."""
    assert memory.next_round() == number
    memory.history.append_attempt(rounds.begun(number))
    memory.l2_for_ideator(ENV, rounds.CONFIG)
    memory.history.append_attempt(rounds.planned(number))
    memory.by_branch((rounds.branch(1),))
    memory.history.append_attempt(rounds.nominated(number))
    recorded(memory, row_of(number, "quiet", 0))


def calls_of(memory: RunMemory, number: int) -> Counter[str]:
    """Python functions that one round calls, by name."""
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


def test_a_late_round_does_what_an_early_one_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = started(tmp_path)
    recorded(memory, row_of(1, "VERIFIED", 3))
    memory.history.append_attempt(rounds.begun(1))
    # Between two summaries at the top: those are written after each of the first rows, then ever more seldom.
    between = views.ALWAYS + 1
    assert not views.summary_is_due(between) and not views.summary_is_due(120)
    for number in range(2, between):
        one_round(memory, number)
    early = calls_of(memory, between)
    for number in range(between + 1, 120):
        one_round(memory, number)
    appended: list[int] = []
    real = atomic.append_bytes
    monkeypatch.setattr(atomic, "append_bytes", lambda path, data: (appended.append(len(data)), real(path, data)))
    late = calls_of(memory, 120)
    late.subtract(early)
    assert {name: number for name, number in late.items() if number and "<lambda>" not in name} == {}
    assert len(appended) == 1 and appended[0] < 2000, "the log is added to, not written again"


def test_a_round_on_a_long_front_is_put_into_words_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    memory = started(tmp_path)
    worded: list[object] = []
    real = told._line
    monkeypatch.setattr(told, "_line", lambda value: (worded.append(value), real(value))[1])
    for number in range(1, 31):
        worded.clear()
        figures = {"judge_flops_per_syndrome": number, "judge_n_params": number}
        recorded(memory, rounds.row(number, delta_vs_baseline_holdout=0.001 * number, **figures))
        memory.l2_for_ideator(ENV, rounds.CONFIG)
    assert len(memory.front()) == memory.discoveries() == 30 and len(worded) == 2, "a node and an entry"
    assert on_disk(memory) == RunMemory(memory.layout.root).views()


def test_charges_are_those_of_the_file(tmp_path: Path) -> None:
    memory = started(tmp_path)
    for number in (1, 2):
        for line in (rounds.begun(number), rounds.planned(number), rounds.charged(number)):
            memory.history.append_attempt(line)
        assert [line.round for line in memory.charged()] == [1, 2][:number]
    lines = memory.layout.attempts.read_bytes().splitlines(keepends=True)
    atomic.write_bytes(memory.layout.attempts, b"".join(lines[:3]))
    assert [line.round for line in memory.charged()] == [1]
