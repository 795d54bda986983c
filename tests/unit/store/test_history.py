"""history.jsonl: tolerates what a crash leaves and is strict about everything else."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest

from autoqec.contracts.history import AlphaSpent, Begun, HistoryRow, RunInfo
from autoqec.errors import ContractError, ManualInterventionRequired, StorageError, UsageError
from autoqec.store import atomic, jsonl
from autoqec.store.history import History
from autoqec.store.layout import RunLayout

SHA = "a" * 64
AT = datetime(2026, 1, 1, tzinfo=UTC)


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


def begun(number: int) -> Begun:
    return Begun(round_attempt_id=f"id-{number}", round=number, at=AT)


def registered(number: int) -> AlphaSpent:
    return AlphaSpent(
        round_attempt_id=f"id-{number}", round=number, artifact_sha256="a" * 64, attempt_index=number, at=AT
    )


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
        package_sha256=SHA,
        secret_sha256=SHA,
        versions={},
        command_line=("autoqec", "run"),
    )


def test_appended_rows_are_read_back(tmp_path: Path) -> None:
    history = make(tmp_path)
    assert history.rows() == [] and history.attempts() == []
    history.append_attempt(begun(1))
    history.append_row(row(1))
    history.append_row(row(2))
    assert [found.round for found in history.rows()] == [1, 2]
    assert history.attempts() == [begun(1)]
    assert set(history.state().rounds) == {"id-1", "id-2"}


def test_row_without_its_round_directory_is_refused(tmp_path: Path) -> None:
    history = make(tmp_path)
    with pytest.raises(ContractError, match="round_7"):
        history.append_row(row(7))
    assert not history.layout.history.exists()


def test_attempt_has_one_row_besides_follow_ups(tmp_path: Path) -> None:
    history = make(tmp_path)
    history.append_row(row(1))
    with pytest.raises(ContractError, match="id-1"):
        history.append_row(row(1))
    history.append_row(row(1, refers_to_attempt="id-1"))
    history.append_row(row(1, round_attempt_id=None, reconcile_id="r", refers_to_attempt="id-1"))
    assert len(history.rows()) == 3


def test_torn_last_line_is_left_out_and_unknown_keys_are_kept(tmp_path: Path) -> None:
    history = make(tmp_path)
    jsonl.append(history.layout.history, row(1).dump() | {"of_a_later_version": [1]}, chained=True)
    jsonl.append(history.layout.attempts, begun(1).dump() | {"more": 1}, chained=True)
    for path in (history.layout.history, history.layout.attempts):
        path.write_bytes(path.read_bytes() + b'{"ki')
    (found,) = history.rows()
    assert found.model_extra == {"of_a_later_version": [1]} and len(history.attempts()) == 1


@pytest.mark.parametrize("damage", [{"round": 0}, {"kind": "unheard of"}])
def test_damaged_line_pauses_the_run_and_names_the_line(tmp_path: Path, damage: dict[str, object]) -> None:
    history = make(tmp_path)
    for value in (row(1).dump(), damage):
        jsonl.append(history.layout.history, value, chained=True)
    jsonl.append(history.layout.attempts, damage, chained=True)
    with pytest.raises(ManualInterventionRequired, match=r"history\.jsonl:2"):
        history.rows()
    with pytest.raises(ManualInterventionRequired, match=r"attempts\.jsonl:1"):
        history.attempts()


@pytest.mark.parametrize("line", ["{", "[]", "{}"])
def test_line_that_is_not_a_chained_object_pauses_the_run(tmp_path: Path, line: str) -> None:
    history = make(tmp_path)
    history.layout.history.write_text(f"{line}\n")
    with pytest.raises(ManualInterventionRequired, match=r"history\.jsonl:1"):
        history.rows()


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


def test_appended_rows_are_read_and_a_restored_file_is_reread(tmp_path: Path) -> None:
    history = make(tmp_path)
    reader = History(history.layout)
    history.append_row(row(1))
    assert [found.round for found in reader.rows()] == [1]
    history.append_row(row(2))
    assert [found.round for found in reader.rows()] == [1, 2]
    first = history.layout.history.read_bytes().splitlines(keepends=True)[0]
    atomic.write_bytes(history.layout.history, first)
    assert [found.round for found in reader.rows()] == [1]
    history.layout.history.unlink()
    assert reader.rows() == []


def test_incomplete_line_is_read_after_it_is_complete(tmp_path: Path) -> None:
    history = make(tmp_path)
    history.append_row(row(1))
    History(history.layout).append_row(row(2))
    first, line = history.layout.history.read_bytes().splitlines(keepends=True)
    history.layout.history.write_bytes(first + line[:40])
    assert [found.round for found in history.rows()] == [1]
    with history.layout.history.open("ab") as stream:
        stream.write(line[40:])
    assert [found.round for found in history.rows()] == [1, 2]


# ---- hash chain


@pytest.fixture
def history(tmp_path: Path) -> History:
    history = make(tmp_path)
    for number in (3, 4):
        atomic.make_dir(history.layout.round(number).dir)
    return history


def stored(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def test_each_line_holds_the_hash_of_the_line_before(history: History) -> None:
    history.append_rows([row(1), row(2)])
    history.append_row(row(3))
    lines = stored(history.layout.history)
    hashes = [json.loads(line)["prev_sha256"] for line in lines]
    assert hashes == ["0" * 64, *(hashlib.sha256(line[:-1]).hexdigest() for line in lines[:-1])]
    fresh = History(history.layout).rows()
    assert fresh == [row(1), row(2), row(3)] and not {"prev_sha256", "line_sha256"} & set(fresh[0].dump())


@pytest.mark.parametrize("rows", [1, 2])
def test_any_changed_bit_of_the_last_line_is_noticed(history: History, rows: int) -> None:
    history.append_rows([row(number) for number in range(1, rows + 1)])
    path = history.layout.history
    *others, last = stored(path)
    for position in range(len(last) - 1):  # without the newline the line is torn, and does not count
        changed = bytearray(last)
        changed[position] ^= 1 << position % 7
        if {b"\n"[0], 0} & set(changed[:-1]):
            continue  # NUL bytes are what a power cut leaves: the line is torn
        path.write_bytes(b"".join(others) + changed)
        with pytest.raises(ManualInterventionRequired):
            History(history.layout).rows()


@pytest.mark.parametrize("damage", ["edit", "remove", "swap", "unchain"])
def test_broken_chain_names_file_and_line(history: History, damage: str) -> None:
    history.append_rows([row(number) for number in (1, 2, 3, 4)])
    path = history.layout.history
    lines = stored(path)
    if damage == "edit":
        lines[1] = lines[1].replace(b'"hypothesis":"', b'"hypothesis":"forged ')
    elif damage == "remove":
        del lines[1]
    elif damage == "swap":
        lines[1], lines[2] = lines[2], lines[1]
    else:
        value = json.loads(lines[2])
        del value["prev_sha256"]
        lines[2] = json.dumps(value).encode() + b"\n"
    path.write_bytes(b"".join(lines))
    place = {"edit": 2, "remove": 2, "swap": 2, "unchain": 3}[damage]
    with pytest.raises(ManualInterventionRequired, match="hash chain is broken") as found:
        History(history.layout).rows()
    assert found.value.location == f"{path}:{place}" and found.value.exit_code == 3


@pytest.mark.parametrize("end", ["cut", "replaced", "empty", "missing"])
def test_row_shows_that_the_end_of_the_attempts_is_gone(history: History, end: str) -> None:
    """Lines of rounds without a row of their own; the chain of what is left is intact."""
    history.append_row(row(1))
    history.append_attempt(begun(1))
    history.append_attempt(begun(2))
    history.append_row(row(2))
    history.append_attempt(begun(3))
    with history.layout.attempts.open("ab") as stream:
        stream.write(b'{"torn')
    history.append_rows([row(3), row(4)])
    assert history.row_without_its_attempts() is None
    history.append_attempt(begun(4))
    assert history.row_without_its_attempts() is None
    path, lines = history.layout.attempts, stored(history.layout.attempts)
    path.write_bytes(b"" if end == "empty" else b"".join(lines[:2]))
    if end == "missing":
        path.unlink()
    if end == "replaced":
        history.append_attempt(begun(4))
    assert len(History(history.layout).attempts()) == {"cut": 2, "replaced": 3}.get(end, 0)
    assert history.row_without_its_attempts() == (3 if end in ("cut", "replaced") else 2)
    assert History(history.layout).rows()[0] == row(1), "the hash is no field of the row"


@pytest.mark.parametrize("end", ["cut", "replaced", "missing"])
def test_loss_of_a_registered_test_before_its_row_is_noticed(history: History, end: str) -> None:
    """Its place in the run's stream of tests would be given a second time."""
    test = registered(1)
    history.append_attempt(begun(1))
    assert not history.lost_registered_test()
    path, whole = history.layout.attempts, history.layout.attempts.read_bytes()
    history.register_test(test)
    assert not history.lost_registered_test()
    history.append_attempt(begun(2))
    assert not history.lost_registered_test(), "a later line of another kind"
    path.write_bytes(whole)
    if end == "replaced":
        history.append_attempt(begun(2))
    if end == "missing":
        path.unlink()
    assert history.lost_registered_test()
    with pytest.raises(ManualInterventionRequired, match="registered last is missing") as raised:
        history.register_test(test)
    assert "attempts.head" in str(raised.value.hint)


@pytest.mark.parametrize("content", ["", "a" * 63, "no hash\n", f"{'a' * 64}\n{'b' * 64}\n"])
def test_damaged_name_of_a_registered_test_is_named(history: History, content: str) -> None:
    """Not the file of the tests, which is whole."""
    history.register_test(registered(1))
    history.layout.attempts_head.write_text(content)
    with pytest.raises(ManualInterventionRequired, match="not the hash of a line") as raised:
        history.lost_registered_test()
    assert raised.value.location == str(history.layout.attempts_head) and "delete it if" in str(raised.value.hint)


@pytest.mark.parametrize("put", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to(path.name)])
def test_unreadable_name_of_a_registered_test_is_an_error(history: History, put: Callable[[Path], None]) -> None:
    put(history.layout.attempts_head)
    with pytest.raises(StorageError, match="could not be read") as raised:
        history.lost_registered_test()
    assert raised.value.location == str(history.layout.attempts_head)
