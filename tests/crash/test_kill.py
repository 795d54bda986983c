"""SIGKILL at every failpoint of a round, then a new start: no round is lost or recorded twice."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from autoqec.cli.workspace import make_workspace
from autoqec.errors import UsageError
from autoqec.orchestrator import failpoint
from autoqec.orchestrator.restore_round import restore_round
from autoqec.store.layout import RunLayout
from autoqec.system.git import Repo
from tests.crash.invariants import Before, check, git, run_ids
from tests.crash.starts import ENV, NOT_A_COPY, recover_and_check, run_until_killed, start

ELSEWHERE = ("recovery_", "job_", "gc_", "run_created")  # recovery, test_slurm, test_gc, creation of a run
ROUND = [point for point in failpoint.FAILPOINTS if not point.startswith(ELSEWHERE)]
RECOVERY = [point for point in failpoint.FAILPOINTS if point.startswith("recovery_")]
VERIFICATION = ("test_registered", "verified")
NAMED = ["planned", "coded", "row_appended"]  # in every test run; the others only in the long one


@pytest.mark.parametrize("point", NAMED)
def test_kill_loses_no_round(workspace: Path, point: str) -> None:
    (run_id,), before = run_ids(workspace), Before.of(workspace)
    run_until_killed(workspace, 2, run_id, *(["nominate"] if point in VERIFICATION else []), at=point)
    rows = recover_and_check(workspace, before, run_id)
    assert [row.round for row in rows] == [1, 2]


@pytest.mark.long
@pytest.mark.parametrize("point", [point for point in ROUND if point not in (*NAMED, "verified", "nominated")])
def test_kill_at_any_other_failpoint_loses_no_round(workspace: Path, point: str) -> None:
    test_kill_loses_no_round(workspace, point)


@pytest.mark.long
def test_next_round_starts_after_a_kill(workspace: Path) -> None:
    (run_id,), before = run_ids(workspace), Before.of(workspace)
    run_until_killed(workspace, 2, run_id, at="coded")
    assert start(workspace, 2, run_id).returncode == 0
    rows = check(before, run_id)
    assert [(row.round, row.status) for row in rows] == [(1, "ok"), (2, "orphaned_branch"), (3, "ok")]
    assert [row.hypothesis for row in rows[1:]] == ["net 2"] * 2, "the proposal that was lost is made again"


@pytest.mark.parametrize("point", ["verified", pytest.param("nominated", marks=pytest.mark.long)])
def test_measured_and_verified_round_is_finished_by_recovery(workspace: Path, point: str) -> None:
    """The report is complete (or none is due): recovery writes the row that the loop would have written."""
    (run_id,), before = run_ids(workspace), Before.of(workspace)
    cases = ("nominate",) if point == "verified" else ()
    run_until_killed(workspace, 2, run_id, *cases, at=point)
    row = recover_and_check(workspace, before, run_id)[-1]
    assert (row.round, row.status) == (2, "ok")
    assert row.branch is not None and row.branch.startswith("exp/")
    assert (row.verify_verdict is not None) == (point == "verified")


@pytest.mark.long
def test_unmeasured_round_is_quarantined_with_its_attempt_id(workspace: Path) -> None:
    (run_id,), before = run_ids(workspace), Before.of(workspace)
    run_until_killed(workspace, 2, run_id, at="coded")
    row = recover_and_check(workspace, before, run_id)[-1]
    assert row.status == "orphaned_branch" and row.round_attempt_id
    assert row.branch is not None and row.branch.startswith(f"quarantine/{run_id}/")


@pytest.mark.long
@pytest.mark.parametrize("point", ["measured", "pointer_committed", "test_registered"])
def test_measured_round_is_recorded_and_verified_by_the_next_start(workspace: Path, point: str) -> None:
    (run_id,), before = run_ids(workspace), Before.of(workspace)
    run_until_killed(workspace, 2, run_id, "nominate", at=point)
    row = recover_and_check(workspace, before, run_id)[-1]
    assert (row.round, row.status, row.verify_verdict) == (2, "ok", None)
    assert row.branch is not None and row.branch.startswith(f"exp/{run_id}/02-")
    assert start(workspace, 2, run_id, "nominate").returncode == 0
    rows = check(before, run_id)
    assert rows[-1].round == 2 and (rows[-1].verify_verdict is not None) == (rows[-1].verdict == "candidate")


def test_uncommitted_edits_are_salvaged(workspace: Path) -> None:
    (run_id,), before = run_ids(workspace), Before.of(workspace)
    run_until_killed(workspace, 2, run_id, at="edited")
    recover_and_check(workspace, before, run_id)
    (patch,) = (workspace / "runs" / run_id / "salvage").glob("*.patch")
    git(workspace, "apply", "--check", str(patch))
    assert "hidden" in patch.read_text()


@pytest.fixture(scope="session")
def half_done(pristine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run whose second round died after its code commit, with a torn file: needs every recovery step."""
    directory = tmp_path_factory.mktemp("half")
    shutil.copytree(pristine / "workspace", directory / "workspace", symlinks=True, ignore=NOT_A_COPY)
    (run_id,) = run_ids(directory / "workspace")
    run_until_killed(directory / "workspace", 2, run_id, at="coded")
    (directory / "workspace" / "runs" / run_id / f".log.md.{'0' * 16}.tmp").write_text("torn")
    return directory


@pytest.fixture(scope="module")
def half_measured(pristine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run whose second round died after its measurement, before its pointer was committed."""
    directory = tmp_path_factory.mktemp("measured")
    shutil.copytree(pristine / "workspace", directory / "workspace", symlinks=True, ignore=NOT_A_COPY)
    (run_id,) = run_ids(directory / "workspace")
    run_until_killed(directory / "workspace", 2, run_id, at="measured")
    return directory


@pytest.mark.parametrize("point", RECOVERY)
def test_killed_recovery_equals_one_uninterrupted_recovery(
    request: pytest.FixtureRequest, tmp_path: Path, point: str
) -> None:
    """In place, one after the other, so that the absolute paths of git stay valid."""
    # Only a measured round has a pointer to commit.
    start: Path = request.getfixturevalue("half_measured" if "pointer" in point else "half_done")
    workspace, (run_id,) = start / "workspace", run_ids(start / "workspace")
    saved, layout = tmp_path / "kept", RunLayout(workspace, run_id)
    shutil.copytree(workspace, saved, symlinks=True)
    try:
        before = Before.of(workspace)
        recover_and_check(workspace, before, run_id)
        uninterrupted = layout.history.read_bytes()
        shutil.rmtree(workspace)
        shutil.copytree(saved, workspace, symlinks=True)
        run_until_killed(workspace, 1, run_id, at=point)
        recover_and_check(workspace, before, run_id)
        assert layout.history.read_bytes() == uninterrupted
    finally:
        shutil.rmtree(workspace)
        shutil.copytree(saved, workspace, symlinks=True)


def test_run_killed_during_creation_does_not_block_later_starts(tmp_path: Path) -> None:
    make_workspace(tmp_path / "workspace", ENV)
    before = Before.of(tmp_path / "workspace")
    run_until_killed(tmp_path / "workspace", 1, "", at="run_created")
    (run_id,) = run_ids(tmp_path / "workspace")
    assert recover_and_check(tmp_path / "workspace", before, run_id) == []


@pytest.mark.long
@pytest.mark.parametrize("case", ["bad", "outside", "compose", "conflict", "parallel"])
@pytest.mark.parametrize("point", ["planned", "row_appended"])
def test_kill_in_rounds_of_other_kinds_loses_no_round(workspace: Path, case: str, point: str) -> None:
    (run_id,), before = run_ids(workspace), Before.of(workspace)
    run_until_killed(workspace, 4, run_id, case, at=f"{point}@2")
    recover_and_check(workspace, before, run_id)
    assert start(workspace, 4, run_id, case).returncode == 0
    rows = check(before, run_id)
    assert sum(row.status not in ("orphaned_branch", "branch_manually_deleted") for row in rows) == 4


@pytest.mark.parametrize("point", ["test_registered", "measured"])
def test_quarantined_round_is_restored(
    workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    """It is verified and its branch is restored, with a follow-up row; a second call has nothing to restore.

    A round that died at `measured` has its pointer only in the round directory; an interrupt right after the commit of
    that pointer is made up for by the next call.
    """
    (run_id,), before = run_ids(workspace), Before.of(workspace)
    run_until_killed(workspace, 2, run_id, "nominate", at=point)
    layout, repo = RunLayout(workspace, run_id), Repo.discover(workspace)
    metrics = layout.round(2).metrics.rename(tmp_path / "metrics.json")  # otherwise recovery finishes the round itself
    aborted = recover_and_check(workspace, before, run_id)[-1]
    metrics.rename(layout.round(2).metrics)
    if point == "measured":
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr("autoqec.orchestrator.restore_round.failpoint", interrupt)
            restore_round(layout, repo, 2)
    row = restore_round(layout, repo, 2)
    assert (row.refers_to_attempt, row.round_attempt_id) == (aborted.round_attempt_id, None)
    assert row.verify_verdict is not None
    assert row.branch is not None and row.branch.startswith(f"exp/{run_id}/02-")
    assert recover_and_check(workspace, before, run_id)[-1] == row
    with pytest.raises(UsageError, match="not in quarantine"):
        restore_round(layout, repo, 2)


def interrupt(_point: str) -> None:
    raise KeyboardInterrupt


def test_unmeasured_round_is_not_restored(workspace: Path) -> None:
    (run_id,) = run_ids(workspace)
    run_until_killed(workspace, 2, run_id, at="coded")
    with pytest.raises(UsageError, match="died before the round was measured"):
        restore_round(RunLayout(workspace, run_id), Repo.discover(workspace), 2)
