"""A person in the repository, between two starts: nothing of theirs is touched, nothing of the run is lost."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from autoqec.errors import InputError, RunPaused
from autoqec.orchestrator.memory import RunMemory
from autoqec.orchestrator.recovery.apply import reconcile
from autoqec.store.layout import RunLayout, quarantined
from autoqec.system import git as host_git
from autoqec.system import run_lock
from autoqec.system.git import Repo
from tests.crash.invariants import Before, check, git, refs, run_ids
from tests.crash.starts import recovered
from tests.support import rounds

VIEWS = ("pareto.json", "pareto_preview.json", "candidate_pareto.json", "fork_graph.json", "log.md")


def place(lab: Path) -> tuple[RunLayout, Repo]:
    (run_id,) = run_ids(lab)
    return RunLayout(lab, run_id), Repo.discover(lab)


def first_row(layout: RunLayout) -> Any:
    return RunMemory(layout.root).history.rows()[0]


def test_nothing_to_do_where_nothing_happened(lab: Path) -> None:
    layout, repo = place(lab)
    before = {
        path: path.read_bytes() for path in layout.root.rglob("*") if path.is_file() and path.name != "owner.json"
    }
    assert reconcile(layout, repo, dry_run=True) == [] == reconcile(layout, repo)
    assert {path: path.read_bytes() for path in before} == before
    check(Before.of(lab), layout.run_id)


def test_what_was_salvaged_stays_as_it_was_found(lab: Path) -> None:
    layout, repo = place(lab)
    half = layout.salvage / "checkout.1" / f".predecoder.yaml.{'0' * 16}.tmp"
    half.parent.mkdir(parents=True)
    half.write_text("half")
    assert reconcile(layout, repo) == [] and half.read_text() == "half"


def test_deleted_views_come_back_byte_for_byte(lab: Path) -> None:
    layout, repo = place(lab)
    was = {name: (layout.root / name).read_bytes() for name in VIEWS}
    for name in VIEWS:
        (layout.root / name).unlink()
    assert [action.kind for action in reconcile(layout, repo, dry_run=True)] == ["views"]
    assert not layout.log.exists()
    reconcile(layout, repo)
    assert {name: (layout.root / name).read_bytes() for name in VIEWS} == was


def test_a_deleted_branch_gets_one_follow_up_and_keeps_its_commit(lab: Path) -> None:
    layout, _ = place(lab)
    row = first_row(layout)
    git(lab, "branch", "-D", row.branch)
    git(lab, "gc", "-q", "--prune=now")
    rows = recovered(lab, Before.of(lab), layout.run_id)
    assert [one.status for one in rows] == ["ok", "branch_manually_deleted"]
    assert rows[1].refers_to_attempt == row.round_attempt_id and rows[1].reconcile_id
    assert git(lab, "cat-file", "-t", row.commit_sha) == "commit"


def test_a_lost_pin_comes_back(lab: Path) -> None:
    layout, _ = place(lab)
    git(lab, "update-ref", "-d", layout.pin(first_row(layout).round_attempt_id))
    recovered(lab, Before.of(lab), layout.run_id)


def test_a_foreign_branch_pauses_and_nothing_is_touched(lab: Path) -> None:
    layout, repo = place(lab)
    git(lab, "branch", f"exp/{layout.run_id}/07-mine")
    layout.log.unlink()
    was = refs(lab)
    with pytest.raises(RunPaused) as pause:
        reconcile(layout, repo)
    assert pause.value.exit_code == 3 and "07-mine" in str(pause.value)
    assert refs(lab) == was and not layout.log.exists()
    git(lab, "branch", "-m", f"exp/{layout.run_id}/07-mine", "mine")
    recovered(lab, Before.of(lab), layout.run_id)


def test_a_branch_that_a_person_set_aside_is_put_back(lab: Path) -> None:
    layout, _ = place(lab)
    branch = first_row(layout).branch
    git(lab, "branch", "-m", branch, quarantined(branch))
    recovered(lab, Before.of(lab), layout.run_id)
    assert branch in refs(lab)


def test_a_person_may_commit_and_check_out_what_they_like(lab: Path) -> None:
    layout, _ = place(lab)
    (lab / "notes.md").write_text("mine")
    git(lab, "add", "notes.md")
    git(lab, "commit", "-q", "-m", "mine")
    git(lab, "checkout", "-q", first_row(layout).branch)
    before = Before.of(lab)
    recovered(lab, before, layout.run_id)
    assert git(lab, "symbolic-ref", "--short", "HEAD") == first_row(layout).branch


def test_a_verified_commit_that_is_gone_pauses(lab: Path) -> None:
    layout, repo = place(lab)
    row = first_row(layout)
    forged = row.model_copy(
        update={
            "verify_verdict": "VERIFIED",
            "delta_vs_baseline_holdout": 0.1,
            "paired_eval_bundle_id": "x",
            "commit_sha": rounds.sha("gone"),
        }
    )
    layout.history.write_text(forged.model_dump_json() + "\n")
    with pytest.raises(RunPaused, match="no longer has commit"):
        reconcile(layout, repo)


def test_a_damaged_line_in_the_middle_pauses(lab: Path) -> None:
    layout, repo = place(lab)
    whole = layout.history.read_text()
    layout.history.write_text("{not json\n" + whole)
    with pytest.raises(RunPaused, match="damaged"):
        reconcile(layout, repo)


def test_a_torn_tail_is_salvaged(lab: Path) -> None:
    layout, repo = place(lab)
    with layout.attempts.open("a") as stream:
        stream.write('{"kind":"begun","round_attempt_id":"torn')
    assert [action.kind for action in reconcile(layout, repo, dry_run=True)] == ["heal"]
    assert len(recovered(lab, Before.of(lab), layout.run_id)) == 1
    (kept,) = layout.salvage.glob("attempts.jsonl.*")
    assert kept.read_text().endswith("torn")


def test_a_second_owner_is_refused_by_name(lab: Path) -> None:
    layout, repo = place(lab)
    with run_lock.hold(layout.root), pytest.raises(InputError, match="held by process"):
        reconcile(layout, repo)


def test_an_unknown_run_is_one_sentence(lab: Path) -> None:
    _, repo = place(lab)
    with pytest.raises(InputError, match="no run"):
        reconcile(RunLayout(lab, "20200101-000000"), repo)


def grow(lab: Path, layout: RunLayout, count: int) -> None:
    """Branches that were planned and committed, and then their process died."""
    head = git(lab, "rev-parse", "HEAD")
    tree = git(lab, "rev-parse", "HEAD^{tree}")
    history, lines = RunMemory(layout.root).history, []
    for number in range(2, count + 2):
        more = {"branch": layout.branch(number, "try"), "base_sha": head}
        history.append_attempt(rounds.begun(number))
        history.append_attempt(rounds.planned(number, **more))
        sha = git(lab, "commit-tree", tree, "-p", head, "-m", f"round {number}\n\nAutoqec-Attempt: attempt-{number}")
        lines.append(f"create refs/heads/{more['branch']} {sha}\n")
    subprocess.run(["git", "update-ref", "--stdin"], cwd=lab, input="".join(lines), text=True, check=True)


def test_git_is_started_equally_often_however_many_orphans(lab: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout, repo = place(lab)
    started: list[str] = []
    execute = host_git._execute

    def counted(cwd: Path, arguments: Any, **more: Any) -> Any:
        started.append(" ".join(arguments))
        return execute(cwd, arguments, **more)

    monkeypatch.setattr(host_git, "_execute", counted)
    counts = []
    for orphans in (0, 3, 30):
        if orphans:
            grow(lab, layout, orphans)
            first = RunMemory(layout.root).history.attempts()
            assert len(first) >= 2 * orphans
        started.clear()
        reconcile(layout, repo)
        counts.append(len(started))
        check(Before.of(lab), layout.run_id)
        if orphans == 3:
            layout.attempts.write_text("".join(layout.attempts.read_text().splitlines(keepends=True)[:4]))
            layout.history.write_text(layout.history.read_text().splitlines(keepends=True)[0])
            for name in [name for name in refs(lab) if name.startswith("quarantine/")]:
                git(lab, "branch", "-D", name)
            for number in range(2, 5):
                git(lab, "update-ref", "-d", layout.pin(f"attempt-{number}"))
    assert counts[1] == counts[2] <= 20, counts
    assert counts[0] < counts[1]
