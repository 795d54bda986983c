"""A person at work in the repository while a round is under way: a clear sentence at most, nothing lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.invariants import Before, git
from tests.crash.starts import recover_and_check
from tests.crash.sweep import ExitReport, Zygote
from tests.crash.test_sweep import prepared


def third(process: Zygote, kept: Path, *cases: str) -> tuple[str, Before, ExitReport, str]:
    """The third round with mischief in it: run, how things were, how it ended, and what it said."""
    run_id = prepared(process, kept, "ok")
    before, said = Before.of(process.workspace), len(process.stderr())
    ended = process.start(3, run_id, cases)
    assert ended.returncode != 70, process.stderr()[said:]
    return run_id, before, ended, process.stderr()[said:]


@pytest.mark.parametrize("case", ["deletes_branch", "deletes_older_branch"])
def test_a_branch_deleted_under_way_gets_a_follow_up(process: Zygote, tmp_path: Path, case: str) -> None:
    run_id, before, ended, _ = third(process, tmp_path / "kept", case)
    assert ended.returncode == 0
    rows = recover_and_check(process.workspace, before, run_id)
    assert [row.status for row in rows] == ["ok", "ok", "ok", "branch_manually_deleted"]


@pytest.mark.parametrize("case", ["deletes_worktree", "deletes_round", "deletes_metrics"])
def test_files_deleted_under_way_cost_that_round_at_most(process: Zygote, tmp_path: Path, case: str) -> None:
    run_id, before, ended, said = third(process, tmp_path / "kept", case)
    if ended.returncode:
        assert ended.returncode in (2, 3, 74) and len(said.strip().splitlines()) == 1, said
    assert len(recover_and_check(process.workspace, before, run_id)) == 3
    assert process.start(4, run_id).returncode == 0
    assert len(recover_and_check(process.workspace, before, run_id)) >= 4


def test_a_history_deleted_under_way_is_written_again(process: Zygote, tmp_path: Path) -> None:
    """A row is a function of the attempt's lines and the round's files, and those are still there."""
    run_id, _, ended, _ = third(process, tmp_path / "kept", "deletes_history")
    assert ended.returncode == 0
    rows = recover_and_check(process.workspace, Before.of(process.workspace), run_id)
    assert {row.round for row in rows if row.status == "ok"} >= {1, 2, 3}


def test_runs_renamed_under_way(process: Zygote, tmp_path: Path) -> None:
    run_id, before, ended, said = third(process, tmp_path / "kept", "renames_runs")
    assert ended.returncode in (2, 3, 74) and len(said.strip().splitlines()) == 1 and "hint:" in said, said
    assert not (process.workspace / "runs").exists(), "nothing is written where the run no longer is"
    (process.workspace / "elsewhere").rename(process.workspace / "runs")
    assert len(recover_and_check(process.workspace, before, run_id)) == 3
    assert process.start(4, run_id).returncode == 0


def test_a_commit_on_the_baseline_under_way(process: Zygote, tmp_path: Path) -> None:
    run_id, _, ended, _ = third(process, tmp_path / "kept", "commits")
    assert ended.returncode == 0
    rows = recover_and_check(process.workspace, Before.of(process.workspace), run_id)
    assert [row.status for row in rows] == ["ok"] * 3
    assert git(process.workspace, "log", "-1", "--format=%s") == "mine"


def test_the_clock_decides_nothing(process: Zygote, tmp_path: Path) -> None:
    run_id, before, ended, _ = third(process, tmp_path / "kept", "moves_the_clock")
    assert ended.returncode == 0
    assert [row.round for row in recover_and_check(process.workspace, before, run_id)] == [1, 2, 3]
