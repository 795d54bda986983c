"""SIGKILL at every named place of a round's life, then a start: nothing lost, nothing twice."""

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

ELSEWHERE = ("recovery_", "job_", "garbage_", "run_created")  # recovery, test_slurm, test_gc, a run's birth
ROUND = [place for place in failpoint.FAILPOINTS if not place.startswith(ELSEWHERE)]
RECOVERY = [place for place in failpoint.FAILPOINTS if place.startswith("recovery_")]
VERIFICATION = ("test_registered", "verified")
NAMED = ["planned", "coded", "row_appended"]  # in every run; the others in the long one


@pytest.mark.parametrize("place", NAMED)
def test_a_kill_loses_nothing(workspace: Path, place: str) -> None:
    (run_id,), before = run_ids(workspace), Before.of(workspace)
    run_until_killed(workspace, 2, run_id, *(["nominate"] if place in VERIFICATION else []), at=place)
    rows = recover_and_check(workspace, before, run_id)
    assert [row.round for row in rows] == [1, 2]


@pytest.mark.long
@pytest.mark.parametrize("place", [place for place in ROUND if place not in (*NAMED, "verified", "nominated")])
def test_a_kill_at_any_other_place_loses_nothing(workspace: Path, place: str) -> None:
    test_a_kill_loses_nothing(workspace, place)


@pytest.mark.long
def test_the_next_round_starts(workspace: Path) -> None:
    (run_id,), before = run_ids(workspace), Before.of(workspace)
    run_until_killed(workspace, 2, run_id, at="coded")
    assert start(workspace, 2, run_id).returncode == 0
    rows = check(before, run_id)
    assert [(row.round, row.status) for row in rows] == [(1, "ok"), (2, "orphaned_branch"), (3, "ok")]
    assert [row.hypothesis for row in rows[1:]] == ["net 2"] * 2, "the proposal that was lost is made again"


@pytest.mark.parametrize("place", ["verified", pytest.param("nominated", marks=pytest.mark.long)])
def test_a_round_already_paid_for_is_finished(workspace: Path, place: str) -> None:
    """The judge's report is complete (or none is due): recovery writes the row the loop would have written."""
    (run_id,), before = run_ids(workspace), Before.of(workspace)
    cases = ("nominate",) if place == "verified" else ()
    run_until_killed(workspace, 2, run_id, *cases, at=place)
    row = recover_and_check(workspace, before, run_id)[-1]
    assert (row.round, row.status) == (2, "ok")
    assert row.branch is not None and row.branch.startswith("exp/")
    assert (row.verify_verdict is not None) == (place == "verified")


@pytest.mark.long
def test_unmeasured_round_is_quarantined_with_its_attempt_id(workspace: Path) -> None:
    (run_id,), before = run_ids(workspace), Before.of(workspace)
    run_until_killed(workspace, 2, run_id, at="coded")
    row = recover_and_check(workspace, before, run_id)[-1]
    assert row.status == "orphaned_branch" and row.round_attempt_id
    assert row.branch is not None and row.branch.startswith(f"quarantine/{run_id}/")


@pytest.mark.long
@pytest.mark.parametrize("place", ["measured", "pointer_committed", "test_registered"])
def test_measured_round_is_recorded_and_verified_by_the_next_start(workspace: Path, place: str) -> None:
    (run_id,), before = run_ids(workspace), Before.of(workspace)
    run_until_killed(workspace, 2, run_id, "nominate", at=place)
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
    """A run whose second round died after its code commit, with a torn file in its root: every step of recovery."""
    place = tmp_path_factory.mktemp("half")
    shutil.copytree(pristine / "lab", place / "lab", symlinks=True, ignore=NOT_A_COPY)
    (run_id,) = run_ids(place / "lab")
    run_until_killed(place / "lab", 2, run_id, at="coded")
    (place / "lab" / "runs" / run_id / f".log.md.{'0' * 16}.tmp").write_text("torn")
    return place


@pytest.fixture(scope="module")
def half_measured(pristine: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose second round died after its measurement, before its pointer was committed."""
    place = tmp_path_factory.mktemp("measured")
    shutil.copytree(pristine / "lab", place / "lab", symlinks=True, ignore=NOT_A_COPY)
    (run_id,) = run_ids(place / "lab")
    run_until_killed(place / "lab", 2, run_id, at="measured")
    return place


@pytest.mark.parametrize("place", RECOVERY)
def test_recovery_killed_anywhere_is_recovery_run_once(
    request: pytest.FixtureRequest, tmp_path: Path, place: str
) -> None:
    """In place, one after the other, so that git's absolute paths stay true."""
    # Only a measured round has a pointer to commit.
    start: Path = request.getfixturevalue("half_measured" if "pointer" in place else "half_done")
    workspace, (run_id,) = start / "lab", run_ids(start / "lab")
    kept, layout = tmp_path / "kept", RunLayout(workspace, run_id)
    shutil.copytree(workspace, kept, symlinks=True)
    try:
        before = Before.of(workspace)
        recover_and_check(workspace, before, run_id)
        whole = layout.history.read_bytes()
        shutil.rmtree(workspace)
        shutil.copytree(kept, workspace, symlinks=True)
        run_until_killed(workspace, 1, run_id, at=place)
        recover_and_check(workspace, before, run_id)
        assert layout.history.read_bytes() == whole
    finally:
        shutil.rmtree(workspace)
        shutil.copytree(kept, workspace, symlinks=True)


def test_a_run_killed_at_its_birth_leaves_nothing_that_hinders(tmp_path: Path) -> None:
    make_workspace(tmp_path / "lab", ENV)
    before = Before.of(tmp_path / "lab")
    run_until_killed(tmp_path / "lab", 1, "", at="run_created")
    (run_id,) = run_ids(tmp_path / "lab")
    assert recover_and_check(tmp_path / "lab", before, run_id) == []


@pytest.mark.long
@pytest.mark.parametrize("case", ["bad", "outside", "compose", "conflict", "parallel"])
@pytest.mark.parametrize("place", ["planned", "row_appended"])
def test_other_lives_of_a_round(workspace: Path, case: str, place: str) -> None:
    (run_id,), before = run_ids(workspace), Before.of(workspace)
    run_until_killed(workspace, 4, run_id, case, at=f"{place}@2")
    recover_and_check(workspace, before, run_id)
    assert start(workspace, 4, run_id, case).returncode == 0
    rows = check(before, run_id)
    assert sum(row.status not in ("orphaned_branch", "branch_manually_deleted") for row in rows) == 4


def test_quarantined_round_is_restored(workspace: Path, tmp_path: Path) -> None:
    """It is verified and gets its branch back, with a follow-up row; a second time there is nothing to restore."""
    (run_id,), before = run_ids(workspace), Before.of(workspace)
    run_until_killed(workspace, 2, run_id, "nominate", at="test_registered")
    layout, repo = RunLayout(workspace, run_id), Repo.discover(workspace)
    metrics = layout.round(2).metrics.rename(tmp_path / "metrics.json")  # else recovery finishes the round by itself
    lost = recover_and_check(workspace, before, run_id)[-1]
    metrics.rename(layout.round(2).metrics)
    row = restore_round(layout, repo, 2)
    assert (row.refers_to_attempt, row.round_attempt_id) == (lost.round_attempt_id, None)
    assert row.verify_verdict is not None
    assert row.branch is not None and row.branch.startswith(f"exp/{run_id}/02-")
    assert recover_and_check(workspace, before, run_id)[-1] == row
    with pytest.raises(UsageError, match="not in quarantine"):
        restore_round(layout, repo, 2)


def test_unmeasured_round_is_not_restored(workspace: Path) -> None:
    (run_id,) = run_ids(workspace)
    run_until_killed(workspace, 2, run_id, at="coded")
    with pytest.raises(UsageError, match="died before the round was measured"):
        restore_round(RunLayout(workspace, run_id), Repo.discover(workspace), 2)
