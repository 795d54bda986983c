"""Every changing call of a round, its git included, cut off or failing: nothing lost, nothing twice, all invariants."""

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

LIVES = {"ok": (), "failed": ("bad",), "compose": ("compose",), "conflict": ("conflict",)}
FAULTS = [
    ("torn", False),
    ("enospc", False),
    ("enospc", True),
    ("eio", False),
    ("eio", True),
    ("eperm", False),
    ("power", False),
]
SAMPLES = 4  # calls of a life that are tried where not all are


def prepared(process: Zygote, kept: Path, life: str) -> str:
    """Two rounds of that kind of life are recorded; kept beside, and put back for each case. Returns the run's id."""
    shutil.rmtree(process.workspace, ignore_errors=True)
    make_workspace(process.workspace, ENV)
    ended = process.start(2, "", LIVES[life] if life in ("compose", "conflict") else ())
    assert ended.returncode == 0, ended
    shutil.copytree(process.workspace, kept, symlinks=True)
    (run_id,) = run_ids(process.workspace)
    return run_id


def calls(process: Zygote, kept: Path, run_id: str, life: str) -> int:
    """How many changing calls the third round makes."""
    process.restore(kept)
    ended = process.start(3, run_id, LIVES[life])
    assert ended.returncode == 0, ended
    return ended.count


def survives(process: Zygote, kept: Path, run_id: str, life: str, at: int, mode: str, sticky: bool) -> list[HistoryRow]:
    process.restore(kept)
    before = Before.of(process.workspace)
    ended = process.start(3, run_id, LIVES[life], at=at, mode=mode, sticky=sticky)
    assert ended.returncode != 70, f"{life} {mode} at {at} ({ended.last}): a fault that no error names"
    try:
        return recover_and_check(process.workspace, before, run_id)
    except Exception as error:
        raise AssertionError(f"{life}, {mode} at call {at} ({ended.last}): {error}") from error


@pytest.mark.parametrize("life", LIVES)
def test_a_kill_at_some_calls(process: Zygote, tmp_path: Path, life: str) -> None:
    run_id = prepared(process, tmp_path / "kept", life)
    total = calls(process, tmp_path / "kept", run_id, life)
    assert total > 50
    for at in range(3, total, total // SAMPLES):
        survives(process, tmp_path / "kept", run_id, life, at, "kill", False)
    rows = survives(process, tmp_path / "kept", run_id, life, total // 2, "kill", False)
    ended = process.start(3, run_id, LIVES[life])
    assert ended.returncode == 0 and len(
        recover_and_check(process.workspace, Before.of(process.workspace), run_id)
    ) > len(rows)


@pytest.mark.parametrize(("mode", "sticky"), FAULTS)
def test_a_broken_disk_at_some_calls(process: Zygote, tmp_path: Path, mode: str, sticky: bool) -> None:
    run_id = prepared(process, tmp_path / "kept", "ok")
    total = calls(process, tmp_path / "kept", run_id, "ok")
    for at in range(7, total, total // SAMPLES):
        survives(process, tmp_path / "kept", run_id, "ok", at, mode, sticky)


@pytest.mark.parametrize("case", ["outside", "unreadable"])
def test_an_edit_that_may_not_be_is_one_row(process: Zygote, tmp_path: Path, case: str) -> None:
    run_id = prepared(process, tmp_path / "kept", "ok")
    before = Before.of(process.workspace)
    assert process.start(3, run_id, (case,)).returncode == 0
    row = recover_and_check(process.workspace, before, run_id)[-1]
    assert (row.round, row.status) == (3, "compile_error")
    assert (row.branch or "").startswith("quarantine/") == (case == "unreadable")


def test_several_at_once_find_what_one_after_another_finds(process: Zygote, tmp_path: Path) -> None:
    kept, found = tmp_path / "kept", []
    run_id = prepared(process, kept, "ok")
    for cases in ((), ("parallel",)):
        process.restore(kept)
        assert process.start(7, run_id, cases).returncode == 0
        rows = recover_and_check(process.workspace, Before.of(process.workspace), run_id)
        found.append([(row.round, row.hypothesis, row.dsl_config, row.delta_ler, row.verify_verdict) for row in rows])
    assert found[0] == found[1] and len(found[0]) == 7


@pytest.mark.long
@pytest.mark.parametrize("life", LIVES)
def test_a_kill_at_every_call(process: Zygote, tmp_path: Path, life: str) -> None:
    run_id = prepared(process, tmp_path / "kept", life)
    for at in range(1, calls(process, tmp_path / "kept", run_id, life) + 1):
        survives(process, tmp_path / "kept", run_id, life, at, "kill", False)


@pytest.mark.long
@pytest.mark.parametrize(("mode", "sticky"), FAULTS)
@pytest.mark.parametrize("life", LIVES)
def test_a_broken_disk_at_every_call(process: Zygote, tmp_path: Path, life: str, mode: str, sticky: bool) -> None:
    run_id = prepared(process, tmp_path / "kept", life)
    for at in range(1, calls(process, tmp_path / "kept", run_id, life) + 1):
        survives(process, tmp_path / "kept", run_id, life, at, mode, sticky)


# Where a round dies, one place for each class of what it leaves; whether its round was nominated.
ORPHANS = {
    "begun": True, "planned": True, "branched": True, "edited": True, "coded": True, "measured": True,
    "pointer_committed": True, "nominated": False, "test_registered": True, "verified": True, "row_appended": True,
    "views_written": True, "pinned": True,
}  # fmt: skip


def recoveries(process: Zygote, tmp_path: Path, place: str, every: int) -> None:
    """A round that died at `place`; then its recovery, cut off at every `every`-th of its own calls."""
    run_id = prepared(process, tmp_path / "kept", "ok")
    before = Before.of(process.workspace)
    assert process.start(3, run_id, () if ORPHANS[place] else ("quiet",), die_at=place).returncode == -signal.SIGKILL
    with (process.workspace / "runs" / run_id / "attempts.jsonl").open("a") as stream:
        stream.write('{"kind":"beg')
    shutil.copytree(process.workspace, tmp_path / "cut", symlinks=True)
    whole = process.start(0, run_id, recover=True)
    assert whole.returncode == 0
    rows = recover_and_check(process.workspace, before, run_id)
    history = (process.workspace / "runs" / run_id / "history.jsonl").read_bytes()
    assert len(rows) == 3
    for at in range(1, whole.count + 1, every):
        process.restore(tmp_path / "cut")
        process.start(0, run_id, recover=True, at=at)
        recover_and_check(process.workspace, before, run_id)
        assert (process.workspace / "runs" / run_id / "history.jsonl").read_bytes() == history, (
            f"recovery cut off at {at}"
        )


@pytest.mark.parametrize("place", ["coded", "verified"])
def test_a_recovery_cut_off_at_some_calls(process: Zygote, tmp_path: Path, place: str) -> None:
    recoveries(process, tmp_path, place, 19)


@pytest.mark.long
@pytest.mark.parametrize("place", ORPHANS)
def test_a_recovery_cut_off_at_every_call(process: Zygote, tmp_path: Path, place: str) -> None:
    recoveries(process, tmp_path, place, 1)


def verifications(process: Zygote, tmp_path: Path, every: int) -> None:
    """A recorded round that nobody nominated goes before the judge, who is cut off at every `every`-th call."""
    shutil.rmtree(process.workspace, ignore_errors=True)
    make_workspace(process.workspace, ENV)
    assert process.start(2, "", ("quiet",)).returncode == 0
    shutil.copytree(process.workspace, tmp_path / "kept", symlinks=True)
    (run_id,) = run_ids(process.workspace)
    whole = process.start(0, run_id, judge=1)
    assert whole.returncode == 0
    swept = 0
    for at in range(1, whole.count + 1, every):
        process.restore(tmp_path / "kept")
        before = Before.of(process.workspace)
        assert process.start(0, run_id, judge=1, at=at).returncode == -signal.SIGKILL
        swept += any((process.workspace / "runs" / run_id / "round_1").glob(".*.tmp"))
        rows = recover_and_check(process.workspace, before, run_id)
        assert [row.status for row in rows[:2]] == ["ok", "ok"]
    assert swept, "no call left half a file in the recorded round"
    assert process.start(0, run_id, judge=1).returncode == 0
    assert recover_and_check(process.workspace, before, run_id)[-1].verify_verdict == "VERIFIED"


def test_a_judgement_of_a_recorded_round_cut_off_at_some_calls(process: Zygote, tmp_path: Path) -> None:
    verifications(process, tmp_path, 4)


@pytest.mark.long
def test_a_judgement_of_a_recorded_round_cut_off_at_every_call(process: Zygote, tmp_path: Path) -> None:
    verifications(process, tmp_path, 1)


def soak(process: Zygote, tmp_path: Path, rounds: int) -> None:
    """A run of `rounds` rounds, each of them killed once at a call that the seed chooses, then gone on with."""
    run_id = prepared(process, tmp_path / "kept", "ok")
    total = calls(process, tmp_path / "kept", run_id, "ok")
    process.restore(tmp_path / "kept")
    before, chosen = Before.of(process.workspace), random.Random(5)
    kills = 0
    for number in range(3, rounds + 1):
        kills += process.start(number, run_id, at=chosen.randrange(2, total)).returncode == -signal.SIGKILL
        assert process.start(number, run_id).returncode == 0
    rows = recover_and_check(process.workspace, before, run_id)
    assert sum(is_finished(row) for row in rows) == rounds
    assert kills >= 0.9 * (rounds - 2), "the kills missed"


def test_a_few_rounds_with_a_kill_in_each(process: Zygote, tmp_path: Path) -> None:
    soak(process, tmp_path, 8)


@pytest.mark.long
def test_two_hundred_rounds_with_a_kill_in_each(process: Zygote, tmp_path: Path) -> None:
    soak(process, tmp_path, 202)


def started_twice(process: Zygote, tmp_path: Path, times: int) -> None:
    """The same run started in two processes at once: one owner, one round more, the other is refused in a sentence."""
    run_id = prepared(process, tmp_path / "kept", "ok")
    before, refused = Before.of(process.workspace), 0
    for number in range(3, 3 + times):
        ended = process.start(number, run_id, copies=2)
        ends = sorted([ended.returncode, *ended.others])
        assert ends in ([0, 2], [0, 0]), ends  # the slower one may come when all is done
        refused += ends == [0, 2]
        rows = recover_and_check(process.workspace, before, run_id)
        assert [row.round for row in rows] == list(range(1, number + 1))
    assert refused


def test_two_starts_at_once_have_one_owner(process: Zygote, tmp_path: Path) -> None:
    started_twice(process, tmp_path, 3)


@pytest.mark.long
def test_twenty_double_starts_have_one_owner_each(process: Zygote, tmp_path: Path) -> None:
    started_twice(process, tmp_path, 20)
