"""The run's truth: tolerant of what a crash leaves, strict about everything else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoqec.contracts.history import Begun, HistoryRow, RunInfo
from autoqec.errors import ContractError, ManualInterventionRequired, UsageError
from autoqec.store import atomic
from autoqec.store.history import History
from autoqec.store.layout import RunLayout

SHA = "a" * 64


def make(tmp_path: Path) -> History:
    history = History(RunLayout(tmp_path, "20260101-000000"))
    for number in (1, 2):
        atomic.make_dir(history.layout.round(number).dir)
    return history


def row(number: int, **values: object) -> HistoryRow:
    base = {
        "status": "train_error",
        "status_reason": "diverged",
        "round": number,
        "hypothesis": "more width helps",
        "verdict": "ignore",
        "round_attempt_id": f"id-{number}",
    }
    return HistoryRow.model_validate(base | values)


def info() -> RunInfo:
    return RunInfo(
        run_id="20260101-000000",
        env_name="e",
        env_yaml_sha256=SHA,
        baseline_sha="b" * 40,
        baseline_ref="main",
        profile="smoke",
        seed=0,
        ideator="tpe",
        code_sha256=SHA,
        secret_sha256=SHA,
        versions={},
        command_line=("autoqec", "run"),
    )


def test_what_is_appended_comes_back(tmp_path: Path) -> None:
    history = make(tmp_path)
    assert history.rows() == [] and history.attempts() == []
    history.append_attempt(Begun(round_attempt_id="id-1", round=1))
    history.append_row(row(1))
    history.append_row(row(2))
    assert [found.round for found in history.rows()] == [1, 2]
    assert history.attempts() == [Begun(round_attempt_id="id-1", round=1)]
    assert set(history.state().rounds) == {"id-1", "id-2"}


def test_a_row_needs_its_round_directory(tmp_path: Path) -> None:
    history = make(tmp_path)
    with pytest.raises(ContractError, match="round_7"):
        history.append_row(row(7))
    assert not history.layout.history.exists()


def test_one_row_an_attempt_but_follow_ups(tmp_path: Path) -> None:
    history = make(tmp_path)
    history.append_row(row(1))
    with pytest.raises(ContractError, match="id-1"):
        history.append_row(row(1))
    history.append_row(row(1, refers_to_attempt="id-1"))
    history.append_row(row(1, round_attempt_id=None, reconcile_id="r", refers_to_attempt="id-1"))
    assert len(history.rows()) == 3


def test_a_torn_last_line_is_left_out_and_unknown_keys_are_kept(tmp_path: Path) -> None:
    history = make(tmp_path)
    later = row(1).dump() | {"of_a_later_version": [1]}
    history.layout.history.write_text(json.dumps(later) + "\n" + '{"round": 2')
    (found,) = history.rows()
    assert found.model_extra == {"of_a_later_version": [1]}
    history.layout.attempts.write_text('{"kind":"begun","round_attempt_id":"a","round":1,"more":1}\n{"ki')
    assert len(history.attempts()) == 1


@pytest.mark.parametrize("line", ["{", "[]", '{"round": 0}', '{"kind": "unheard of"}'])
def test_a_damaged_line_pauses_the_run_and_is_named(tmp_path: Path, line: str) -> None:
    history = make(tmp_path)
    good = json.dumps(row(1).dump())
    history.layout.history.write_text(f"{good}\n{line}\n{good}\n")
    with pytest.raises(ManualInterventionRequired, match=r"history\.jsonl:2"):
        history.rows()
    history.layout.attempts.write_text(f"{line}\n{line}\n")
    with pytest.raises(ManualInterventionRequired, match=r"attempts\.jsonl:1"):
        history.attempts()


def test_run_info_is_written_once(tmp_path: Path) -> None:
    history = make(tmp_path)
    with pytest.raises(UsageError, match="no run"):
        history.info()
    history.write_info(info())
    assert history.info() == info()
    with pytest.raises(ContractError):
        history.write_info(info())
    history.layout.run_info.write_text("{")
    with pytest.raises(ManualInterventionRequired):
        history.info()


def test_what_others_append_is_seen_and_what_is_restored_is_read_anew(tmp_path: Path) -> None:
    one = make(tmp_path)
    other = History(one.layout)
    one.append_row(row(1))
    assert [found.round for found in other.rows()] == [1]
    one.append_row(row(2))
    assert [found.round for found in other.rows()] == [1, 2]
    first = one.layout.history.read_bytes().splitlines(keepends=True)[0]
    atomic.write_bytes(one.layout.history, first)
    assert [found.round for found in other.rows()] == [1]
    one.layout.history.unlink()
    assert other.rows() == []


def test_a_line_torn_while_we_look_is_read_once_it_is_whole(tmp_path: Path) -> None:
    history = make(tmp_path)
    history.append_row(row(1))
    line = json.dumps(row(2).dump()).encode() + b"\n"
    with history.layout.history.open("ab") as stream:
        stream.write(line[:40])
    assert [found.round for found in history.rows()] == [1]
    with history.layout.history.open("ab") as stream:
        stream.write(line[40:])
    assert [found.round for found in history.rows()] == [1, 2]
