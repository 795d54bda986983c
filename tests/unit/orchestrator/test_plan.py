"""Recovery as a pure function: every class of orphan, and nothing to do where all is well."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoqec.orchestrator.recovery.plan import BranchTip, RecoveryAction, RoundFiles, RunInspection, plan_recovery
from autoqec.store.layout import RunLayout, quarantine_branch_of
from autoqec.store.run_state import AttemptState, apply_lines
from tests.support import rounds
from tests.support.rounds import branch, sha

LAYOUT = RunLayout(Path("/lab"), rounds.RUN_ID)


def state(*lines: Any, **more: Any) -> RunInspection:
    base = RunInspection(LAYOUT, rounds.info(), apply_lines(AttemptState(), lines).attempts, (), {}, views_stale=False)
    return replace(base, **more)


def kinds(actions: list[RecoveryAction]) -> list[str]:
    return [action.kind for action in actions]


def only_row(actions: list[RecoveryAction]) -> Any:
    rows = [action.row for action in actions if action.row]
    assert len(rows) == 1
    return rows[0]


def pointer_tip(number: int) -> BranchTip:
    return BranchTip(sha(f"pointer {number}"), (sha(f"code {number}"),))


def recorded(number: int) -> dict[str, Any]:
    """State of a run in which round `number` is recorded and well."""
    return {
        "rows": (rounds.row(number),),
        "branches": {branch(number): pointer_tip(number)},
        "pins": {f"attempt-{number}": sha(f"pointer {number}")},
    }


LINES = (rounds.begun(1), rounds.planned(1))


def test_nothing_to_do_where_all_is_well() -> None:
    assert plan_recovery(state(*LINES, **recorded(1))) == []


def test_begun_alone_gets_one_row() -> None:
    row = only_row(plan_recovery(state(rounds.begun(1))))
    assert (row.status, row.round_attempt_id, row.branch) == ("orphaned_branch", "attempt-1", None)


@pytest.mark.parametrize("branches", [{}, {branch(1): BranchTip(sha("baseline"))}], ids=["no branch", "empty branch"])
def test_planned_without_a_commit_is_reaped(branches: dict[str, BranchTip]) -> None:
    actions = plan_recovery(state(*LINES, branches=branches))
    row = only_row(actions)
    assert (row.status, row.branch, row.commit_sha) == ("orphaned_branch", None, None)
    assert row.hypothesis == "idea 1" and row.dsl_config == rounds.CONFIG
    dropped = [action for action in actions if action.kind == "drop_ref"]
    assert len(dropped) == len(branches)


def test_a_code_commit_is_set_aside_with_its_id() -> None:
    tip = BranchTip(sha("code 1"), (sha("baseline"),), "attempt-1")
    actions = plan_recovery(state(*LINES, branches={branch(1): tip}))
    row = only_row(actions)
    assert (row.round_attempt_id, row.branch, row.commit_sha) == (
        "attempt-1",
        quarantine_branch_of(branch(1)),
        sha("code 1"),
    )
    assert kinds(actions) == ["move_ref", "pin", "append_row", "views"]


def test_set_aside_but_not_recorded_needs_the_row_alone() -> None:
    shelf = quarantine_branch_of(branch(1))
    actions = plan_recovery(state(*LINES, branches={shelf: pointer_tip(1)}, pointers={shelf: rounds.pointer(1)}))
    row = only_row(actions)
    assert (row.branch, row.commit_sha) == (shelf, sha("code 1"))
    assert "move_ref" not in kinds(actions)


def test_a_rename_cut_off_between_its_two_names_is_completed() -> None:
    shelf, tip = quarantine_branch_of(branch(1)), BranchTip(sha("code 1"), (sha("baseline"),), "attempt-1")
    actions = plan_recovery(state(*LINES, branches={branch(1): tip, shelf: tip}))
    assert [(action.kind, action.branch) for action in actions if action.kind == "drop_ref"] == [
        ("drop_ref", branch(1))
    ]
    assert only_row(actions).branch == shelf
    found = recorded(1)
    found["branches"] = found["branches"] | {shelf: found["branches"][branch(1)]}
    actions = plan_recovery(state(*LINES, **found))
    assert [(action.kind, action.branch) for action in actions] == [("drop_ref", shelf)]


def test_two_branches_of_one_round_pause() -> None:
    tips = {branch(1): BranchTip(sha("code 1")), quarantine_branch_of(branch(1)): BranchTip(sha("else"))}
    assert kinds(plan_recovery(state(*LINES, branches=tips))) == ["pause"]


def test_a_pointer_commit_without_a_verdict_is_set_aside() -> None:
    more = {"branches": {branch(1): pointer_tip(1)}, "pointers": {branch(1): rounds.pointer(1)}}
    row = only_row(plan_recovery(state(*LINES, rounds.nominated(1), rounds.charged(1), **more)))
    assert (row.status, row.commit_sha, row.verify_verdict) == ("orphaned_branch", sha("code 1"), None)


def whole(verdict: str = "candidate") -> dict[str, Any]:
    files = RoundFiles(rounds.metrics(1), rounds.report(1) if verdict == "candidate" else None, rounds.CONFIG)
    return {
        "branches": {branch(1): pointer_tip(1)},
        "pointers": {branch(1): rounds.pointer(1)},
        "rounds": {1: files},
    }


def test_a_judged_round_is_finished() -> None:
    actions = plan_recovery(state(*LINES, rounds.nominated(1), rounds.charged(1), **whole()))
    row = only_row(actions)
    assert (row.status, row.verify_verdict, row.branch) == ("ok", "VERIFIED", branch(1))
    assert kinds(actions) == ["pin", "append_row", "views"]


def test_an_ignored_round_is_finished_without_a_judge() -> None:
    row = only_row(plan_recovery(state(*LINES, rounds.nominated(1, "ignore"), **whole("ignore"))))
    assert (row.status, row.verdict, row.verify_verdict) == ("ok", "ignore", None)


@pytest.mark.parametrize(
    "wrong",
    [{"round_attempt_id": "another"}, {"commit_sha": sha("else")}, {"artifact_sha256": "1" * 64}, {"run_id": "x"}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_a_report_of_something_else_finishes_nothing(wrong: dict[str, Any]) -> None:
    found = whole() | {"rounds": {1: RoundFiles(rounds.metrics(1), rounds.report(1, **wrong))}}
    row = only_row(plan_recovery(state(*LINES, rounds.nominated(1), rounds.charged(1), **found)))
    assert (row.status, row.verify_verdict) == ("orphaned_branch", None)


def test_a_tip_above_the_pointer_commit_finishes_nothing() -> None:
    found = whole() | {"branches": {branch(1): BranchTip(sha("user"), (sha("pointer 1"),))}}
    row = only_row(plan_recovery(state(*LINES, rounds.nominated(1), rounds.charged(1), **found)))
    assert (row.status, row.commit_sha) == ("orphaned_branch", sha("user"))


@pytest.mark.parametrize(
    "pointer",
    [
        rounds.pointer(1, round_attempt_id="another"),
        rounds.pointer(1, run_id="20200101-000000"),
        rounds.pointer(1, branch=branch(2)),
        rounds.pointer(1, round_idx=2),
        "not JSON",
    ],
    ids=["id", "run", "branch", "round", "torn"],
)
def test_a_pointer_that_does_not_fit_its_place_pauses(pointer: Any) -> None:
    actions = plan_recovery(state(*LINES, branches={branch(1): pointer_tip(1)}, pointers={branch(1): pointer}))
    assert kinds(actions) == ["pause"] and actions[0].hint


def test_a_foreign_branch_pauses_and_nothing_else_is_done() -> None:
    found = recorded(1)
    found["branches"] = found["branches"] | {branch(7, "mine"): BranchTip(sha("mine"))}
    actions = plan_recovery(state(*LINES, rounds.begun(2), leftovers=(Path("/x.tmp"),), **found))
    assert kinds(actions) == ["pause"] and branch(7, "mine") in actions[0].why


def test_a_branch_whose_line_is_lost_is_known_by_its_pointer() -> None:
    actions = plan_recovery(state(branches={branch(1): pointer_tip(1)}, pointers={branch(1): rounds.pointer(1)}))
    row = only_row(actions)
    assert (row.round_attempt_id, row.branch) == ("attempt-1", quarantine_branch_of(branch(1)))
    again = plan_recovery(
        state(rows=(row,), branches={quarantine_branch_of(branch(1)): pointer_tip(1)}, pins={"attempt-1": sha("x")})
    )
    assert again == []


def test_a_deleted_branch_gets_one_follow_up() -> None:
    gone = recorded(1) | {"branches": {}}
    actions = plan_recovery(state(*LINES, **gone))
    row = only_row(actions)
    assert row.status == "branch_manually_deleted"
    assert row.reconcile_id and row.round_attempt_id is None and row.refers_to_attempt == "attempt-1"
    assert plan_recovery(state(*LINES, **(gone | {"rows": (*gone["rows"], row)}))) == []
    assert only_row(plan_recovery(state(*LINES, **gone))) == row, "the same follow-up however often it is asked for"


def test_a_half_renamed_branch_goes_where_history_says() -> None:
    found = recorded(1) | {"branches": {quarantine_branch_of(branch(1)): pointer_tip(1)}}
    actions = plan_recovery(state(*LINES, **found))
    assert [(action.branch, action.to) for action in actions if action.kind == "move_ref"] == [
        (quarantine_branch_of(branch(1)), branch(1))
    ]
    assert not [action for action in actions if action.row]


def test_a_verified_commit_that_git_lost_pauses() -> None:
    found = recorded(1) | {"branches": {}, "missing": frozenset({sha("code 1")})}
    assert kinds(plan_recovery(state(*LINES, **found))) == ["pause"]


def test_a_missing_pin_is_made() -> None:
    actions = plan_recovery(state(*LINES, **(recorded(1) | {"pins": {}})))
    assert [(action.kind, action.branch, action.sha) for action in actions] == [
        ("pin", LAYOUT.pin("attempt-1"), sha("pointer 1"))
    ]


def test_leftovers_go_first_and_views_last() -> None:
    more = {"leftovers": (Path("/x.tmp"),), "worktrees": (Path("/lab/.worktrees/a"),)}
    tip = BranchTip(sha("code 1"), (sha("baseline"),), "attempt-1")
    actions = plan_recovery(state(*LINES, branches={branch(1): tip}, **more))
    assert kinds(actions) == ["sweep", "remove_worktree", "move_ref", "pin", "append_row", "views"]


def with_job(**more: Any) -> RunInspection:
    """A dead process's second round, which a cluster's job measures."""
    tip = BranchTip(sha("code 1"), (sha("baseline"),), "attempt-1")
    found: dict[str, Any] = {
        "branches": {branch(1): tip},
        "jobs": frozenset({"attempt-1"}),
        "worktrees": (LAYOUT.worktree(branch(1)),),
        "leftovers": (LAYOUT.round(1).dir / "child.tmp", LAYOUT.round(1).job, LAYOUT.root / ".log.md.tmp"),
    }
    return state(*LINES, **found | more)


def test_a_round_with_its_job_is_left_alone() -> None:
    actions = plan_recovery(with_job())
    assert [(action.kind, action.path) for action in actions] == [("sweep", LAYOUT.root / ".log.md.tmp")]


@pytest.mark.parametrize(
    "more",
    [
        {"jobs": frozenset()},
        {"branches": {branch(1): BranchTip(sha("baseline"))}},
        {"branches": {branch(1): BranchTip(sha("a person's"), (sha("code 1"),))}},
        {"branches": {branch(1): pointer_tip(1)}, "pointers": {branch(1): rounds.pointer(1)}},
    ],
    ids=["no order or worktree", "no code commit", "a commit on top", "measured and gone on"],
)
def test_a_round_that_no_job_can_end_is_closed_and_its_order_called_off(more: dict[str, Any]) -> None:
    actions = plan_recovery(with_job(**more))
    assert only_row(actions).status == "orphaned_branch"
    swept = [action.path for action in actions if action.kind == "sweep"]
    assert LAYOUT.round(1).job in swept and LAYOUT.round(1).dir / "child.tmp" in swept
