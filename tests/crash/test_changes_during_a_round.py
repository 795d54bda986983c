"""A user changes the repository during a round: at most one clear error, no round lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.crash.invariants import Before, git
from tests.crash.starts import recover_and_check
from tests.crash.sweep import ExitReport, Zygote
from tests.crash.test_sweep import prepared


def third_round(process: Zygote, saved: Path, *cases: str) -> tuple[str, Before, ExitReport, str]:
    """Run the third round with interference; return run id, state before, exit report and error output."""
    run_id = prepared(process, saved, "ok")
    before, start = Before.of(process.workspace), len(process.stderr())
    ended = process.start(3, run_id, cases)
    assert ended.returncode != 70, process.stderr()[start:]
    return run_id, before, ended, process.stderr()[start:]


@pytest.mark.parametrize("case", ["deletes_branch", "deletes_older_branch"])
def test_branch_deleted_during_the_round_gets_a_follow_up(process: Zygote, tmp_path: Path, case: str) -> None:
    run_id, before, ended, _ = third_round(process, tmp_path / "kept", case)
    assert ended.returncode == 0
    rows = recover_and_check(process.workspace, before, run_id)
    assert [row.status for row in rows] == ["ok", "ok", "ok", "branch_manually_deleted"]


@pytest.mark.parametrize("case", ["deletes_worktree", "deletes_round", "deletes_metrics"])
def test_files_deleted_during_the_round_affect_only_that_round(process: Zygote, tmp_path: Path, case: str) -> None:
    run_id, before, ended, output = third_round(process, tmp_path / "kept", case)
    if ended.returncode:
        assert ended.returncode in (2, 3, 74) and len(output.strip().splitlines()) == 1, output
    assert len(recover_and_check(process.workspace, before, run_id)) == 3
    assert process.start(4, run_id).returncode == 0
    assert len(recover_and_check(process.workspace, before, run_id)) >= 4


def test_history_deleted_during_the_round_is_rewritten(process: Zygote, tmp_path: Path) -> None:
    """A row is a function of attempt lines and round files, which still exist."""
    run_id, _, ended, _ = third_round(process, tmp_path / "kept", "deletes_history")
    assert ended.returncode == 0
    rows = recover_and_check(process.workspace, Before.of(process.workspace), run_id)
    assert {row.round for row in rows if row.status == "ok"} >= {1, 2, 3}


def test_runs_directory_renamed_during_the_round_is_one_error(process: Zygote, tmp_path: Path) -> None:
    run_id, before, ended, output = third_round(process, tmp_path / "kept", "renames_runs")
    assert ended.returncode in (2, 3, 74) and len(output.strip().splitlines()) == 1 and "hint:" in output, output
    assert not (process.workspace / "runs").exists(), "nothing is written where the run no longer is"
    (process.workspace / "elsewhere").rename(process.workspace / "runs")
    assert len(recover_and_check(process.workspace, before, run_id)) == 3
    assert process.start(4, run_id).returncode == 0


def test_commit_on_the_baseline_during_the_round_changes_nothing(process: Zygote, tmp_path: Path) -> None:
    run_id, _, ended, _ = third_round(process, tmp_path / "kept", "commits")
    assert ended.returncode == 0
    rows = recover_and_check(process.workspace, Before.of(process.workspace), run_id)
    assert [row.status for row in rows] == ["ok"] * 3
    assert git(process.workspace, "log", "-1", "--format=%s") == "mine"


def test_clock_changes_have_no_effect(process: Zygote, tmp_path: Path) -> None:
    run_id, before, ended, _ = third_round(process, tmp_path / "kept", "moves_the_clock")
    assert ended.returncode == 0
    assert [row.round for row in recover_and_check(process.workspace, before, run_id)] == [1, 2, 3]
