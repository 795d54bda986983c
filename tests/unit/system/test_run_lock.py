"""One owner a run, and the leftovers of a dead one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autoqec.errors import StorageError, UsageError
from autoqec.store.layout import RunLayout
from autoqec.system import run_lock
from autoqec.system.process import procfs

HOLD = """
import sys, time
from autoqec.system import run_lock
with run_lock.lock_run(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


@contextmanager
def another(run_root: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(run_root)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.wait()


def test_the_note_says_who_and_counts(tmp_path: Path) -> None:
    for epoch in (1, 2):
        with run_lock.lock_run(tmp_path) as held:
            note = json.loads((tmp_path / "owner.json").read_text())
            assert (held.epoch, note["epoch"], note["pid"]) == (epoch, epoch, os.getpid())
            assert note["boot_id"] == procfs.boot_id() and note["start_time"] == procfs.start_time(os.getpid())
    assert RunLayout(tmp_path, "x").owner.name == run_lock.OWNER_FILE
    assert sorted(path.name for path in tmp_path.iterdir()) == ["owner.json"]


def test_a_second_owner_is_refused_and_told_who(tmp_path: Path) -> None:
    with another(tmp_path) as process:
        with pytest.raises(UsageError, match=f"kill {process.pid}"), run_lock.lock_run(tmp_path):
            pass
        assert run_lock.read(tmp_path)["pid"] == process.pid
    with run_lock.lock_run(tmp_path) as held:
        assert held.epoch == 2


def test_within_one_process_too(tmp_path: Path) -> None:
    with run_lock.lock_run(tmp_path), pytest.raises(UsageError), run_lock.lock_run(tmp_path):
        pass
    with run_lock.lock_run(tmp_path):
        pass


def test_leftovers_of_a_dead_owner_are_ended(tmp_path: Path) -> None:
    mark = {"AUTOQEC_OWNER": f"{tmp_path}:1"}
    left = subprocess.Popen(["sleep", "600"], env=os.environ | mark, start_new_session=True)
    other = subprocess.Popen(["sleep", "600"], env=os.environ | {"AUTOQEC_OWNER": f"{tmp_path}-2:1"})
    try:
        with run_lock.lock_run(tmp_path) as held:
            assert held.killed_pids == (left.pid,)
            assert left.wait(30) == -9
            assert other.poll() is None
    finally:
        for process in (left, other):
            process.kill()
            process.wait()


def test_children_carry_the_mark_only_while_the_run_is_held(tmp_path: Path) -> None:
    from autoqec.system.process import child

    with run_lock.lock_run(tmp_path):
        assert child.environment()["AUTOQEC_OWNER"] == f"{tmp_path.resolve()}:1"
    assert "AUTOQEC_OWNER" not in child.environment()


def test_a_garbled_note_stops_nobody(tmp_path: Path) -> None:
    for text in ("{", "[]", '{"epoch": null}'):
        (tmp_path / "owner.json").write_text(text)
        with run_lock.lock_run(tmp_path) as held:
            assert held.epoch == 1


def test_the_lock_is_not_inherited(tmp_path: Path) -> None:
    with run_lock.lock_run(tmp_path):
        left = subprocess.Popen(["sleep", "600"], close_fds=False, env={"PATH": os.environ["PATH"]})
    try:
        with run_lock.lock_run(tmp_path):
            pass
    finally:
        left.kill()
        left.wait()


def test_faults_of_the_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError), run_lock.lock_run(tmp_path / "nowhere"):
        pass

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="hint: .*df -h"), run_lock.lock_run(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_a_remote_file_system_is_warned_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with run_lock.lock_run(tmp_path) as held:
        assert held.warning is None
    monkeypatch.setattr(run_lock, "_file_system", lambda path: "nfs4")
    with run_lock.lock_run(tmp_path) as held:
        assert held.warning is not None and "nfs4" in held.warning


@pytest.mark.parametrize("epoch", ["x", 1e400, -1, None, [1]])
def test_a_damaged_epoch_counts_as_none(tmp_path: Path, epoch: object) -> None:
    (tmp_path / "owner.json").write_text(json.dumps({"epoch": epoch}))
    with run_lock.lock_run(tmp_path) as held:
        assert held.epoch == 1
