"""Every file-changing call of a round, including git's, killed or failing: no round lost or duplicated."""

from __future__ import annotations

import random
import shutil
import signal
from pathlib import Path

import pytest

from autoqec.cli.workspace import make_workspace
from autoqec.contracts.history import HistoryRow
from autoqec.store.run_state import is_finished
from tests.crash.invariants import Before, run_ids
from tests.crash.starts import ENV, recover_and_check
from tests.crash.sweep import Zygote, has_compiler

pytestmark = pytest.mark.skipif(not has_compiler(), reason="no C compiler; install: apt-get install gcc (on Linux)")

KINDS = {"ok": (), "failed": ("bad",), "compose": ("compose",), "conflict": ("conflict",)}
FAULTS = [
    ("torn", False),
    ("enospc", False),
    ("enospc", True),
    ("eio", False),
    ("eio", True),
    ("eperm", False),
    ("power", False),
]
SAMPLES = 4  # number of calls that are tried in the short tests


def prepared(process: Zygote, saved: Path, kind: str) -> str:
    """Record two rounds of a kind and save the workspace, which each case restores. Returns the run id."""
    shutil.rmtree(process.workspace, ignore_errors=True)
    make_workspace(process.workspace, ENV)
    ended = process.start(2, "", KINDS[kind] if kind in ("compose", "conflict") else ())
    assert ended.returncode == 0, ended
    shutil.copytree(process.workspace, saved, symlinks=True)
    (run_id,) = run_ids(process.workspace)
    return run_id


def calls(process: Zygote, saved: Path, run_id: str, kind: str) -> int:
    """Return the number of changing calls of the third round."""
    process.restore(saved)
    ended = process.start(3, run_id, KINDS[kind])
    assert ended.returncode == 0, ended
    return ended.count


def survives(
    process: Zygote, saved: Path, run_id: str, kind: str, at: int, mode: str, sticky: bool
) -> list[HistoryRow]:
    process.restore(saved)
    before = Before.of(process.workspace)
    ended = process.start(3, run_id, KINDS[kind], at=at, mode=mode, sticky=sticky)
    assert ended.returncode != 70, f"{kind} {mode} at {at} ({ended.last}): a fault that no error names"
    try:
        return recover_and_check(process.workspace, before, run_id)
    except Exception as error:
        raise AssertionError(f"{kind}, {mode} at call {at} ({ended.last}): {error}") from error


@pytest.mark.parametrize("kind", KINDS)
def test_kill_at_some_calls(process: Zygote, tmp_path: Path, kind: str) -> None:
    run_id = prepared(process, tmp_path / "kept", kind)
    total = calls(process, tmp_path / "kept", run_id, kind)
    assert total > 50
    for at in range(3, total, total // SAMPLES):
        survives(process, tmp_path / "kept", run_id, kind, at, "kill", False)
    rows = survives(process, tmp_path / "kept", run_id, kind, total // 2, "kill", False)
    ended = process.start(3, run_id, KINDS[kind])
    assert ended.returncode == 0 and len(
        recover_and_check(process.workspace, Before.of(process.workspace), run_id)
    ) > len(rows)


@pytest.mark.parametrize(("mode", "sticky"), FAULTS)
def test_disk_error_at_some_calls(process: Zygote, tmp_path: Path, mode: str, sticky: bool) -> None:
    run_id = prepared(process, tmp_path / "kept", "ok")
    total = calls(process, tmp_path / "kept", run_id, "ok")
    for at in range(7, total, total // SAMPLES):
        survives(process, tmp_path / "kept", run_id, "ok", at, mode, sticky)


@pytest.mark.parametrize("case", ["outside", "unreadable"])
def test_forbidden_edit_is_one_row(process: Zygote, tmp_path: Path, case: str) -> None:
    run_id = prepared(process, tmp_path / "kept", "ok")
    before = Before.of(process.workspace)
    assert process.start(3, run_id, (case,)).returncode == 0
    row = recover_and_check(process.workspace, before, run_id)[-1]
    assert (row.round, row.status) == (3, "compile_error")
    assert (row.branch or "").startswith("quarantine/") == (case == "unreadable")


def test_parallel_rounds_equal_serial_rounds(process: Zygote, tmp_path: Path) -> None:
    saved, found = tmp_path / "kept", []
    run_id = prepared(process, saved, "ok")
    for cases in ((), ("parallel",)):
        process.restore(saved)
        assert process.start(7, run_id, cases).returncode == 0
        rows = recover_and_check(process.workspace, Before.of(process.workspace), run_id)
        found.append([(row.round, row.hypothesis, row.dsl_config, row.delta_ler, row.verify_verdict) for row in rows])
    assert found[0] == found[1] and len(found[0]) == 7


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_kill_at_every_call(process: Zygote, tmp_path: Path, kind: str) -> None:
    run_id = prepared(process, tmp_path / "kept", kind)
    for at in range(1, calls(process, tmp_path / "kept", run_id, kind) + 1):
        survives(process, tmp_path / "kept", run_id, kind, at, "kill", False)


@pytest.mark.long
@pytest.mark.parametrize(("mode", "sticky"), FAULTS)
@pytest.mark.parametrize("kind", KINDS)
def test_disk_error_at_every_call(process: Zygote, tmp_path: Path, kind: str, mode: str, sticky: bool) -> None:
    run_id = prepared(process, tmp_path / "kept", kind)
    for at in range(1, calls(process, tmp_path / "kept", run_id, kind) + 1):
        survives(process, tmp_path / "kept", run_id, kind, at, mode, sticky)


# Failpoints, one for each kind of remains of a round -> whether the round was nominated.
ORPHANS = {
    "begun": True, "planned": True, "branched": True, "edited": True, "coded": True, "measured": True,
    "pointer_committed": True, "nominated": False, "test_registered": True, "verified": True, "row_appended": True,
    "views_written": True, "pinned": True,
}  # fmt: skip


def kill_recovery(process: Zygote, tmp_path: Path, point: str, every: int) -> None:
    """Kill a round at the failpoint, then kill its recovery at every `every`-th of its calls."""
    run_id = prepared(process, tmp_path / "kept", "ok")
    before = Before.of(process.workspace)
    assert process.start(3, run_id, () if ORPHANS[point] else ("quiet",), die_at=point).returncode == -signal.SIGKILL
    with (process.workspace / "runs" / run_id / "attempts.jsonl").open("a") as stream:
        stream.write('{"kind":"beg')
    shutil.copytree(process.workspace, tmp_path / "cut", symlinks=True)
    uninterrupted = process.start(0, run_id, recover=True)
    assert uninterrupted.returncode == 0
    rows = recover_and_check(process.workspace, before, run_id)
    history = (process.workspace / "runs" / run_id / "history.jsonl").read_bytes()
    assert len(rows) == 3
    for at in range(1, uninterrupted.count + 1, every):
        process.restore(tmp_path / "cut")
        process.start(0, run_id, recover=True, at=at)
        recover_and_check(process.workspace, before, run_id)
        assert (process.workspace / "runs" / run_id / "history.jsonl").read_bytes() == history, (
            f"recovery cut off at {at}"
        )


@pytest.mark.parametrize("point", ["coded", "verified"])
def test_recovery_killed_at_some_calls(process: Zygote, tmp_path: Path, point: str) -> None:
    kill_recovery(process, tmp_path, point, 19)


@pytest.mark.long
@pytest.mark.parametrize("point", ORPHANS)
def test_recovery_killed_at_every_call(process: Zygote, tmp_path: Path, point: str) -> None:
    kill_recovery(process, tmp_path, point, 1)


def kill_verification(process: Zygote, tmp_path: Path, every: int) -> None:
    """Verify a recorded, not nominated round, and kill the verification at every `every`-th call."""
    shutil.rmtree(process.workspace, ignore_errors=True)
    make_workspace(process.workspace, ENV)
    assert process.start(2, "", ("quiet",)).returncode == 0
    shutil.copytree(process.workspace, tmp_path / "kept", symlinks=True)
    (run_id,) = run_ids(process.workspace)
    uninterrupted = process.start(0, run_id, verify=1)
    assert uninterrupted.returncode == 0
    swept = 0
    for at in range(1, uninterrupted.count + 1, every):
        process.restore(tmp_path / "kept")
        before = Before.of(process.workspace)
        ended = process.start(0, run_id, verify=1, at=at)
        assert ended.returncode == -signal.SIGKILL or (
            ended.returncode == 0 and ended.count < at
        )  # git needs a few calls more or less each time
        swept += any((process.workspace / "runs" / run_id / "round_1").glob(".*.tmp"))
        rows = recover_and_check(process.workspace, before, run_id)
        assert [row.status for row in rows[:2]] == ["ok", "ok"]
    assert swept, "no call left half a file in the recorded round"
    assert process.start(0, run_id, verify=1).returncode == 0
    assert recover_and_check(process.workspace, before, run_id)[-1].verify_verdict == "VERIFIED"


def test_later_verification_killed_at_some_calls(process: Zygote, tmp_path: Path) -> None:
    kill_verification(process, tmp_path, 4)


@pytest.mark.long
def test_later_verification_killed_at_every_call(process: Zygote, tmp_path: Path) -> None:
    kill_verification(process, tmp_path, 1)


def soak(process: Zygote, tmp_path: Path, rounds: int) -> None:
    """Run `rounds` rounds, each killed once at a call that a seeded generator chooses, then resumed.

    Rounds differ by a few calls, because git makes a directory for each new prefix of an object's hash: a round that
    ends before the chosen call is not killed.
    """
    run_id = prepared(process, tmp_path / "kept", "ok")
    total = calls(process, tmp_path / "kept", run_id, "ok")
    process.restore(tmp_path / "kept")
    before, chosen, killed = Before.of(process.workspace), random.Random(5), 0
    last_tenth = total - total // 10
    draws = [chosen.randrange(last_tenth, total + 1), *(chosen.randrange(2, total + 1) for _ in range(4, rounds + 1))]
    for number, at in enumerate(draws, start=3):
        ended = process.start(number, run_id, at=at)
        if ended.returncode == 0:
            assert last_tenth < ended.count < at, f"round {number} was not killed at call {at}, after {ended.count}"
        else:
            assert ended.returncode == -signal.SIGKILL, f"round {number}, killed at call {at}: {ended}"
            killed += 1
            assert process.start(number, run_id).returncode == 0
    assert killed >= len(draws) * 3 // 4, "rounds have fewer calls than the first one"
    rows = recover_and_check(process.workspace, before, run_id)
    assert sum(is_finished(row) for row in rows) == rounds


def test_few_rounds_each_killed_once(process: Zygote, tmp_path: Path) -> None:
    soak(process, tmp_path, 8)


@pytest.mark.long
def test_two_hundred_rounds_each_killed_once(process: Zygote, tmp_path: Path) -> None:
    soak(process, tmp_path, 202)


def started_twice(process: Zygote, tmp_path: Path, times: int) -> None:
    """Start the same run in two processes: one gets a round, the other is refused with one error."""
    run_id = prepared(process, tmp_path / "kept", "ok")
    before, refused = Before.of(process.workspace), 0
    for number in range(3, 3 + times):
        ended = process.start(number, run_id, copies=2)
        ends = sorted([ended.returncode, *ended.others])
        assert ends in ([0, 2], [0, 0]), ends  # the slower one may start after the other has finished
        refused += ends == [0, 2]
        rows = recover_and_check(process.workspace, before, run_id)
        assert [row.round for row in rows] == list(range(1, number + 1))
    assert refused


def test_two_concurrent_starts_have_one_owner(process: Zygote, tmp_path: Path) -> None:
    started_twice(process, tmp_path, 3)


@pytest.mark.long
def test_twenty_concurrent_pairs_of_starts_have_one_owner_each(process: Zygote, tmp_path: Path) -> None:
    started_twice(process, tmp_path, 20)
