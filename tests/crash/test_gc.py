"""`autoqec gc`: removes only confirmed items, keeps what is needed, and survives concurrency and kills."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from autoqec.cli.commands import gc as gc_command
from autoqec.cli.workspace import make_workspace
from autoqec.contracts.events import ignore
from autoqec.errors import UsageError
from autoqec.orchestrator import gc
from autoqec.orchestrator.archive import publish_secret
from autoqec.orchestrator.failpoint import FAILPOINT_VARIABLE
from autoqec.orchestrator.memory import RunMemory
from autoqec.orchestrator.restore_round import restore_round
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from autoqec.system import run_lock
from autoqec.system.git import Repo
from tests.conftest import made_workspace
from tests.crash.invariants import Before, git, refs, run_ids
from tests.crash.starts import ENV, ROOT, recover_and_check
from tests.crash.sweep import Zygote
from tests.support import rounds
from tests.support.shown import check_error

ALL = ("--yes", *(word for kind in gc_command.KIND_LABELS for word in ("--only", kind)))


@pytest.fixture(scope="module")
def with_leftovers(process: Zygote, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Round 1 is ok; round 2 died after its code commit and was quarantined; round 3 died with uncommitted edits."""
    shutil.rmtree(process.workspace, ignore_errors=True)
    make_workspace(process.workspace, ENV)
    assert process.start(1, "", ("quiet",)).returncode == 0
    (run_id,) = run_ids(process.workspace)
    for point in ("coded", "edited"):
        assert process.start(2, run_id, ("quiet",), die_at=point).returncode == -signal.SIGKILL
    directory = tmp_path_factory.mktemp("littered") / "workspace"
    shutil.copytree(process.workspace, directory, symlinks=True)
    return directory


@pytest.fixture
def littered(process: Zygote, with_leftovers: Path) -> tuple[Path, RunLayout, Repo]:
    process.restore(with_leftovers)
    (run_id,) = run_ids(process.workspace)
    return process.workspace, RunLayout(process.workspace, run_id), Repo.discover(process.workspace)


def kinds(found: list[gc.RemovableItem]) -> list[str]:
    return [item.kind for item in found]


def shell(workspace: Path, *argv: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "autoqec.cli", "gc", *argv]
    known = {"PATH": "/usr/bin:/bin", "HOME": str(workspace.parent), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(
        command, cwd=workspace, env=known | env, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
    )


def test_listing_changes_nothing(littered: tuple[Path, RunLayout, Repo]) -> None:
    workspace, layout, repo = littered
    before = {path: path.read_bytes() for path in layout.root.rglob("*") if path.is_file()}
    was = refs(workspace)
    found = gc.find_removable(layout, repo)
    assert kinds(found) == ["worktree", "quarantine", "unverified"]
    assert "the run is open, so `autoqec verify` or a later round may need it" in found[-1].why
    for argv in ((), ("--dry-run",), ("--dry-run", "--yes"), (layout.run_id,)):
        result = shell(workspace, *argv)
        assert result.returncode == 0 and "quarantine/" in result.stdout, result.stderr
    assert {path: path.read_bytes() for path in before} == before and refs(workspace) == was


def test_only_confirmed_items_are_removed(littered: tuple[Path, RunLayout, Repo]) -> None:
    workspace, layout, _ = littered
    (branch,) = [name for name in refs(workspace) if name.startswith("quarantine/")]
    result = shell(workspace, layout.run_id, "--yes", "--json")
    assert {line["kind"] for line in map(json.loads, result.stdout.splitlines()) if line["removed"]} == {
        "worktree", "quarantine"
    }  # fmt: skip
    assert branch not in refs(workspace) and layout.round(1).checkpoint.exists(), "the open run may want its weights"
    result = shell(workspace, layout.run_id, "--yes")
    assert "--only unverified" in result.stderr and layout.round(1).checkpoint.exists()
    assert shell(workspace, layout.run_id, "--only", "unverified", "--yes").returncode == 0
    assert not layout.round(1).checkpoint.exists()


def test_branch_of_a_refused_edit_can_be_removed_for_good(
    process: Zygote, littered: tuple[Path, RunLayout, Repo]
) -> None:
    """Its config cannot be read, so that the round is a compile_error and its branch is quarantined."""
    workspace, layout, repo = littered
    assert process.start(2, layout.run_id, ("unreadable",)).returncode == 0
    before = Before.of(workspace)
    row = History(layout).rows()[-1]
    assert row.status == "compile_error" and str(row.branch).startswith("quarantine/")
    (found,) = [item for item in gc.find_removable(layout, repo) if item.name == row.branch]
    assert found.kind == "quarantine" and "was rejected (compile_error)" in found.why
    gc.remove(layout, repo, [found])
    assert recover_and_check(workspace, before, layout.run_id)[-1].refers_to_attempt == row.round_attempt_id
    assert (
        str(row.branch) not in refs(workspace)
        and git(workspace, "for-each-ref", layout.pin(str(row.round_attempt_id))) == ""
    )
    assert found.name not in [item.name for item in gc.find_removable(layout, repo)]
    assert process.start(3, layout.run_id, ("quiet",)).returncode == 0


def test_removals_are_recorded_and_permanent(process: Zygote, littered: tuple[Path, RunLayout, Repo]) -> None:
    workspace, layout, repo = littered
    before, weights = Before.of(workspace), layout.round(1).checkpoint
    gone = gc.remove(layout, repo, gc.find_removable(layout, repo))
    assert kinds(gone) == ["worktree", "quarantine", "unverified"]
    rows = recover_and_check(workspace, before, layout.run_id)
    assert [row.status for row in rows] == ["ok", "orphaned_branch", "orphaned_branch", "branch_manually_deleted"]
    assert "removed by `autoqec gc`" in str(rows[3].status_reason)
    assert rows[3].refers_to_attempt == rows[1].round_attempt_id
    assert not weights.exists() and list(gc.removed_files(layout)) == ["round_1/checkpoint.pt"]
    assert len(list(layout.salvage.glob("*.patch"))) == 1, "edits that were not committed are kept"
    assert not any(name.startswith("quarantine/") for name in refs(workspace))
    assert git(workspace, "for-each-ref", layout.pin(str(rows[1].round_attempt_id))) == ""
    assert gc.find_removable(layout, repo) == []
    with pytest.raises(UsageError, match="not in quarantine"):
        restore_round(layout, repo, 2)
    assert process.start(2, layout.run_id, ("quiet",)).returncode == 0


def test_held_run_is_skipped(littered: tuple[Path, RunLayout, Repo]) -> None:
    workspace, layout, repo = littered
    found = gc.find_removable(layout, repo)
    with run_lock.lock_run(layout.root):
        with pytest.raises(UsageError, match="held by process"):
            gc.remove(layout, repo, found)
        result = shell(workspace, layout.run_id, "--yes")
        assert result.returncode == 2
        check_error(result.stderr, "held by process")
        all_runs = shell(workspace, "--yes")
        assert all_runs.returncode == 0 and "is skipped" in all_runs.stderr
    assert gc.find_removable(layout, repo) == found


def verified(layout: RunLayout, number: int, **more: Any) -> None:
    history = History(layout)
    history.append_attempt(rounds.begun(number))
    layout.round(number).dir.mkdir()
    layout.round(number).checkpoint.write_bytes(b"weights")
    history.append_row(rounds.row(number, branch=layout.branch(number, "try"), **more))


def test_ancestors_of_the_front_are_kept(tmp_path: Path) -> None:
    """Front: 4, composed of 2 and 1. 5 started from the weights of 3; 6 is not needed after closing."""
    repo = Repo.init(tmp_path)
    layout = RunLayout(tmp_path, rounds.RUN_ID)
    layout.root.mkdir(parents=True)
    History(layout).write_info(rounds.info())
    secret = layout.secret
    secret.write_bytes(b"x" * 32)
    second, first = layout.branch(2, "try"), layout.branch(1, "try")
    verified(layout, 1, verify_verdict="SUSPICIOUS")
    verified(layout, 2, verify_verdict=None, verdict="ignore")
    verified(layout, 3, verify_verdict="FAILED")
    verified(
        layout, 4, delta_vs_baseline_holdout=0.5, judge_flops_per_syndrome=1, judge_n_params=1,
        fork_from=(second, first), fork_from_canonical=f"{first}|{second}", compose_mode="pure",
    )  # fmt: skip
    third = layout.branch(3, "try")
    config = {**rounds.CONFIG, "training": {"init": "parent"}}
    verified(layout, 5, fork_from=third, fork_from_canonical=third, dsl_config=config, verify_verdict="FAILED")
    verified(layout, 6, delta_vs_baseline_holdout=0.1, judge_flops_per_syndrome=9, judge_n_params=9)
    assert [entry.round_attempt_id for entry in RunMemory(layout.root).state.front] == ["attempt-4"]

    def doomed(kind: str = "checkpoint") -> list[str]:
        return [found.name for found in gc.find_removable(layout, repo) if found.kind == kind]

    assert doomed() == [], "an open run may yet want any"
    assert doomed("unverified") == ["round_5/checkpoint.pt"], "6 is verified, and the open run may yet build on it"
    layout.secret_hex.write_text("")
    assert doomed("unverified") == []
    assert doomed() == ["round_5/checkpoint.pt", "round_6/checkpoint.pt"]
    five = layout.branch(5, "try")
    History(layout).append_attempt(rounds.begun(7))
    History(layout).append_attempt(rounds.planned(7, five, dsl_config=config))
    assert doomed() == ["round_6/checkpoint.pt"], "a job that is queued has yet to read what it starts from"


def test_sizes_are_rounded_not_cut() -> None:
    sizes = {0: "0 B", 999: "999 B", 1_999: "2 kB", 1_960_000: "1.96 MB", 999_600: "1 MB", 2_500_000_000_000: "2.5 TB"}
    assert {size: gc_command._bytes(size) for size in sizes} == sizes


@pytest.mark.parametrize("point", ["gc_row_appended", "gc_refs_dropped", "gc_recorded"])
def test_killed_removal_is_completed_the_next_time(littered: tuple[Path, RunLayout, Repo], point: str) -> None:
    workspace, layout, repo = littered
    before = Before.of(workspace)
    assert shell(workspace, *ALL, **{FAILPOINT_VARIABLE: point}).returncode == -signal.SIGKILL
    recover_and_check(workspace, before, layout.run_id)
    assert shell(workspace, *ALL).returncode == 0
    rows = recover_and_check(workspace, before, layout.run_id)
    assert [row.status for row in rows].count("branch_manually_deleted") == 1
    assert gc.find_removable(layout, repo) == [] and list(gc.removed_files(layout)) == ["round_1/checkpoint.pt"]


def test_ten_concurrent_removals_remove_everything_once(littered: tuple[Path, RunLayout, Repo]) -> None:
    workspace, layout, repo = littered
    before = Before.of(workspace)
    command = [sys.executable, "-P", "-m", "autoqec.cli", "gc", *ALL, "--json"]
    env = {"PATH": "/usr/bin:/bin", "HOME": str(workspace.parent), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    many = [
        subprocess.Popen(command, cwd=workspace, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for _ in range(10)
    ]
    ends = [process.communicate(timeout=120) for process in many]
    assert [process.returncode for process in many] == [0] * 10, ends
    lines = [json.loads(line) for out, _ in ends for line in out.splitlines()]
    names = [line["name"] for line in lines if line.get("removed")]
    assert sorted(names) == sorted(set(names)) and len(names) == 3
    recover_and_check(workspace, before, layout.run_id)
    assert gc.find_removable(layout, repo) == []


def test_archive_of_a_cleaned_closed_run_lists_removals(littered: tuple[Path, RunLayout, Repo], tmp_path: Path) -> None:
    from autoqec.orchestrator.archive import package_run, replay_archive

    _, layout, repo = littered
    publish_secret(layout, repo)
    assert "checkpoint" in kinds(gc.find_removable(layout, repo)), "rounds of a closed run are not verified any more"
    gc.remove(layout, repo, gc.find_removable(layout, repo))
    package_run(layout, repo, tmp_path / "run.tar")
    found = replay_archive(tmp_path / "run.tar", tmp_path / "there", on_event=ignore)
    assert found.agrees


def test_workspace_without_runs_has_nothing_to_remove(tmp_path: Path) -> None:
    workspace = made_workspace(tmp_path)
    result = workspace.autoqec("gc")
    assert result.code == 0 and "nothing to remove" in result.err
    assert workspace.autoqec("gc", "20200101-000000").code == 2
