"""Recovery planning: every kind of unfinished round, contradictions that pause, and nothing to do for a clean run."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoqec.orchestrator import round_recorder
from autoqec.orchestrator.recovery.plan import plan_recovery
from autoqec.orchestrator.recovery.state import BranchTip, OpenRound, RecoveryAction, RunInspection
from autoqec.store.layout import RunLayout, quarantine_branch_of
from autoqec.store.run_state import fold_attempts
from tests.support import rounds
from tests.support.rounds import branch, sha

LAYOUT = RunLayout(Path("/workspace"), rounds.RUN_ID)


def state(*lines: Any, **more: Any) -> RunInspection:
    base = RunInspection(LAYOUT, rounds.info(), fold_attempts(lines).attempts, (), {}, views_stale=False)
    return replace(base, **more)


def kinds(actions: list[RecoveryAction]) -> list[str]:
    return [action.kind for action in actions]


def only_row(actions: list[RecoveryAction]) -> Any:
    rows = [action.row for action in actions if action.row]
    assert len(rows) == 1
    return rows[0]


def pointer_tip(number: int) -> BranchTip:
    return BranchTip(sha(f"pointer {number}"), (sha(f"code {number}"),))


def recorded(number: int, **row: Any) -> dict[str, Any]:
    """Return the state of a run in which round `number` is recorded and all its files agree."""
    attempt, report = f"attempt-{number}", rounds.report(number)
    verdict = {**round_recorder.verification_fields(report), "sandbox": report.sandbox}
    return {
        "rows": (rounds.row(number, **{**verdict, **row}),),
        "branches": {branch(number): pointer_tip(number)},
        "pins": {attempt: sha(f"pointer {number}")},
        "reports": {attempt: report},
        "committed_pointers": {attempt: rounds.pointer(number)},
    }


LINES = (rounds.begun(1), rounds.planned(1))
VERIFIED = (*LINES, rounds.nominated(1), rounds.charged(1))


def test_consistent_run_needs_no_action() -> None:
    assert plan_recovery(state(*VERIFIED, **recorded(1))) == []


def test_started_round_without_files_gets_one_row() -> None:
    row = only_row(plan_recovery(state(rounds.begun(1))))
    assert (row.status, row.round_attempt_id, row.branch) == ("orphaned_branch", "attempt-1", None)


@pytest.mark.parametrize("branches", [{}, {branch(1): BranchTip(sha("baseline"))}], ids=["no branch", "empty branch"])
def test_planned_round_without_a_commit_is_removed(branches: dict[str, BranchTip]) -> None:
    actions = plan_recovery(state(*LINES, branches=branches))
    row = only_row(actions)
    assert (row.status, row.branch, row.commit_sha) == ("orphaned_branch", None, None)
    assert row.hypothesis == "idea 1" and row.dsl_config == rounds.CONFIG
    dropped = [action for action in actions if action.kind == "drop_ref"]
    assert len(dropped) == len(branches)


def test_code_commit_is_quarantined_with_its_attempt_id() -> None:
    tip = BranchTip(sha("code 1"), (sha("baseline"),), "attempt-1")
    actions = plan_recovery(state(*LINES, branches={branch(1): tip}))
    row = only_row(actions)
    assert (row.round_attempt_id, row.branch, row.commit_sha) == (
        "attempt-1",
        quarantine_branch_of(branch(1)),
        sha("code 1"),
    )
    assert kinds(actions) == ["move_ref", "pin", "append_row", "views"]


def test_interrupted_rename_is_completed() -> None:
    quarantined, tip = quarantine_branch_of(branch(1)), BranchTip(sha("code 1"), (sha("baseline"),), "attempt-1")
    actions = plan_recovery(state(*LINES, branches={branch(1): tip, quarantined: tip}))
    assert [(action.kind, action.branch) for action in actions if action.kind == "drop_ref"] == [
        ("drop_ref", branch(1))
    ]
    assert only_row(actions).branch == quarantined
    found = recorded(1)
    found["branches"] = found["branches"] | {quarantined: found["branches"][branch(1)]}
    actions = plan_recovery(state(*VERIFIED, **found))
    assert [(action.kind, action.branch) for action in actions] == [("drop_ref", quarantined)]


def test_two_branches_of_one_round_pause() -> None:
    tips = {branch(1): BranchTip(sha("code 1")), quarantine_branch_of(branch(1)): BranchTip(sha("else"))}
    assert kinds(plan_recovery(state(*LINES, branches=tips))) == ["pause"]


def test_pointer_commit_without_metrics_is_quarantined() -> None:
    more = {"branches": {branch(1): pointer_tip(1)}, "pointers": {branch(1): rounds.pointer(1)}}
    row = only_row(plan_recovery(state(*VERIFIED, **more)))
    assert (row.status, row.commit_sha, row.verify_verdict) == ("orphaned_branch", sha("code 1"), None)


def whole(verdict: str = "candidate") -> dict[str, Any]:
    files = OpenRound(rounds.metrics(1), rounds.report(1) if verdict == "candidate" else None, rounds.CONFIG)
    return {
        "branches": {branch(1): pointer_tip(1)},
        "pointers": {branch(1): rounds.pointer(1)},
        "rounds": {1: files},
    }


def test_verified_round_is_finished() -> None:
    actions = plan_recovery(state(*VERIFIED, **whole()))
    row = only_row(actions)
    assert (row.status, row.verify_verdict, row.branch) == ("ok", "VERIFIED", branch(1))
    assert kinds(actions) == ["pin", "append_row", "views"]


def test_ignored_round_is_finished_without_verification() -> None:
    row = only_row(plan_recovery(state(*LINES, rounds.nominated(1, "ignore"), **whole("ignore"))))
    assert (row.status, row.verdict, row.verify_verdict) == ("ok", "ignore", None)


@pytest.mark.parametrize(
    "wrong",
    [{"round_attempt_id": "another"}, {"commit_sha": sha("else")}, {"artifact_sha256": "1" * 64}, {"run_id": "x"}],
    ids=lambda wrong: next(iter(wrong)),
)
def test_report_of_another_round_gives_no_verdict(wrong: dict[str, Any]) -> None:
    found = whole() | {"rounds": {1: OpenRound(rounds.metrics(1), rounds.report(1, **wrong))}}
    row = only_row(plan_recovery(state(*VERIFIED, **found)))
    assert (row.status, row.verdict, row.verify_verdict) == ("ok", "candidate", None)
    assert "autoqec verify runs/20260101-000000/round_1" in row.verify_reasons[0]


@pytest.mark.parametrize(
    "lines", [LINES, (*LINES, rounds.nominated(1)), VERIFIED], ids=["planned", "nominated", "charged"]
)
def test_measured_round_is_recorded_not_aborted(lines: Any) -> None:
    files = OpenRound(rounds.metrics(1), config=rounds.CONFIG, nomination=rounds.nominated(1).analyst)
    row = only_row(plan_recovery(state(*lines, **whole() | {"rounds": {1: files}})))
    assert (row.status, row.verdict, row.verify_verdict, row.branch) == ("ok", "candidate", None, branch(1))
    assert row.analysis == "On 4000 val shots it did 1." and "autoqec verify" in row.verify_reasons[0]


def measured(**more: Any) -> RunInspection:
    """Return a round whose process died between the Runner's last file and the commit of the pointer."""
    files = OpenRound(rounds.metrics(1), pointer=rounds.pointer(1), nomination=rounds.nominated(1).analyst)
    tip = BranchTip(sha("code 1"), (sha("baseline"),), "attempt-1")
    return state(*LINES, **{"branches": {branch(1): tip}, "rounds": {1: files}, **more})


def test_pointer_of_measured_round_is_committed_first() -> None:
    actions = plan_recovery(measured())
    assert [(action.kind, action.branch, action.row) for action in actions] == [("commit_pointer", branch(1), None)]


@pytest.mark.parametrize("wrong", [{"round_attempt_id": "another"}, {"commit_sha": sha("else")}], ids=["id", "commit"])
def test_pointer_file_of_another_attempt_is_not_committed(wrong: dict[str, Any]) -> None:
    files = OpenRound(rounds.metrics(1), pointer=rounds.pointer(1, **wrong))
    assert only_row(plan_recovery(measured(rounds={1: files}))).status == "orphaned_branch"


def test_measured_round_whose_branch_is_checked_out_pauses() -> None:
    assert kinds(plan_recovery(measured(checked_out=frozenset({branch(1)})))) == ["pause"]


def test_checked_out_branch_keeps_its_name_when_quarantined() -> None:
    tip = BranchTip(sha("code 1"), (sha("baseline"),), "attempt-1")
    found = {"branches": {branch(1): tip}, "checked_out": frozenset({branch(1)})}
    actions = plan_recovery(state(*LINES, **found))
    assert kinds(actions) == ["copy_ref", "pin", "append_row", "views"]
    tips = {branch(1): tip, quarantine_branch_of(branch(1)): tip}
    closed = {"branches": tips, "rows": (only_row(actions),), "pins": {"attempt-1": tip.sha}}
    assert plan_recovery(state(*LINES, **found | closed)) == []
    later = plan_recovery(state(*LINES, **closed))
    assert [(action.kind, action.branch) for action in later] == [("drop_ref", branch(1))], "once it is free again"


@pytest.mark.parametrize("renamed", [branch(1), quarantine_branch_of(branch(1))])
def test_checked_out_branch_without_commits_is_deleted_once_it_is_free(renamed: str) -> None:
    tip = BranchTip(sha("baseline"))
    actions = plan_recovery(state(*LINES, branches={branch(1): tip}, checked_out=frozenset({branch(1)})))
    assert kinds(actions) == ["append_row", "views"]
    recorded = {"rows": (only_row(actions),), "branches": {renamed: tip}}
    assert plan_recovery(state(*LINES, **recorded, checked_out=frozenset({renamed}))) == []
    later = plan_recovery(state(*LINES, **recorded))
    assert [(action.kind, action.branch) for action in later] == [("drop_ref", renamed)]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"delta_vs_baseline_holdout": 0.9},
            "delta_vs_baseline_holdout is 0.9 in history.jsonl",
        ),
        ({"paired_eval_bundle_id": "other"}, "paired_eval_bundle_id is 'other'"),
        ({"verify_verdict": "FAILED"}, "verify_verdict is 'FAILED'"),
        ({"commit_sha": sha("else")}, "`commit_sha`"),
        ({"branch": branch(1, "other")}, "attempts.jsonl planned"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_verified_row_that_contradicts_its_files_pauses(row: dict[str, Any], message: str) -> None:
    actions = plan_recovery(state(*VERIFIED, **recorded(1, **row)))
    assert kinds(actions) == ["pause"] and message in actions[0].why
    assert f"{LAYOUT.history}:1" in actions[0].why and actions[0].hint


@pytest.mark.parametrize("lines", [(), LINES], ids=["no lines", "no registered test"])
def test_verified_row_without_its_attempt_lines_pauses(lines: Any) -> None:
    actions = plan_recovery(state(*lines, **recorded(1)))
    assert set(kinds(actions)) == {"pause"} and "attempts.jsonl" in actions[0].why


@pytest.mark.parametrize(
    ("tests", "problem"),
    [
        ([(1, 1), (1, 1), (2, 3)], None),  # interrupted after its report: the same place is registered twice
        ([(1, 1), (3, 3)], "round 3 has test 3 of the run, but /workspace/runs/.*has only 1 earlier tests"),
        ([(2, 2)], "round 2 has test 2 of the run, but .*has only 0 earlier tests"),
        ([(1, 1), (2, 1)], "round 2 has test 1 of the run, which .*also registers for attempt attempt-1"),
    ],
    ids=["complete", "gap", "first lost", "renumbered"],
)
def test_lost_or_renumbered_tests_pause(tests: list[tuple[int, int]], problem: str | None) -> None:
    """Also if the hash chain of the rest was computed again."""
    lines = tuple(rounds.charged(number).model_copy(update={"attempt_index": index}) for number, index in tests)
    actions = plan_recovery(state(*VERIFIED, **recorded(1), registered_tests=lines))
    assert kinds(actions) == ([] if problem is None else ["pause"])
    assert problem is None or re.search(problem, actions[0].why), actions[0].why


def test_cut_end_of_the_attempts_pauses() -> None:
    (action,) = plan_recovery(state(*VERIFIED, **recorded(1), row_without_its_attempts=1))
    assert action.kind == "pause" and "attempts.jsonl" in str(action.hint)
    assert action.why.startswith(f"{LAYOUT.history}:1: round 1: the last line that {LAYOUT.attempts} had")


def test_lost_registered_test_without_a_row_pauses() -> None:
    (action,) = plan_recovery(state(*VERIFIED, **recorded(1), registered_test_lost=True))
    assert action.kind == "pause" and f"{LAYOUT.attempts}: the registered test" in action.why
    assert "restore" in str(action.hint)


def test_verified_row_without_its_report_pauses() -> None:
    assert kinds(plan_recovery(state(*VERIFIED, **recorded(1) | {"reports": {"attempt-1": None}}))) == ["pause"]
    rejected = recorded(1, verify_verdict="FAILED") | {"reports": {"attempt-1": None}}
    assert plan_recovery(state(*VERIFIED, **rejected)) == [], "a lost report of a rejected round can be written again"


def test_row_with_a_damaged_attempt_id_pauses() -> None:
    found = recorded(1, round_attempt_id="attempt-l")
    actions = plan_recovery(state(*VERIFIED, **found))
    assert set(kinds(actions)) == {"pause"}
    assert "attempt-1" in actions[0].why and "attempt-l" in actions[0].why and "history.jsonl:1" in actions[0].why


def broken(ref: str) -> dict[str, Any]:
    return {"broken_refs": {ref: Path("/workspace/.git") / ref}}


def test_damaged_branch_is_restored_from_its_pin() -> None:
    found = recorded(1) | {"branches": {}} | broken(f"refs/heads/{branch(1)}")
    actions = plan_recovery(state(*VERIFIED, **found))
    assert [(action.kind, action.sha) for action in actions] == [("sweep", None), ("restore_ref", sha("pointer 1"))]
    without_pin = plan_recovery(state(*VERIFIED, **found | {"pins": {}, "committed_pointers": {}}))
    assert kinds(without_pin) == ["pause"] and "/workspace/.git/refs/heads/exp" in without_pin[0].why


def test_damaged_pin_is_recreated() -> None:
    found = recorded(1) | {"pins": {}, "committed_pointers": {}} | broken(LAYOUT.pin("attempt-1"))
    assert kinds(plan_recovery(state(*VERIFIED, **found))) == ["sweep", "pin"]


def test_branch_with_commits_after_the_pointer_is_not_finished() -> None:
    found = whole() | {"branches": {branch(1): BranchTip(sha("user"), (sha("pointer 1"),))}}
    row = only_row(plan_recovery(state(*VERIFIED, **found)))
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
def test_pointer_of_another_round_pauses(pointer: Any) -> None:
    actions = plan_recovery(state(*LINES, branches={branch(1): pointer_tip(1)}, pointers={branch(1): pointer}))
    assert kinds(actions) == ["pause"] and actions[0].hint


def test_foreign_branch_pauses_without_other_actions() -> None:
    found = recorded(1)
    found["branches"] = found["branches"] | {branch(7, "mine"): BranchTip(sha("mine"))}
    actions = plan_recovery(state(*VERIFIED, rounds.begun(2), leftovers=(Path("/x.tmp"),), **found))
    assert kinds(actions) == ["pause"] and branch(7, "mine") in actions[0].why


def test_branch_without_its_row_is_identified_by_its_pointer() -> None:
    actions = plan_recovery(state(branches={branch(1): pointer_tip(1)}, pointers={branch(1): rounds.pointer(1)}))
    row = only_row(actions)
    assert (row.round_attempt_id, row.branch) == ("attempt-1", quarantine_branch_of(branch(1)))
    again = plan_recovery(
        state(rows=(row,), branches={quarantine_branch_of(branch(1)): pointer_tip(1)}, pins={"attempt-1": sha("x")})
    )
    assert again == []


def test_deleted_branch_gets_one_follow_up() -> None:
    gone = recorded(1) | {"branches": {}}
    actions = plan_recovery(state(*VERIFIED, **gone))
    row = only_row(actions)
    assert row.status == "branch_manually_deleted"
    assert row.reconcile_id and row.round_attempt_id is None and row.refers_to_attempt == "attempt-1"
    assert plan_recovery(state(*VERIFIED, **(gone | {"rows": (*gone["rows"], row)}))) == []
    assert only_row(plan_recovery(state(*VERIFIED, **gone))) == row, "the same follow-up however often it is asked for"


def test_half_renamed_branch_gets_the_name_in_history() -> None:
    found = recorded(1) | {"branches": {quarantine_branch_of(branch(1)): pointer_tip(1)}}
    actions = plan_recovery(state(*VERIFIED, **found))
    assert [(action.branch, action.to) for action in actions if action.kind == "move_ref"] == [
        (quarantine_branch_of(branch(1)), branch(1))
    ]
    assert not [action for action in actions if action.row]


def test_missing_verified_commit_pauses() -> None:
    found = recorded(1) | {"branches": {}, "pins": {}, "missing": frozenset({sha("code 1")})}
    assert kinds(plan_recovery(state(*VERIFIED, **found))) == ["pause"]


@pytest.mark.parametrize("name", [branch(1), quarantine_branch_of(branch(1))])
def test_missing_commit_of_an_unfinished_round_pauses(name: str) -> None:
    tip = BranchTip(sha("code 1"))
    actions = plan_recovery(state(*LINES, branches={name: tip}, missing=frozenset({tip.sha})))
    assert [(action.kind, action.branch) for action in actions] == [("pause", name)]
    assert f"git update-ref -d refs/heads/{name}" in (actions[0].hint or "")


def test_leftovers_are_removed_first_and_views_written_last() -> None:
    more = {"leftovers": (Path("/x.tmp"),), "worktrees": (Path("/workspace/.worktrees/a"),)}
    tip = BranchTip(sha("code 1"), (sha("baseline"),), "attempt-1")
    actions = plan_recovery(state(*LINES, branches={branch(1): tip}, **more))
    assert kinds(actions) == ["sweep", "remove_worktree", "move_ref", "pin", "append_row", "views"]


def with_job(**more: Any) -> RunInspection:
    """Return the second round of a dead process, which a cluster job measures."""
    tip = BranchTip(sha("code 1"), (sha("baseline"),), "attempt-1")
    found: dict[str, Any] = {
        "branches": {branch(1): tip},
        "jobs": frozenset({"attempt-1"}),
        "worktrees": (LAYOUT.worktree(branch(1)),),
        "leftovers": (LAYOUT.round(1).dir / "child.tmp", LAYOUT.round(1).job, LAYOUT.root / ".log.md.tmp"),
    }
    return state(*LINES, **found | more)


def test_round_with_a_live_job_is_not_touched() -> None:
    actions = plan_recovery(with_job())
    assert [(action.kind, action.path) for action in actions] == [("sweep", LAYOUT.root / ".log.md.tmp")]


@pytest.mark.parametrize(
    "more",
    [
        {"jobs": frozenset()},
        {"branches": {branch(1): BranchTip(sha("baseline"))}},
        {"branches": {branch(1): BranchTip(sha("user commit"), (sha("code 1"),))}},
        {"branches": {branch(1): pointer_tip(1)}, "pointers": {branch(1): rounds.pointer(1)}},
    ],
    ids=["no order or worktree", "no code commit", "a commit on top", "measured and gone on"],
)
def test_round_without_a_live_job_is_closed_and_its_order_cancelled(more: dict[str, Any]) -> None:
    actions = plan_recovery(with_job(**more))
    assert only_row(actions).status == "orphaned_branch"
    swept = [action.path for action in actions if action.kind == "sweep"]
    assert LAYOUT.round(1).job in swept and LAYOUT.round(1).dir / "child.tmp" in swept
