"""Run directories that are moved, copied, renamed, linked or deleted, and the secret inside."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner

from autoqec.cli.autoqec import group
from autoqec.cli.workspace import make_workspace
from autoqec.errors import AutoqecError, InfrastructureError, ManualInterventionRequired, UsageError
from autoqec.orchestrator import run_directory
from autoqec.orchestrator.executors import SerialExecutor
from autoqec.orchestrator.loop import run_rounds
from autoqec.orchestrator.memory import RunMemory
from autoqec.orchestrator.recovery.apply import reconcile
from autoqec.orchestrator.verify_round import verify_or_replay
from autoqec.store import jsonl
from autoqec.store.history import ATTEMPTS_KEY
from autoqec.store.layout import RunLayout, partial_run_id
from autoqec.system.git import Repo
from benchmarks import rounds as bench
from tests.crash import canned
from tests.crash.invariants import Before, git, refs
from tests.crash.starts import ENV, recover_and_check
from tests.support import rounds
from tests.support.runs import write_lines
from tests.support.starts import resume_run, start_run


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    canned.install(monkeypatch.setattr)


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    """A run of one verified round."""
    make_workspace(tmp_path / "workspace", ENV)
    return begin(tmp_path / "workspace")


def begin(workspace: Path) -> RunLayout:
    with start_run(workspace / "env.yaml", workspace, "smoke", 1, roles=bench.roles()) as run:
        run_rounds(run, 1)
        return run.layout


def resume(layout: RunLayout, rounds: int) -> list[str]:
    """Resume the run once and return its notes."""
    with resume_run(layout.run_id, layout.repo_root, roles=bench.roles()) as run:
        run_rounds(run, rounds)
        return run.notes


def die(*_: object, **__: object) -> None:
    raise KeyboardInterrupt


def half_done(layout: RunLayout) -> str:
    """Return the branch of a second round whose process died during measurement."""
    with (
        pytest.raises(KeyboardInterrupt),
        resume_run(layout.run_id, layout.repo_root, roles=bench.roles()) as run,
    ):
        run_rounds(run, 2, executor=SerialExecutor(die))  # type: ignore[arg-type]
    (branch,) = [name for name in refs(layout.repo_root) if "/02-" in name]
    return branch


def test_checked_out_branch_of_a_dead_round_keeps_head_valid(layout: RunLayout) -> None:
    workspace, branch = layout.repo_root, half_done(layout)
    git(workspace, "worktree", "remove", "--force", str(layout.worktree(branch)))
    git(workspace, "checkout", "-q", branch)
    head, repo = git(workspace, "rev-parse", "HEAD"), Repo.discover(workspace)
    reconcile(layout, repo)
    assert git(workspace, "rev-parse", "HEAD") == head and git(workspace, "symbolic-ref", "--short", "HEAD") == branch
    assert git(workspace, "status", "--porcelain") == ""
    assert reconcile(layout, repo) == []
    git(workspace, "checkout", "-q", "main")
    assert [action.kind for action in reconcile(layout, repo)] == ["drop_ref"]
    assert branch not in refs(workspace) and f"quarantine/{branch.removeprefix('exp/')}" in refs(workspace)


def test_branch_checked_out_twice_keeps_head_valid(layout: RunLayout) -> None:
    workspace, branch = layout.repo_root, half_done(layout)
    git(workspace, "checkout", "-q", "--ignore-other-worktrees", branch)
    reconcile(layout, Repo.discover(workspace))
    assert git(workspace, "rev-parse", "--abbrev-ref", "HEAD") == branch


def test_git_layer_refuses_to_delete_a_checked_out_branch(layout: RunLayout) -> None:
    from autoqec.system.git import GitError, RefUpdate

    repo = Repo.discover(layout.repo_root)
    with pytest.raises(GitError, match="checked out"):
        repo.update_refs([RefUpdate("refs/heads/main", None, repo.head_sha())])
    assert repo.head_sha()


def test_renamed_run_directory_pauses_and_nothing_is_written(layout: RunLayout) -> None:
    renamed = RunLayout(layout.repo_root, "20200101-000000")
    layout.root.rename(renamed.root)
    history, was = renamed.history.read_bytes(), refs(layout.repo_root)
    repo = Repo.discover(layout.repo_root)
    for attempt in (lambda: reconcile(renamed, repo), lambda: resume(renamed, 2)):
        with pytest.raises(ManualInterventionRequired, match=f"contains run {layout.run_id}") as pause:
            attempt()
        assert pause.value.exit_code == 3 and pause.value.hint == f"mv {renamed.root} {layout.root}"
    assert renamed.history.read_bytes() == history and refs(layout.repo_root) == was
    assert git(layout.repo_root, "for-each-ref", "refs/autoqec/pin/20200101-000000") == ""
    renamed.root.rename(layout.root)
    assert reconcile(layout, repo) == []


def test_copied_run_directory_pauses_instead_of_sharing_its_secret(layout: RunLayout) -> None:
    copy = RunLayout(layout.repo_root, "20200101-000000")
    shutil.copytree(layout.root, copy.root)
    with pytest.raises(ManualInterventionRequired) as pause:
        resume(copy, 2)
    assert pause.value.hint is not None and f"rm -r {copy.root}" in pause.value.hint


def test_copied_repository_pauses_while_its_original_exists(layout: RunLayout, tmp_path: Path) -> None:
    shutil.copytree(layout.repo_root, tmp_path / "copy", symlinks=True)
    copy = RunLayout(tmp_path / "copy", layout.run_id)
    for _ in range(2):
        for attempt in (lambda: resume(copy, 2), lambda: reconcile(copy, Repo.discover(copy.repo_root))):
            with pytest.raises(ManualInterventionRequired, match="is a copy of"):
                attempt()
    assert resume(layout, 2) == []
    shutil.rmtree(layout.repo_root)
    resume(copy, 2)
    assert len(RunMemory(copy.root).history.rows()) == 2


def test_run_directory_moved_to_another_repository_records_no_deleted_branch(layout: RunLayout, tmp_path: Path) -> None:
    make_workspace(tmp_path / "other", ENV)
    git(tmp_path / "other", "commit", "-q", "--allow-empty", "--amend", "-m", "another baseline")
    # Both workspaces may be created in the same second; their first commits are then one object.
    git(tmp_path / "other", "reflog", "expire", "--expire=now", "--all")
    git(tmp_path / "other", "prune", "--expire=now")
    moved = RunLayout(tmp_path / "other", layout.run_id)
    moved.root.parent.mkdir()
    layout.root.rename(moved.root)
    with pytest.raises(ManualInterventionRequired, match="does not have the baseline commit"):
        reconcile(moved, Repo.discover(moved.repo_root))
    assert [row.status for row in RunMemory(moved.root).history.rows()] == ["ok"]


def test_repository_moved_after_a_crash_recovers(layout: RunLayout, tmp_path: Path) -> None:
    branch = half_done(layout)
    (layout.worktree(branch) / "autoqec/decoders/modules/mlp.py").write_text("# edited\n")
    layout.repo_root.rename(tmp_path / "moved")
    moved = RunLayout(tmp_path / "moved", layout.run_id)
    rows = recover_and_check(moved.repo_root, Before.of(moved.repo_root), layout.run_id)
    assert [row.status for row in rows] == ["ok", "orphaned_branch"]
    assert git(moved.repo_root, "worktree", "list").count("\n") == 0
    (patch,) = moved.salvage.glob("*.patch")
    assert "# edited" in patch.read_text()
    assert moved.stored(rows[0].checkpoint_path) == moved.round(1).checkpoint, "its weights are found at the new place"


def test_moved_worktree_that_git_cannot_repair_is_removed(layout: RunLayout, tmp_path: Path) -> None:
    """As after a kill while git wrote the file that leads to its record."""
    (layout.worktree(half_done(layout)) / ".git").write_text("")
    layout.repo_root.rename(tmp_path / "moved")
    recover_and_check(tmp_path / "moved", Before.of(tmp_path / "moved"), layout.run_id)


def test_record_of_a_moved_worktree_without_its_directory_is_removed(layout: RunLayout, tmp_path: Path) -> None:
    branch = half_done(layout)
    shutil.rmtree(layout.worktree(branch))
    layout.repo_root.rename(tmp_path / "moved")
    recover_and_check(tmp_path / "moved", Before.of(tmp_path / "moved"), layout.run_id)


@pytest.mark.parametrize("name", ["runs", "autoqec-data"])
def test_runs_can_be_a_link_to_another_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    workspace, disk = tmp_path / "workspace", tmp_path / "big" / name
    make_workspace(workspace, ENV)
    disk.mkdir(parents=True)
    (workspace / "runs").symlink_to(disk)
    layout = begin(workspace)
    assert (disk / layout.run_id / "history.jsonl").is_file()
    resume(layout, 2)
    assert [row.status for row in recover_and_check(workspace, Before.of(workspace), layout.run_id)] == ["ok", "ok"]
    code, output = invoke(workspace, monkeypatch, "show", str(layout.root))
    assert code == 0, output


def test_copied_repository_with_a_link_to_the_same_runs_pauses(layout: RunLayout, tmp_path: Path) -> None:
    (layout.repo_root / "runs").rename(tmp_path / "disk")
    (layout.repo_root / "runs").symlink_to(tmp_path / "disk")
    resume(layout, 2)
    shutil.copytree(layout.repo_root, tmp_path / "copy", symlinks=True)
    copy = RunLayout(tmp_path / "copy", layout.run_id)
    for attempt in (lambda: resume(copy, 3), lambda: reconcile(copy, Repo.discover(copy.repo_root))):
        with pytest.raises(ManualInterventionRequired, match="belongs to the repository"):
            attempt()
    assert resume(layout, 2) == []
    (tmp_path / "copy").rename(tmp_path / "gone")
    layout.repo_root.rename(tmp_path / "copy")  # moved, not copied
    resume(copy, 3)
    assert len(RunMemory(copy.root).history.rows()) == 3


def test_secret_is_never_staged(tmp_path: Path) -> None:
    workspace = tmp_path / "workspace"
    make_workspace(workspace, ENV)
    (workspace / ".gitignore").unlink(missing_ok=True)
    begin(workspace)
    git(workspace, "add", "-A")
    assert not [name for name in git(workspace, "diff", "--cached", "--name-only").splitlines() if "runs/" in name]


def test_failed_start_leaves_no_run(tmp_path: Path) -> None:
    make_workspace(tmp_path, ENV)

    def fill(partial: RunLayout, run_id: str) -> None:
        partial.env.write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_directory.create_run_directory(tmp_path, fill)
    assert [path.name for path in (tmp_path / "runs").iterdir()] == [".gitignore"]


def test_directory_that_a_killed_start_left_is_removed_by_the_next(tmp_path: Path) -> None:
    make_workspace(tmp_path, ENV)
    remainder = RunLayout(tmp_path, partial_run_id("20200101-000000")).root
    remainder.mkdir(parents=True)
    (remainder / "secret").write_text("half")
    layout = begin(tmp_path)
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {".gitignore", layout.run_id}


def invoke(workspace: Path, monkeypatch: pytest.MonkeyPatch, *arguments: str) -> tuple[int, str]:
    monkeypatch.chdir(workspace)
    done = CliRunner().invoke(group, [*arguments])
    if isinstance(done.exception, AutoqecError):
        return done.exception.exit_code, f"{done.exception}"
    return done.exit_code, done.output


RUN_FILES = ("env.yaml", "secret", "log.md", "owner.json", "run.json", "history.jsonl", "attempts.jsonl", "live.json")
ROUND_FILES = ("metrics.json", "config.yaml", "train.log", "verification_report.json")


@pytest.mark.timeout(120)  # a read of a FIFO never ends
@pytest.mark.parametrize("name", [*RUN_FILES, *(f"round_1/{name}" for name in ROUND_FILES)])
def test_fifo_in_place_of_a_file_blocks_no_command(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    (layout.root / name).unlink(missing_ok=True)
    os.mkfifo(layout.root / name)
    for command in ("show", "reconcile", "report", "review-log", "diagnose"):
        code, output = invoke(layout.repo_root, monkeypatch, command, layout.run_id)
        assert code in (0, 2, 3, 74), (command, code, output)
    code, output = invoke(layout.repo_root, monkeypatch, "verify", str(layout.round(1).dir))
    assert code in (0, 1, 2, 3, 74), output


def test_run_deleted_by_git_clean_is_explained_and_can_be_removed(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace = layout.repo_root
    git(workspace, "clean", "-q", "-fdX")
    assert not layout.root.exists()
    for command in (("show",), ("show", layout.run_id), ("reconcile", layout.run_id), ("gc", layout.run_id, "--yes")):
        _, output = invoke(workspace, monkeypatch, *command)
        assert layout.run_id in output and "1 branches and 1 pins remain" in output, output
    assert len(refs(workspace)) > 1, "branches are removed only by name"
    code, _ = invoke(workspace, monkeypatch, "gc", layout.run_id, "--yes", "--only", "deleted_run")
    assert code == 0 and list(refs(workspace)) == ["main"]
    assert git(workspace, "for-each-ref", "refs/autoqec") == ""


@pytest.mark.parametrize("remainder", ["nothing", "directory"])
def test_lost_secret_is_reported_as_lost(layout: RunLayout, remainder: str) -> None:
    layout.secret.unlink()
    if remainder == "directory":
        layout.secret.mkdir()
    with pytest.raises(ManualInterventionRequired, match="secret is missing") as pause:
        resume(layout, 2)
    assert pause.value.hint is not None and "autoqec show" in pause.value.hint


def unchained(path: Path) -> list[dict[str, object]]:
    """Return the lines of a file without hashes."""
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    keys = (jsonl.CHAIN_KEY, jsonl.LINE_KEY, ATTEMPTS_KEY)
    return [{key: value for key, value in line.items() if key not in keys} for line in lines]


@pytest.mark.parametrize("keep", [lambda line: False, lambda line: line["kind"] != "charged"], ids=["all", "tests"])
def test_lost_attempt_lines_pause(layout: RunLayout, keep: Callable[[dict[str, object]], bool]) -> None:
    lines = [line for line in unchained(layout.attempts) if keep(line)]
    write_lines(layout.attempts, lines)
    layout.attempts_head.unlink()
    with pytest.raises(ManualInterventionRequired, match=r"attempts\.jsonl"):
        resume(layout, 2)


def test_cut_attempts_of_an_aborted_round_pause(layout: RunLayout) -> None:
    """Its row has no verdict, so nothing else names the test that it registered."""
    memory, repo = RunMemory(layout.root), Repo.discover(layout.repo_root)
    memory.history.append_attempt(rounds.begun(2))
    whole = layout.attempts.read_bytes()
    memory.history.append_attempt(rounds.charged(2).model_copy(update={"attempt_index": memory.next_test_index()}))
    layout.round(2).dir.mkdir()
    reconcile(layout, repo)
    assert reconcile(layout, repo) == [] and memory.next_test_index() == 3
    layout.attempts.write_bytes(whole)
    with pytest.raises(ManualInterventionRequired, match=r"history\.jsonl:2: round 2: the last line that .*is gone"):
        resume(layout, 3)


def test_cut_registered_test_pauses_before_its_round_has_a_row(layout: RunLayout) -> None:
    """The process died in the verification: no row names the line, and its place would be given again."""
    assert layout.attempts_head.read_text().strip() in jsonl.line_hashes(layout.attempts), "of the verified round"
    memory = RunMemory(layout.root)
    memory.history.append_attempt(rounds.begun(2))
    whole = layout.attempts.read_bytes()
    memory.history.register_test(rounds.charged(2).model_copy(update={"attempt_index": memory.next_test_index()}))
    layout.attempts.write_bytes(whole)
    with pytest.raises(ManualInterventionRequired, match=r"attempts\.jsonl: the registered test that .*is gone"):
        resume(layout, 3)


EDITS = (
    {"delta_vs_baseline_holdout": 0.44},
    {"verify_verdict": "FAILED"},
    {"round_attempt_id": "damaged"},
    {"verify_verdict": None, "branch": "main"},
    {"verify_verdict": None, "round": 7},
)


@pytest.mark.parametrize("change", EDITS, ids=str)
def test_edited_row_pauses_and_names_its_line(layout: RunLayout, change: dict[str, object]) -> None:
    (row,) = unchained(layout.history)
    write_lines(layout.history, [{**row, **change}])
    was, repo = refs(layout.repo_root), Repo.discover(layout.repo_root)
    for _ in range(2):
        with pytest.raises(ManualInterventionRequired, match=r"history\.jsonl:1"):
            reconcile(layout, repo)
    assert refs(layout.repo_root) == was


@pytest.mark.parametrize("content", [b"", b"\0" * 41], ids=["empty", "NUL bytes"])
@pytest.mark.parametrize("which", ["branch", "pin"])
def test_ref_that_a_power_cut_damaged_is_restored(layout: RunLayout, content: bytes, which: str) -> None:
    (row,) = RunMemory(layout.root).history.rows()
    ref = f"refs/heads/{row.branch}" if which == "branch" else layout.pin(str(row.round_attempt_id))
    was = git(layout.repo_root, "rev-parse", ref)
    (layout.repo_root / ".git" / ref).write_bytes(content)
    rows = recover_and_check(layout.repo_root, Before.of(layout.repo_root), layout.run_id)
    assert [found.status for found in rows] == ["ok"], "the branch was not deleted"
    assert git(layout.repo_root, "rev-parse", ref) == was


def test_recovery_is_announced(layout: RunLayout) -> None:
    half_done(layout)
    notes = resume(layout, 2)
    assert any(note.startswith("recovery: move ref exp/") for note in notes), notes
    assert 'recovered action kind="move_ref"' in layout.log_file.read_text(encoding="utf-8")


def killed_before_pointer(layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    """Return a second round that was measured and whose process died before it committed the pointer."""
    with monkeypatch.context() as patch:
        patch.setattr("autoqec.orchestrator.worktree.commit_pointer", die)
        with pytest.raises(KeyboardInterrupt):
            resume(layout, 2)


@pytest.mark.parametrize("worktree", ["whole", "deleted"])
def test_measured_round_is_finished_and_then_verified(
    layout: RunLayout, monkeypatch: pytest.MonkeyPatch, worktree: str
) -> None:
    killed_before_pointer(layout, monkeypatch)
    if worktree == "deleted":
        shutil.rmtree(layout.repo_root / ".worktrees")
    monkeypatch.setattr("autoqec.ideators.analyst.analyse", canned.analyse)
    rows = recover_and_check(layout.repo_root, Before.of(layout.repo_root), layout.run_id)
    assert [(row.status, row.verdict, row.verify_verdict) for row in rows[1:]] == [("ok", "candidate", None)]
    resume(layout, 2)
    rows = recover_and_check(layout.repo_root, Before.of(layout.repo_root), layout.run_id)
    assert [(row.round, row.verify_verdict) for row in rows[2:]] == [(2, "VERIFIED")], "one follow-up, no third round"


def test_round_killed_from_outside_is_not_a_failure_of_its_config(layout: RunLayout) -> None:
    def killed(*_: object) -> None:
        raise InfrastructureError("killed from outside twice")

    with resume_run(layout.run_id, layout.repo_root, roles=bench.roles()) as run:
        outcome = run_rounds(run, 9, executor=SerialExecutor(killed))  # type: ignore[arg-type]
        assert run.memory.state.totals.finished == 1, "it does not count"
    assert [row.status for row in outcome.rows] == ["orphaned_branch"] * 2
    assert str(outcome.rows[0].status_reason).startswith("infrastructure failure: ")
    assert "killed by the machine" in outcome.stop_reason
    recover_and_check(layout.repo_root, Before.of(layout.repo_root), layout.run_id)


def test_candidate_killed_from_outside_is_retried(layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    failures = iter([True, False])

    def verify(*arguments: object, **more: object) -> object:
        if next(failures):
            raise InfrastructureError("killed")
        return canned.verify(*arguments, **more)  # type: ignore[arg-type]

    monkeypatch.setattr("autoqec.verification.verifier.verify", verify)
    resume(layout, 2)
    memory = RunMemory(layout.root)
    assert memory.history.rows()[-1].verify_verdict == "VERIFIED"
    indices = [line.attempt_index for line in memory.attempt_state.registered_tests]
    assert indices == [1, 2, 3], "a second start is a test too"
    recover_and_check(layout.repo_root, Before.of(layout.repo_root), layout.run_id)


def test_candidate_killed_twice_can_be_verified_later(layout: RunLayout, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: object, **__: object) -> None:
        raise InfrastructureError("killed")

    with monkeypatch.context() as patch:
        patch.setattr("autoqec.verification.verifier.verify", killed)
        resume(layout, 2)
    row = RunMemory(layout.root).history.rows()[-1]
    assert (row.status, row.verdict, row.verify_verdict) == ("ok", "candidate", None)
    assert row.verify_reasons[0].startswith("not verified: killed")
    assert resume(layout, 2) == [] and len(RunMemory(layout.root).history.rows()) == 2, "one retry in all"
    verify_or_replay(layout, Repo.discover(layout.repo_root), 2, lambda *_: None)
    assert RunMemory(layout.root).history.rows()[-1].verify_verdict == "VERIFIED"
    charged = RunMemory(layout.root).attempt_state.registered_tests
    assert [(line.round, line.attempt_index) for line in charged] == [(1, 1), (2, 2), (2, 3), (2, 4)]


def test_verifying_a_copy_needs_its_own_directory(layout: RunLayout) -> None:
    renamed = RunLayout(layout.repo_root, "20200101-000000")
    layout.root.rename(renamed.root)
    with pytest.raises((ManualInterventionRequired, UsageError)):
        verify_or_replay(renamed, Repo.discover(layout.repo_root), 1, lambda *_: None)


def test_unfinished_partial_directories_are_not_listed(tmp_path: Path) -> None:
    make_workspace(tmp_path, ENV)
    (tmp_path / "runs" / partial_run_id("20200101-000000")).mkdir(parents=True)
    done = subprocess.run(["git", "status", "--porcelain"], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == ""
