"""Atomic writes: the whole file or none, also if the disk fails."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from autoqec.errors import StorageError, UsageError
from autoqec.store import atomic


def names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


def fail_with(number: int):
    def fail(*_args: object) -> int:
        raise OSError(number, os.strerror(number))

    return fail


def test_write_replaces_the_file_and_leaves_no_temporary(tmp_path: Path) -> None:
    atomic.write_text(tmp_path / "a", "one")
    atomic.write_text(tmp_path / "a", "zwei ü")
    assert (tmp_path / "a").read_text(encoding="utf-8") == "zwei ü"
    assert names(tmp_path) == ["a"]


def test_bytes_and_the_name_are_synced_before_return(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    real = os.fsync

    def fsync(fd: int) -> None:
        synced.append("dir" if os.path.isdir(f"/proc/self/fd/{fd}") else "file")
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    atomic.write_bytes(tmp_path / "a", b"x")
    assert synced == ["file", "dir"]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EPERM])
@pytest.mark.parametrize("call", ["write", "fsync", "replace"])
def test_failing_disk_keeps_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str, number: int
) -> None:
    atomic.write_text(tmp_path / "a", "old")
    monkeypatch.setattr(os, call, fail_with(number))
    with pytest.raises(StorageError) as caught:
        atomic.write_text(tmp_path / "a", "new")
    monkeypatch.undo()
    assert caught.value.exit_code == 74 and str(tmp_path / "a") in str(caught.value)
    assert (tmp_path / "a").read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, bytes(data)[:3]))
    atomic.write_bytes(tmp_path / "a", b"0123456789")
    assert (tmp_path / "a").read_bytes() == b"0123456789"


def test_link_is_replaced_and_never_followed(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("precious")
    (tmp_path / "a").symlink_to(tmp_path / "victim")
    atomic.write_text(tmp_path / "a", "new")
    assert (tmp_path / "victim").read_text() == "precious"
    assert not (tmp_path / "a").is_symlink()


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "/dev/../dev/null"])
def test_devices_are_not_replaced(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Root could: /dev/stdout is a link, which every other process would miss."""

    def never(*_: object) -> None:
        raise AssertionError("a file is written")

    monkeypatch.setattr(atomic.os, "open", never)
    monkeypatch.setattr(atomic.os, "replace", never)
    with pytest.raises(UsageError, match="is a device") as refused:
        atomic.write_bytes(name, b"x")
    assert refused.value.location == str(Path(name)) and "cat" in str(refused.value.hint)


def test_json_refuses_nan_and_keeps_the_order(tmp_path: Path) -> None:
    atomic.write_json(tmp_path / "a.json", {"b": 1, "a": [0.1]})
    assert list(json.loads((tmp_path / "a.json").read_text())) == ["b", "a"]
    with pytest.raises(ValueError):
        atomic.write_json(tmp_path / "a.json", {"b": float("nan")})
    assert json.loads((tmp_path / "a.json").read_text())["b"] == 1


def test_file_has_the_requested_mode(tmp_path: Path) -> None:
    atomic.write_bytes(tmp_path / "secret", b"s", mode=0o600)
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600


def test_make_dir_creates_parents_and_is_exclusive_on_request(tmp_path: Path) -> None:
    atomic.make_dir(tmp_path / "a" / "b")
    atomic.make_dir(tmp_path / "a" / "b")
    assert (tmp_path / "a" / "b").is_dir()
    with pytest.raises(FileExistsError):
        atomic.make_dir(tmp_path / "a" / "b", exclusive=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError):
        atomic.make_dir(tmp_path / "file")
    with pytest.raises(StorageError):
        atomic.make_dir(tmp_path / "file" / "c")


def test_only_leftovers_of_a_killed_write_are_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (".mine.tmp", "x.tmp", ".a.0123.tmp"):
        (tmp_path / name).write_text("the user's")
    monkeypatch.setattr(os, "replace", fail_with(errno.EIO))
    monkeypatch.setattr(os, "unlink", fail_with(errno.EIO))
    with pytest.raises(StorageError):
        atomic.write_text(tmp_path / "a", "new")
    monkeypatch.undo()
    assert len(names(tmp_path)) == 4
    assert sum(atomic.is_temporary(name) for name in names(tmp_path)) == 1


@pytest.mark.parametrize(("failures", "call"), [(4, "open"), (4, "fstat"), (5, "open")])
def test_file_that_another_client_replaced_is_opened_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failures: int, call: str
) -> None:
    (tmp_path / "a").write_text("new")
    real, left = getattr(os, call), [errno.ESTALE] * failures

    def stale(*given: object) -> object:
        if left:
            fail_with(left.pop())()
        return real(*given)

    monkeypatch.setattr(os, call, stale)
    if failures == 5:
        with pytest.raises(OSError, match="Stale file handle"):
            atomic.read_bytes(tmp_path / "a")
    else:
        assert atomic.read_bytes(tmp_path / "a") == b"new"
    monkeypatch.undo()


def test_file_with_a_stale_handle_is_not_visible_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_text("new")
    assert atomic.is_visible(tmp_path / "a") and not atomic.is_visible(tmp_path / "b")
    monkeypatch.setattr(Path, "stat", lambda path, **_: fail_with(errno.ESTALE)())
    assert not atomic.is_visible(tmp_path / "a")
    monkeypatch.setattr(Path, "stat", lambda path, **_: fail_with(errno.EIO)())
    with pytest.raises(OSError, match="Input/output"):
        atomic.is_visible(tmp_path / "a")
