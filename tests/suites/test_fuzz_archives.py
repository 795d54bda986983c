"""Replay of randomly changed archives: no traceback, no change outside the target, no unexpected process."""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autoqec.cli.autoqec import group
from autoqec.cli.common import run_cli
from autoqec.errors import ContractError
from autoqec.orchestrator.archive_format import unpack
from autoqec.system.git import command
from tests.support.archives import Archive, snapshot

HONEST = Archive.read()
GIT = {
    "bundle", "cat-file", "config", "init", "ls-tree", "read-tree", "rev-list", "rev-parse", "symbolic-ref",
    "update-ref", "version", "for-each-ref", "worktree",
}  # fmt: skip
NAMES = {*command.ENVIRONMENT, "PATH", "TMPDIR", "LD_PRELOAD", "HOME", "GIT_ALLOC_LIMIT"}
STARTS = ("subprocess.Popen", "os.exec", "os.posix_spawn", "os.system", "os.spawn", "pty.spawn")
started: list[tuple[Any, ...]] | None = None


def _hook(event: str, values: tuple[Any, ...]) -> None:
    if started is not None and event in STARTS:
        started.append((event, *values))


sys.addaudithook(_hook)

TEXT_FORMATS = [
    "", ".", "..", "/", "-", "--help", "--upload-pack=touch PWNED", "-oProxyCommand=touch PWNED", "ext::touch% PWNED",
    "../../home/config", "/etc/passwd", "/dev/zero", "run/../../x", ".git/config", "CON", "a\0b", "a\nb",
    "\x1b]0;x\x07", "\u202eevil", "\ud800", "é" * 200, "x" * 5000, "nan", "1e999", "refs/heads/main", "exp/../../x",
    "0" * 40, "f" * 64,
]  # fmt: skip
VALUES = st.one_of(
    st.sampled_from(TEXT_FORMATS),
    st.sampled_from([None, True, -1, 0, 1, 2**31, 2**63, 10**30, -0.0, 1e308, [], {}, [[]], [None], {"a": 1}]),
    st.text(max_size=20),
    st.recursive(st.integers() | st.text(max_size=3), lambda inner: st.lists(inner, max_size=3), max_leaves=5),
)


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Return all paths inside a JSON value at which something can be replaced."""
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from leaves(inner, (*path, key))


def replaced(data: st.DataObject, value: Any) -> Any:
    """Return `value` with the item at one path replaced, removed or, in a map, renamed."""
    path = data.draw(st.sampled_from(sorted(leaves(value), key=repr)), label="place")
    if not path:
        return data.draw(VALUES, label="value")
    inner = value
    for key in path[:-1]:
        inner = inner[key]
    how = data.draw(st.sampled_from(["replace", "replace", "remove", "rename"]), label="how")
    old = inner.pop(path[-1]) if how != "replace" else None
    if how == "replace":
        inner[path[-1]] = data.draw(VALUES, label="value")
    elif how == "rename" and isinstance(inner, dict):
        inner[data.draw(st.sampled_from(TEXT_FORMATS), label="name")] = old
    return value


def change(data: st.DataObject, archive: Archive) -> None:
    names = sorted(archive.members)
    kind = data.draw(st.sampled_from(["manifest", "json", "json", "bytes", "name", "remove"]), label="kind")
    name = data.draw(st.sampled_from(names), label="member")
    if kind == "manifest":
        changed = replaced(data, archive.manifest)
        archive.manifest = changed if isinstance(changed, dict) else {"value": changed}
    elif kind == "json":
        name = data.draw(
            st.sampled_from([name for name in names if name.endswith((".json", ".jsonl"))]), label="member"
        )
        lines = archive.members[name].splitlines() if name.endswith("l") else [archive.members[name]]
        at = data.draw(st.integers(0, max(0, len(lines) - 1)), label="line")
        with suppress(ValueError, IndexError):  # an earlier change made the member invalid JSON
            lines[at] = json.dumps(replaced(data, json.loads(lines[at]))).encode()
        archive.members[name] = b"\n".join(lines) + b"\n"
    elif kind == "bytes":
        member = archive.members[name]
        at = data.draw(st.integers(0, len(member)), label="at")
        archive.members[name] = member[:at] + data.draw(st.binary(max_size=8), label="bytes") + member[at + 4 :]
    else:
        member = archive.members.pop(name)
        if kind == "name":
            new = data.draw(st.sampled_from(TEXT_FORMATS), label="name").encode("utf-8", "replace").decode()
            archive.members[data.draw(st.sampled_from(["", "run/", name + "/"]), label="above") + new] = member


def tampered(data: st.DataObject, path: Path) -> None:
    """Change bytes of the packed file: headers, padding, length."""
    raw = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(0, 2), label="flips")):
        raw[data.draw(st.integers(0, len(raw) - 1), label="at")] ^= data.draw(st.integers(1, 255), label="bits")
    if data.draw(st.integers(0, 9), label="cut") == 0:
        del raw[data.draw(st.integers(0, len(raw)), label="length") :]
    path.write_bytes(raw)


def expected(event: tuple[Any, ...]) -> bool:
    """Return whether a process is git with a plumbing command and a clean environment."""
    if event[0] != "subprocess.Popen":
        return False
    _, program, argv, *_ = event
    if argv == ["git", "version"]:  # GitPython, on import
        return True
    if argv[:2] != ["env", "-i"] or os.path.basename(str(program)) != "env":
        return False
    at = next(at for at, word in enumerate(argv) if os.path.basename(word) == "git")
    if {word.partition("=")[0] for word in argv[2:at]} - NAMES:
        return False
    arguments = argv[at + 1 :]
    settings_off = [argument for argument in arguments if not argument.startswith("-") and "=" not in argument]
    return settings_off[0] in GIT


def packed(data: st.DataObject, directory: Path) -> Path | None:
    """Return an honest archive, changed and sealed again; None if a tar file cannot contain its names."""
    archive = HONEST.copy()
    for _ in range(data.draw(st.integers(1, 2), label="changes")):
        change(data, archive)
    try:
        path = archive.pack(directory / "evil.tar")
    except ValueError:
        return None
    if data.draw(st.integers(0, 3), label="raw") == 0:
        tampered(data, path)
    return path


def replayed(data: st.DataObject, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    global started
    if packed(data, directory) is None:
        return
    before = snapshot(directory.parent)
    started = []
    try:
        code = run_cli(group, ["replay", "evil.tar", "--into", "restored"])
    finally:
        events, started = started, None
        output = capsys.readouterr()
    assert code in (0, 1, 2, 3), output.err
    assert "Traceback" not in output.err and "\x1b" not in output.err + output.out
    assert all(map(expected, events)), [event[:3] for event in events if not expected(event)]
    if code in (0, 1):
        assert not any(path.is_symlink() for path in (directory / "restored").rglob("*"))
        shutil.rmtree(directory / "restored")
    assert snapshot(directory.parent) == before


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    home, directory = tmp_path / "home", tmp_path / "here"
    home.mkdir()
    directory.mkdir()
    (home / "config").write_text("mine\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(directory)
    return directory


CHECKS = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow, HealthCheck.data_too_large]


@settings(max_examples=40, derandomize=True, deadline=None, database=None, suppress_health_check=CHECKS)
@given(data=st.data())
def test_sample_of_changed_archives(data: st.DataObject, directory: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replayed(data, directory, capsys)


@pytest.mark.long
@settings(max_examples=7000, deadline=None, suppress_health_check=CHECKS)
@given(data=st.data())
def test_many_changed_archives_are_read(data: st.DataObject, directory: Path) -> None:
    """Only the reader, which is fast: every fault is an AutoqecError, and nothing is written outside the directory."""
    path = packed(data, directory)
    if path is None:
        return
    before = snapshot(directory.parent)
    (directory / "out").mkdir()
    try:
        manifest = unpack(path, directory / "out")
        written = {
            str(path.relative_to(directory / "out")) for path in (directory / "out").rglob("*") if path.is_file()
        }
        assert written == {entry.name for entry in manifest.files}
    except ContractError:
        pass
    finally:
        shutil.rmtree(directory / "out")
    assert snapshot(directory.parent) == before


@pytest.mark.long
@pytest.mark.timeout(3600)
@settings(max_examples=3000, deadline=None, suppress_health_check=CHECKS)
@given(data=st.data())
def test_many_changed_archives_are_replayed(
    data: st.DataObject, directory: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replayed(data, directory, capsys)
