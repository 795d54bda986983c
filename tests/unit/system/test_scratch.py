"""Scratch directories: gone with their block, and where the process was killed, with the next one that looks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autoqec.system import scratch
from autoqec.system.scratch import remove_stale

KILLED = """
import os, signal
from autoqec.system.scratch import scratch
with scratch("judge") as place:
    (place / "weights").write_bytes(b"x" * 1000)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def aged(path: Path) -> Path:
    os.utime(path, (0, 0))
    return path


def test_gone_with_its_block() -> None:
    with scratch.scratch("parents") as place:
        assert place.is_dir() and not list(place.iterdir())
        (place / "file").write_text("x")
    assert not place.exists()


def test_what_a_killed_process_left_goes_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ended = subprocess.run(
        [sys.executable, "-P", "-c", KILLED], env=os.environ | {"TMPDIR": str(tmp_path)}, check=False
    )
    assert ended.returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    assert remove_stale(tmp_path) == [], "it may be so young that it is not locked yet"
    other = [tmp_path / "autoqec-scratch-mine", tmp_path / "autoqec-judge-abcdefgh"]
    for path in other:
        path.mkdir()
    link = tmp_path / "autoqec-scratch-judge-aaaaaaaa"
    link.symlink_to(other[0])
    monkeypatch.setattr(scratch.tempfile, "tempdir", str(tmp_path))
    with scratch.scratch("judge") as held:
        for path in (left, held, *other):
            aged(path)
        assert remove_stale(tmp_path) == [left]
        assert held.is_dir()
    assert sorted(tmp_path.iterdir()) == sorted([link, *other])
    scratch._remove_stale_once.cache_clear()


def test_the_next_process_looks_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch.tempfile, "tempdir", str(tmp_path))
    scratch._remove_stale_once.cache_clear()
    names = [tmp_path / f"autoqec-scratch-judge-{letter * 8}" for letter in "ab"]
    for path in names:
        path.mkdir()
        aged(path)
        with scratch.scratch("judge"):
            pass
    assert [path.exists() for path in names] == [False, True]
    scratch._remove_stale_once.cache_clear()
