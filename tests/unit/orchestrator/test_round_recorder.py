"""Rows are built by pure functions: the loop and recovery write the same row."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.history import AttemptLine
from autoqec.orchestrator.round_recorder import aborted_row, build_row, deleted_row, verified_row
from autoqec.store.run_state import Attempt, fold_attempts
from tests.support import rounds


def attempts_of(lines: list[AttemptLine]) -> Mapping[str, Attempt]:
    return fold_attempts(lines).attempts


ATTEMPT = attempts_of([rounds.begun(1), rounds.planned(1), rounds.nominated(1), rounds.charged(1)])["attempt-1"]


def test_row_of_a_verified_round_is_complete() -> None:
    row = build_row(ATTEMPT, rounds.metrics(1), pointer=rounds.pointer(1), report=rounds.report(1))
    metrics = rounds.metrics(1).dump()
    assert {key: row.dump()[key] for key in metrics} == metrics | {"checkpoint_path": "round_1/checkpoint.pt"}
    assert (row.round, row.round_attempt_id, row.hypothesis) == (1, "attempt-1", "idea 1")
    assert (row.branch, row.commit_sha) == (rounds.branch(1), rounds.sha("code 1"))
    assert (row.verdict, row.verify_verdict, row.delta_vs_baseline_holdout) == ("candidate", "VERIFIED", 0.001)
    assert (row.relative_holdout, row.holdout_shots, row.paired_eval_bundle_id) == (0.3, 10_000, "bundle-1")
    assert row.dsl_config == rounds.CONFIG and row.dsl_config_sha256 == parse_dsl(rounds.CONFIG).sha256()


def test_config_of_the_round_directory_takes_precedence_over_the_plan() -> None:
    other = rounds.CONFIG | {"head": "mlp_small"}
    row = build_row(ATTEMPT, rounds.metrics(1), pointer=rounds.pointer(1), config=other)
    assert row.dsl_config == other


def test_invalid_config_is_recorded_unchanged() -> None:
    row = build_row(ATTEMPT, rounds.metrics(1), pointer=rounds.pointer(1), config={"type": "nonsense"})
    assert row.dsl_config == {"type": "nonsense"} and row.dsl_config_sha256


def test_composition_has_both_forms_of_its_parents() -> None:
    parents = (rounds.branch(2), rounds.branch(1))
    attempt = attempts_of([rounds.begun(3), rounds.planned(3, parents)])["attempt-3"]
    row = aborted_row(attempt, why="x")
    assert row.fork_from == row.fork_from_ordered == parents
    assert row.fork_from_canonical == "|".join(sorted(parents)) and row.compose_mode == "pure"


def test_row_of_an_aborted_round_has_no_results() -> None:
    row = aborted_row(ATTEMPT, branch="quarantine/x/01-a", commit_sha=rounds.sha("a"), why="x")
    assert (row.status, row.verdict, row.delta_ler, row.verify_verdict) == ("orphaned_branch", "ignore", None, None)
    assert row.round_attempt_id == "attempt-1"


def test_follow_up_row_is_deterministic_and_refers_to_its_round() -> None:
    row = deleted_row(rounds.row(1), "attempt-1")
    assert row == deleted_row(rounds.row(1), "attempt-1")
    assert row.refers_to_attempt == "attempt-1" and row.round_attempt_id is None
    assert row.reconcile_id != deleted_row(rounds.row(2), "attempt-2").reconcile_id


def test_unverified_row_has_a_reason() -> None:
    row = build_row(ATTEMPT, rounds.metrics(1), pointer=rounds.pointer(1), unverified_reason="not verified: no sandbox")
    assert row.verify_verdict is None and row.verify_reasons == ("not verified: no sandbox",)


START = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def timed_attempt() -> Attempt:
    lines = (rounds.begun(1), rounds.planned(1), rounds.nominated(1), rounds.charged(1))
    times = (0.0, 2.5, 50.0, 51.0)
    return attempts_of([line.model_copy(update={"at": at(s)}) for line, s in zip(lines, times, strict=True)])[
        "attempt-1"
    ]


def test_row_holds_start_end_and_phases_from_disk() -> None:
    metrics = rounds.metrics(1, measurement_started_at=at(4), measurement_finished_at=at(49))
    report = rounds.report(1, finished_at=at(90), judge_wallclock_s=39.0)
    timing = build_row(timed_attempt(), metrics, pointer=rounds.pointer(1), report=report).timing
    assert (timing.started_at, timing.finished_at) == (START, at(90))
    expected = [("proposal", 2.5), ("setup", 1.5), ("training", 2.0), ("evaluation", 1.0), ("verification", 39.0)]
    assert timing.phases == expected
    assert timing.describe().startswith("2026-01-02 03:04:05 UTC, 90.0 s: proposal 2.5 s, setup 1.5 s, training 2.0 s")


def test_later_verification_moves_the_end_of_the_round() -> None:
    first = build_row(timed_attempt(), rounds.metrics(1), pointer=rounds.pointer(1))
    row = verified_row(first, "attempt-1", rounds.report(1, finished_at=at(500), judge_wallclock_s=30.0))
    assert (row.started_at, row.finished_at, row.verify_wallclock_s) == (START, at(500), 30.0)


def test_inconsistent_clocks_give_no_negative_duration() -> None:
    row = build_row(timed_attempt(), rounds.metrics(1, measurement_started_at=at(1)), pointer=rounds.pointer(1))
    assert row.setup_wallclock_s == 0.0
