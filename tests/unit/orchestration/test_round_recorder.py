"""Rows as pure functions: the loop and recovery write the same one."""

from __future__ import annotations

from autoqec.contracts.dsl import parse_dsl
from autoqec.orchestration.attempts import group
from autoqec.orchestration.round_recorder import build_row, deleted_row, lost_row
from tests.support import rounds

ATTEMPT = group([rounds.begun(1), rounds.planned(1), rounds.nominated(1), rounds.charged(1)])["attempt-1"]


def test_a_judged_row_says_all_that_is_known() -> None:
    row = build_row(ATTEMPT, rounds.metrics(1), pointer=rounds.pointer(1), report=rounds.report(1))
    assert {key: row.dump()[key] for key in rounds.metrics(1).dump()} == rounds.metrics(1).dump()
    assert (row.round, row.round_attempt_id, row.hypothesis) == (1, "attempt-1", "idea 1")
    assert (row.branch, row.commit_sha) == (rounds.branch(1), rounds.sha("code 1"))
    assert (row.verdict, row.verify_verdict, row.delta_vs_baseline_holdout) == ("candidate", "VERIFIED", 0.001)
    assert (row.relative_holdout, row.holdout_shots, row.paired_eval_bundle_id) == (0.3, 10_000, "bundle-1")
    assert row.dsl_config == rounds.CONFIG and row.dsl_config_sha256 == parse_dsl(rounds.CONFIG).sha256()


def test_the_round_directorys_config_counts_before_the_plan() -> None:
    other = rounds.CONFIG | {"head": "mlp_small"}
    row = build_row(ATTEMPT, rounds.metrics(1), pointer=rounds.pointer(1), config=other)
    assert row.dsl_config == other


def test_a_config_that_is_none_is_recorded_as_it_stands() -> None:
    row = build_row(ATTEMPT, rounds.metrics(1), pointer=rounds.pointer(1), config={"type": "nonsense"})
    assert row.dsl_config == {"type": "nonsense"} and row.dsl_config_sha256


def test_a_composition_is_spelled_in_both_ways() -> None:
    parents = (rounds.branch(2), rounds.branch(1))
    attempt = group([rounds.begun(3), rounds.planned(3, parents)])["attempt-3"]
    row = lost_row(attempt, why="x")
    assert row.fork_from == row.fork_from_ordered == parents
    assert row.fork_from_canonical == "|".join(sorted(parents)) and row.compose_mode == "pure"


def test_a_lost_row_claims_nothing() -> None:
    row = lost_row(ATTEMPT, branch="quarantine/x/01-a", commit_sha=rounds.sha("a"), why="x")
    assert (row.status, row.verdict, row.delta_ler, row.verify_verdict) == ("orphaned_branch", "ignore", None, None)
    assert row.round_attempt_id == "attempt-1"


def test_a_follow_up_refers_and_is_the_same_each_time() -> None:
    row = deleted_row(rounds.row(1), "attempt-1")
    assert row == deleted_row(rounds.row(1), "attempt-1")
    assert row.refers_to_attempt == "attempt-1" and row.round_attempt_id is None
    assert row.reconcile_id != deleted_row(rounds.row(2), "attempt-2").reconcile_id


def test_what_could_not_be_judged_says_why() -> None:
    row = build_row(ATTEMPT, rounds.metrics(1), pointer=rounds.pointer(1), unjudged="not judged: no sandbox")
    assert row.verify_verdict is None and row.verify_reasons == ("not judged: no sandbox",)
