"""One owner per run, and the processes that a dead owner left."""

from __future__ import annotations

import fcntl
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from autoqec.errors import StorageError, UsageError
from autoqec.system import run_lock

HOLD = """
import sys, time
from autoqec.system import run_lock
with run_lock.lock_run(sys.argv[1]):
    print("held", flush=True)
    time.sleep(600)
"""


@contextmanager
def owner_process(run_root: Path) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(run_root)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield process
    finally:
        process.kill()
        process.wait()


def test_owner_file_names_process_and_epoch(tmp_path: Path) -> None:
    for epoch in (1, 2):
        with run_lock.lock_run(tmp_path) as held:
            note = json.loads((tmp_path / "owner.json").read_text())
            assert (held.epoch, note["epoch"], note["pid"]) == (epoch, epoch, os.getpid())
            assert run_lock.owner_exists(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["owner.json", "owner.lock"]


def test_second_owner_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    with owner_process(tmp_path) as process:
        with pytest.raises(UsageError, match=f"kill {process.pid}") as refused, run_lock.lock_run(tmp_path):
            pass
        # no number of starts: the file counts every command that held the run
        assert refused.value.message == f"the run is held by process {process.pid} on {socket.gethostname()}"
        assert run_lock.read(tmp_path)["pid"] == process.pid
    with run_lock.lock_run(tmp_path) as held:
        assert held.epoch == 2


def test_second_lock_in_one_process_is_refused(tmp_path: Path) -> None:
    with run_lock.lock_run(tmp_path), pytest.raises(UsageError), run_lock.lock_run(tmp_path):
        pass
    with run_lock.lock_run(tmp_path):
        pass


def test_processes_of_a_dead_owner_are_killed(tmp_path: Path) -> None:
    mark = {"AUTOQEC_OWNER": f"{tmp_path}:1"}
    leftover = subprocess.Popen(["sleep", "600"], env=os.environ | mark, start_new_session=True)
    other = subprocess.Popen(["sleep", "600"], env=os.environ | {"AUTOQEC_OWNER": f"{tmp_path}-2:1"})
    try:
        for process in (leftover, other):
            while b"AUTOQEC_OWNER=" not in Path(f"/proc/{process.pid}/environ").read_bytes():
                time.sleep(0.01)  # Popen returns when the old program is closed, a moment before the new one is loaded
        with run_lock.lock_run(tmp_path) as held:
            assert held.killed_pids == (leftover.pid,)
            assert leftover.wait(30) == -9
            assert other.poll() is None
    finally:
        for process in (leftover, other):
            process.kill()
            process.wait()


def test_children_carry_the_run_marker_only_while_the_lock_is_held(tmp_path: Path) -> None:
    from autoqec.system.process import child

    with run_lock.lock_run(tmp_path):
        assert child.environment()["AUTOQEC_OWNER"] == f"{tmp_path.resolve()}:1"
    assert "AUTOQEC_OWNER" not in child.environment()


def test_malformed_owner_file_does_not_block_a_start(tmp_path: Path) -> None:
    for text in ("{", "[]", '{"epoch": null}'):
        (tmp_path / "owner.json").write_text(text)
        with run_lock.lock_run(tmp_path) as held:
            assert held.epoch == 1


def test_lock_is_not_inherited(tmp_path: Path) -> None:
    with run_lock.lock_run(tmp_path):
        leftover = subprocess.Popen(["sleep", "600"], close_fds=False, env={"PATH": os.environ["PATH"]})
    try:
        with run_lock.lock_run(tmp_path):
            pass
    finally:
        leftover.kill()
        leftover.wait()


def test_unusable_run_directory_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError), run_lock.lock_run(tmp_path / "nowhere"):
        pass

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StorageError, match="hint: .*df -h"), run_lock.lock_run(tmp_path):
        pass
    assert [path.name for path in tmp_path.iterdir()] == ["owner.lock"]


HOLD_ON_ANOTHER_HOST = """
import fcntl, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT, 0o644)
fcntl.flock(fd, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(600)
"""


def mount_as(monkeypatch: pytest.MonkeyPatch, kind: str, *options: str) -> None:
    mount = SimpleNamespace(mountpoint="/", fstype=kind, opts=",".join(options))
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: [mount])


def test_file_system_is_that_of_the_innermost_mount(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mounts = [("/", "ext4"), (str(tmp_path), "nfs"), (str(tmp_path), "nfs4"), (str(tmp_path / "run2"), "9p")]
    found = [SimpleNamespace(mountpoint=place, fstype=kind, opts="rw,nolock") for place, kind in mounts]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: found)
    (tmp_path / "run").mkdir()
    with run_lock.lock_run(tmp_path / "run") as held:
        assert held.warning is not None and "lies on nfs4 with the option nolock" in held.warning


def test_owner_on_another_host_is_seen_through_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount_as(monkeypatch, "nfs4", "rw", "vers=4.2", "local_lock=none")
    command = [sys.executable, "-c", HOLD_ON_ANOTHER_HOST, str(tmp_path / "owner.lock")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None and other.stdout.readline() == "held\n"
            assert run_lock.is_locked(tmp_path)
            with pytest.raises(UsageError, match="the run is held by") as refused, run_lock.lock_run(tmp_path):
                pass
            assert refused.value.code == run_lock.HELD
        finally:
            other.kill()
    with run_lock.lock_run(tmp_path) as held:
        assert held.epoch == 1 and held.warning is None


@pytest.mark.parametrize(
    ("kind", "options", "named"),
    [
        ("nfs4", ("rw", "local_lock=all"), "nfs4 with the option local_lock=all"),
        ("nfs", ("rw", "nolock"), "nfs with the option nolock"),
        ("lustre", ("rw", "localflock"), "lustre with the option localflock"),
        ("9p", ("rw",), "9p"),
        ("fuse.sshfs", ("rw",), "fuse.sshfs"),
    ],
)
def test_lock_that_may_not_reach_other_hosts_is_warned_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, options: tuple[str, ...], named: str
) -> None:
    with run_lock.lock_run(tmp_path) as held:
        assert held.warning is None
    mount_as(monkeypatch, kind, *options)
    with run_lock.lock_run(tmp_path) as held:
        assert held.warning is not None and f"lies on {named}: locks may not reach other hosts" in held.warning


def test_file_system_without_locks_of_files_is_warned_about(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mount_as(monkeypatch, "nfs4", "rw")

    def refuse(*_: Any) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with run_lock.lock_run(tmp_path) as held:
        assert held.warning is not None and "lies on nfs4: locks may not reach" in held.warning
    mount_as(monkeypatch, "ext4", "rw")
    with pytest.raises(StorageError, match="No locks available"), run_lock.lock_run(tmp_path):
        pass


@pytest.mark.parametrize("epoch", ["x", 1e400, -1, None, [1]])
def test_damaged_epoch_restarts_at_one(tmp_path: Path, epoch: object) -> None:
    (tmp_path / "owner.json").write_text(json.dumps({"epoch": epoch}))
    with run_lock.lock_run(tmp_path) as held:
        assert held.epoch == 1
