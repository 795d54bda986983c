"""JSON lines that survive torn tails, full disks and concurrent writers."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from autoqec.errors import ContractError, StorageError
from autoqec.store import jsonl

APPEND_MANY = """
import sys
from autoqec.store import jsonl
for n in range(int(sys.argv[2])):
    jsonl.append(sys.argv[1], {"who": sys.argv[3], "n": n, "pad": "x" * 500})
"""


def test_lines_are_read_in_order(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    assert jsonl.read(path) == []
    for n in range(3):
        jsonl.append(path, {"n": n, "text": "ü\n"})
    assert [row["n"] for row in jsonl.read(path)] == [0, 1, 2]
    assert path.read_bytes().count(b"\n") == 3


@pytest.mark.parametrize("tail", [b'{"n":1', b'{"n":1}', b"\0" * 5000, b'{"n":\0\0\0}\n', b"x" * 200_000, b"\xff\xfe"])
@pytest.mark.parametrize("before", [b"", b'{"n":0}\n', b'{"n":0}\n' + b'{"n":0,"p":"' + b"y" * 70_000 + b'"}\n'])
def test_torn_tail_is_skipped_then_moved_to_the_salvage_directory(tmp_path: Path, tail: bytes, before: bytes) -> None:
    path = tmp_path / "h.jsonl"
    path.write_bytes(before + tail)
    assert len(jsonl.read(path)) == before.count(b"\n")
    jsonl.append(path, {"n": 9}, salvage=tmp_path / "kept")
    assert path.read_bytes() == before + b'{"n":9}\n'
    (saved,) = (tmp_path / "kept").iterdir()
    assert saved.read_bytes() == tail


def test_killed_repair_saves_the_same_file_again(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    for _ in range(2):
        path.write_bytes(b'{"n":0}\n{"torn')
        jsonl.append(path, {"n": 1})
    assert len(list((tmp_path / "salvage").iterdir())) == 1


@pytest.mark.parametrize("written", [0, 4, None])
def test_full_disk_leaves_the_file_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: int | None
) -> None:
    path = tmp_path / "h.jsonl"
    jsonl.append(path, {"n": 0})
    before, real = path.read_bytes(), os.write

    def write(fd: int, data: bytes) -> int:
        if written is None:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(fd, data[:written])

    monkeypatch.setattr(os, "write", write)
    with pytest.raises(StorageError):
        jsonl.append(path, {"n": 1})
    monkeypatch.undo()
    assert path.read_bytes() == before


def test_failed_sync_is_not_retried_and_the_line_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "h.jsonl"
    jsonl.append(path, {"n": 0})
    calls: list[int] = []

    def fsync(fd: int) -> None:
        calls.append(fd)
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fsync", fsync)
    with pytest.raises(StorageError) as caught:
        jsonl.append(path, {"n": 1})
    monkeypatch.undo()
    assert caught.value.exit_code == 74
    assert jsonl.read(path) == [{"n": 0}]
    assert len(calls) == 2  # after the line, and after the truncation


def test_damaged_line_in_the_middle_is_named(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    for middle in (b"{oops}", b"[1]", b'{"x":NaN}', b"", b"\xff"):
        path.write_bytes(b'{"n":0}\n' + middle + b'\n{"n":2}\n')
        with pytest.raises(ContractError, match=r"h\.jsonl:2"):
            jsonl.read(path)


def test_nan_never_reaches_the_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError):
        jsonl.append(tmp_path / "h.jsonl", {"x": float("inf")})
    assert not (tmp_path / "h.jsonl").exists()


def test_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "h.jsonl").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StorageError):
        jsonl.append(tmp_path / "h.jsonl", {"n": 0})
    assert not (tmp_path / "elsewhere").exists()


def test_two_processes_append_without_losing_a_line(tmp_path: Path) -> None:
    path = tmp_path / "h.jsonl"
    path.write_bytes(b'{"torn')
    writers = [subprocess.Popen([sys.executable, "-c", APPEND_MANY, str(path), "60", who]) for who in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    rows = jsonl.read(path)
    for who in "ab":
        assert [row["n"] for row in rows if row["who"] == who] == list(range(60))
