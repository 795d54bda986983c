"""Scratch directories: removed with their block, or by the next process if theirs was killed."""

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
with scratch("verify") as place:
    (place / "weights").write_bytes(b"x" * 1000)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def aged(path: Path) -> Path:
    os.utime(path, (0, 0))
    return path


def test_directory_is_removed_with_its_block() -> None:
    with scratch.scratch("parents") as place:
        assert place.is_dir() and not list(place.iterdir())
        (place / "file").write_text("x")
    assert not place.exists()


def test_directory_of_a_killed_process_is_removed_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = subprocess.run(
        [sys.executable, "-P", "-c", KILLED], env=os.environ | {"TMPDIR": str(tmp_path)}, check=False
    )
    assert ended.returncode == -signal.SIGKILL
    (abandoned,) = tmp_path.iterdir()
    assert remove_stale(tmp_path) == [], "it may be so young that it is not locked yet"
    other = [tmp_path / "autoqec-scratch-mine", tmp_path / "autoqec-verify-abcdefgh"]
    for path in other:
        path.mkdir()
    link = tmp_path / "autoqec-scratch-verify-aaaaaaaa"
    link.symlink_to(other[0])
    monkeypatch.setattr(scratch.tempfile, "tempdir", str(tmp_path))
    with scratch.scratch("verify") as held:
        for path in (abandoned, held, *other):
            aged(path)
        assert remove_stale(tmp_path) == [abandoned]
        assert held.is_dir()
    assert sorted(tmp_path.iterdir()) == sorted([link, *other])
    scratch._remove_stale_once.cache_clear()


def test_stale_directories_are_searched_once_per_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch.tempfile, "tempdir", str(tmp_path))
    scratch._remove_stale_once.cache_clear()
    names = [tmp_path / f"autoqec-scratch-verify-{letter * 8}" for letter in "ab"]
    for path in names:
        path.mkdir()
        aged(path)
        with scratch.scratch("verify"):
            pass
    assert [path.exists() for path in names] == [False, True]
    scratch._remove_stale_once.cache_clear()
