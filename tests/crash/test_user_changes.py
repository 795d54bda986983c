"""A user changes the repository between two starts: the user's files are unchanged, no round is lost."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from autoqec.errors import ManualInterventionRequired, UsageError
from autoqec.orchestrator.memory import RunMemory
from autoqec.orchestrator.recovery.apply import reconcile
from autoqec.store.layout import RunLayout, quarantine_branch_of
from autoqec.system import git as host_git
from autoqec.system import run_lock
from autoqec.system.git import Repo
from tests.crash.invariants import Before, check, git, refs, run_ids
from tests.crash.starts import recover_and_check, run_until_killed
from tests.support import rounds
from tests.support.runs import write_lines

VIEWS = ("pareto.json", "pareto_preview.json", "candidate_pareto.json", "fork_graph.json", "log.md")


def place(workspace: Path) -> tuple[RunLayout, Repo]:
    (run_id,) = run_ids(workspace)
    return RunLayout(workspace, run_id), Repo.discover(workspace)


def first_row(layout: RunLayout) -> Any:
    return RunMemory(layout.root).history.rows()[0]


def test_clean_run_needs_no_recovery(workspace: Path) -> None:
    layout, repo = place(workspace)
    before = {path: path.read_bytes() for path in layout.root.rglob("*") if path.is_file() and path.stem != "owner"}
    assert reconcile(layout, repo, dry_run=True) == [] == reconcile(layout, repo)
    assert {path: path.read_bytes() for path in before} == before
    check(Before.of(workspace), layout.run_id)


def test_salvaged_files_are_not_changed_again(workspace: Path) -> None:
    layout, repo = place(workspace)
    half = layout.salvage / "checkout.1" / f".predecoder.yaml.{'0' * 16}.tmp"
    half.parent.mkdir(parents=True)
    half.write_text("half")
    assert reconcile(layout, repo) == [] and half.read_text() == "half"


def test_deleted_views_are_restored_byte_for_byte(workspace: Path) -> None:
    layout, repo = place(workspace)
    was = {name: (layout.root / name).read_bytes() for name in VIEWS}
    for name in VIEWS:
        (layout.root / name).unlink()
    assert [action.kind for action in reconcile(layout, repo, dry_run=True)] == ["views"]
    assert not layout.log.exists()
    reconcile(layout, repo)
    assert {name: (layout.root / name).read_bytes() for name in VIEWS} == was


def test_deleted_branch_gets_one_follow_up_and_keeps_its_commit(workspace: Path) -> None:
    layout, _ = place(workspace)
    row = first_row(layout)
    git(workspace, "branch", "-D", row.branch)
    git(workspace, "gc", "-q", "--prune=now")
    rows = recover_and_check(workspace, Before.of(workspace), layout.run_id)
    assert [row.status for row in rows] == ["ok", "branch_manually_deleted"]
    assert rows[1].refers_to_attempt == row.round_attempt_id and rows[1].reconcile_id
    assert git(workspace, "cat-file", "-t", row.commit_sha) == "commit"


def test_lost_pin_is_restored(workspace: Path) -> None:
    layout, _ = place(workspace)
    git(workspace, "update-ref", "-d", layout.pin(first_row(layout).round_attempt_id))
    recover_and_check(workspace, Before.of(workspace), layout.run_id)


def test_foreign_branch_pauses_and_changes_nothing(workspace: Path) -> None:
    layout, repo = place(workspace)
    git(workspace, "branch", f"exp/{layout.run_id}/07-mine")
    layout.log.unlink()
    was = refs(workspace)
    with pytest.raises(ManualInterventionRequired) as pause:
        reconcile(layout, repo)
    assert pause.value.exit_code == 3 and "07-mine" in str(pause.value)
    assert refs(workspace) == was and not layout.log.exists()
    git(workspace, "branch", "-m", f"exp/{layout.run_id}/07-mine", "mine")
    recover_and_check(workspace, Before.of(workspace), layout.run_id)


def test_branch_moved_to_quarantine_by_a_user_is_moved_back(workspace: Path) -> None:
    layout, _ = place(workspace)
    branch = first_row(layout).branch
    git(workspace, "branch", "-m", branch, quarantine_branch_of(branch))
    recover_and_check(workspace, Before.of(workspace), layout.run_id)
    assert branch in refs(workspace)


def test_commits_and_checkouts_of_a_user_are_allowed(workspace: Path) -> None:
    layout, _ = place(workspace)
    (workspace / "notes.md").write_text("mine")
    git(workspace, "add", "notes.md")
    git(workspace, "commit", "-q", "-m", "mine")
    git(workspace, "checkout", "-q", first_row(layout).branch)
    before = Before.of(workspace)
    recover_and_check(workspace, before, layout.run_id)
    assert git(workspace, "symbolic-ref", "--short", "HEAD") == first_row(layout).branch


def test_missing_verified_commit_pauses(workspace: Path) -> None:
    layout, repo = place(workspace)
    row = first_row(layout)
    forged = row.model_copy(
        update={
            "verify_verdict": "VERIFIED",
            "delta_vs_baseline_holdout": 0.1,
            "paired_eval_bundle_id": "x",
            "commit_sha": rounds.sha("gone"),
        }
    )
    write_lines(layout.history, [forged.dump()])
    with pytest.raises(ManualInterventionRequired, match="no longer has commit"):
        reconcile(layout, repo)


def test_pruned_commit_of_an_unfinished_round_pauses_until_its_branch_is_deleted(workspace: Path) -> None:
    """git can neither move the branch to quarantine nor pin its commit."""
    layout, repo = place(workspace)
    before = Before.of(workspace)
    run_until_killed(workspace, 2, layout.run_id, at="coded")
    (branch,) = (name for name in refs(workspace) if name.startswith("exp/") and "/02-" in name)
    sha = git(workspace, "rev-parse", branch)
    (repo.common / "objects" / sha[:2] / sha[2:]).unlink()
    for _ in range(2):
        with pytest.raises(ManualInterventionRequired, match=f"no longer has commit {sha}") as paused:
            reconcile(layout, repo)
    assert paused.value.hint is not None
    command = paused.value.hint.split("`")[3]
    subprocess.run(command.split(), cwd=workspace, check=True)
    rows = recover_and_check(workspace, before, layout.run_id)
    assert [(row.round, row.status, row.branch) for row in rows[1:]] == [(2, "orphaned_branch", None)]


def test_damaged_line_in_the_middle_pauses(workspace: Path) -> None:
    layout, repo = place(workspace)
    text = layout.history.read_text()
    layout.history.write_text("{not json\n" + text)
    with pytest.raises(ManualInterventionRequired, match="damaged"):
        reconcile(layout, repo)


def test_torn_tail_is_salvaged(workspace: Path) -> None:
    layout, repo = place(workspace)
    with layout.attempts.open("a") as stream:
        stream.write('{"kind":"begun","round_attempt_id":"torn')
    assert [action.kind for action in reconcile(layout, repo, dry_run=True)] == ["heal"]
    assert len(recover_and_check(workspace, Before.of(workspace), layout.run_id)) == 1
    (salvaged,) = layout.salvage.glob("attempts.jsonl.*")
    assert salvaged.read_text().endswith("torn")


def test_second_owner_is_refused_with_the_first_owners_pid(workspace: Path) -> None:
    layout, repo = place(workspace)
    with run_lock.lock_run(layout.root), pytest.raises(UsageError, match="held by process"):
        reconcile(layout, repo)


def test_unknown_run_is_one_error(workspace: Path) -> None:
    _, repo = place(workspace)
    with pytest.raises(UsageError, match="no run"):
        reconcile(RunLayout(workspace, "20200101-000000"), repo)


def grow(workspace: Path, layout: RunLayout, count: int) -> None:
    """Add branches of rounds that were planned and committed before their process died."""
    head = git(workspace, "rev-parse", "HEAD")
    tree = git(workspace, "rev-parse", "HEAD^{tree}")
    history, lines = RunMemory(layout.root).history, []
    for number in range(2, count + 2):
        more = {"branch": layout.branch(number, "try"), "base_sha": head}
        history.append_attempt(rounds.begun(number))
        history.append_attempt(rounds.planned(number, **more))
        sha = git(
            workspace, "commit-tree", tree, "-p", head, "-m", f"round {number}\n\nAutoqec-Attempt: attempt-{number}"
        )
        lines.append(f"create refs/heads/{more['branch']} {sha}\n")
    subprocess.run(["git", "update-ref", "--stdin"], cwd=workspace, input="".join(lines), text=True, check=True)


def test_number_of_git_processes_does_not_depend_on_orphans(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout, repo = place(workspace)
    started: list[str] = []
    execute = host_git.command.execute

    def counted(cwd: Path, arguments: Any, **more: Any) -> Any:
        started.append(" ".join(arguments))
        return execute(cwd, arguments, **more)

    monkeypatch.setattr(host_git.command, "execute", counted)
    counts = []
    for orphans in (0, 3, 30):
        if orphans:
            grow(workspace, layout, orphans)
            first = RunMemory(layout.root).history.attempts()
            assert len(first) >= 2 * orphans
        started.clear()
        reconcile(layout, repo)
        counts.append(len(started))
        check(Before.of(workspace), layout.run_id)
        if orphans == 3:
            layout.attempts.write_text("".join(layout.attempts.read_text().splitlines(keepends=True)[:4]))
            layout.history.write_text(layout.history.read_text().splitlines(keepends=True)[0])
            for name in [name for name in refs(workspace) if name.startswith("quarantine/")]:
                git(workspace, "branch", "-D", name)
            for number in range(2, 5):
                git(workspace, "update-ref", "-d", layout.pin(f"attempt-{number}"))
    assert counts[1] == counts[2] <= 20, counts
    assert counts[0] < counts[1]
