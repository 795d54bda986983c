"""Builds rows of history.jsonl as pure functions of files on disk, so that recovery and loop write equal rows."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Any

from autoqec.contracts.base import sha256_json
from autoqec.contracts.history import HistoryRow, Planned
from autoqec.contracts.provenance import Pointer
from autoqec.contracts.round import RoundMetrics, canonical_fork, seconds_between
from autoqec.contracts.verdict import VerifyReport
from autoqec.errors import ContractError
from autoqec.store.layout import path_in_run
from autoqec.store.run_state import Attempt

_FOLLOW_UP_NAMESPACE = uuid.uuid5(uuid.NAMESPACE_URL, "autoqec:follow-up")
_ABORTED = "the round was aborted: the process died before it was recorded"


def build_row(
    attempt: Attempt,
    metrics: RoundMetrics,
    *,
    pointer: Pointer | None = None,
    report: VerifyReport | None = None,
    config: dict[str, Any] | None = None,
    sandbox: str | None = None,
    unverified_reason: str | None = None,
    conflicting_files: tuple[str, ...] | None = None,
    branch: str | None = None,
    commit_sha: str | None = None,
    finished_at: datetime | None = None,
) -> HistoryRow:
    """Return the row of a finished round.

    Args:
        attempt: The lines of the attempt in attempts.jsonl.
        metrics: What the Runner wrote; for a round that ended earlier (merge conflict, rejected edit, invalid reply),
            a status and its reason.
        pointer: The pointer committed on the branch.
        report: The verification report of a candidate.
        config: The content of config.yaml in the round directory; by default the planned config.
        sandbox: The sandbox backend of the measurement; a report takes precedence.
        unverified_reason: Why a candidate was not verified.
        conflicting_files: Files that a composition could not merge.
        branch: The branch, if there is no pointer.
        commit_sha: The code commit, if there is no pointer.
        finished_at: The end of a round that was not measured; by default the time of the last recorded step.
    """
    planned, analyst = attempt.planned, attempt.nominated.analyst if attempt.nominated else None
    nomination: dict[str, Any] = {
        "verdict": analyst.verdict if analyst else "ignore",
        "summary_1line": analyst.summary_1line if analyst else f"{metrics.status}: {metrics.status_reason}"[:400],
        "analysis": analyst.analysis if analyst else "",
        "next_hypothesis_seed": analyst.next_hypothesis_seed if analyst else "",
    }
    provenance = {
        "branch": pointer.branch if pointer else branch,
        "commit_sha": pointer.commit_sha if pointer else commit_sha,
        "conflicting_files": conflicting_files,
        "sandbox": report.sandbox if report else sandbox,
    }
    return HistoryRow(
        **metrics.dump() | _paths(attempt.round, metrics),
        **_identity(attempt),
        **nomination,
        **provenance,
        **_config(config if config is not None or planned is None else planned.dsl_config),
        **(
            verification_fields(report)
            if report
            else {"verify_reasons": (unverified_reason,) if unverified_reason else ()}
        ),
        **_timing(attempt, metrics, report, finished_at),
    )


def aborted_row(attempt: Attempt, *, branch: str | None = None, commit_sha: str | None = None, why: str) -> HistoryRow:
    """Return the row of an attempt that recovery closed: without metrics and verdict."""
    return HistoryRow(
        status="orphaned_branch",
        status_reason=why,
        verdict="ignore",
        branch=branch,
        commit_sha=commit_sha,
        summary_1line=f"orphaned_branch: {why}"[:400],
        **_identity(attempt),
        **_config(attempt.planned.dsl_config if attempt.planned else None),
        **_timing(attempt),
    )


def unrecorded_row(pointer: Pointer, *, branch: str) -> HistoryRow:
    """Return the row of a branch whose line in attempts.jsonl is lost; its pointer names the attempt."""
    return HistoryRow(
        status="orphaned_branch",
        status_reason="the pointer on the branch names an attempt that attempts.jsonl does not contain",
        verdict="ignore",
        round=pointer.round_idx,
        round_attempt_id=pointer.round_attempt_id,
        hypothesis=_ABORTED,
        branch=branch,
        commit_sha=pointer.commit_sha,
        fork_from=pointer.fork_from,
        fork_from_canonical=pointer.fork_from_canonical,
        fork_from_ordered=pointer.fork_from_ordered,
    )


def deleted_row(row: HistoryRow, attempt_id: str, *, why: str = "is gone; its commit stays pinned") -> HistoryRow:
    """Return the follow-up row of a round whose branch was deleted."""
    return HistoryRow(
        status="branch_manually_deleted",
        status_reason=f"branch {row.branch} {why}",
        verdict="ignore",
        round=row.round,
        hypothesis=row.hypothesis,
        reconcile_id=str(uuid.uuid5(_FOLLOW_UP_NAMESPACE, f"{attempt_id}/deleted")),
        refers_to_attempt=attempt_id,
        branch=row.branch,
        commit_sha=row.commit_sha,
        fork_from=row.fork_from,
        fork_from_canonical=row.fork_from_canonical,
        fork_from_ordered=row.fork_from_ordered,
        compose_mode=row.compose_mode,
        summary_1line=f"branch {row.branch} was deleted",
    )


def restored_row(full_row: HistoryRow, attempt_id: str) -> HistoryRow:
    """Return the follow-up row of a quarantined round that the user restored; it counts as nominated."""
    follow_up = {
        "round_attempt_id": None,
        "reconcile_id": str(uuid.uuid5(_FOLLOW_UP_NAMESPACE, f"{attempt_id}/adopted")),
        "refers_to_attempt": attempt_id,
        "verdict": "candidate",
    }
    return HistoryRow.model_validate({**full_row.dump(), **follow_up})


def verified_row(row: HistoryRow, attempt_id: str, report: VerifyReport) -> HistoryRow:
    """Return the follow-up row of a round that was verified after it was recorded."""
    follow_up = {
        "round_attempt_id": None,
        "reconcile_id": str(uuid.uuid5(_FOLLOW_UP_NAMESPACE, f"{attempt_id}/judged")),
        "refers_to_attempt": attempt_id,
    }
    when = {"finished_at": report.finished_at, "verify_wallclock_s": report.judge_wallclock_s}
    return HistoryRow.model_validate(
        {**row.dump(), **follow_up, **verification_fields(report), **when, "sandbox": report.sandbox}
    )


def _paths(number: int, metrics: RoundMetrics) -> dict[str, Any]:
    """Return the paths in metrics.json, which are absolute, relative to the run: the repository may be moved."""
    return {name: path_in_run(number, getattr(metrics, name)) for name in ("checkpoint_path", "training_log_path")}


def _timing(
    attempt: Attempt,
    metrics: RoundMetrics | None = None,
    report: VerifyReport | None = None,
    finished_at: datetime | None = None,
) -> dict[str, Any]:
    """Return start, end and phases from times on disk only, so that a later recovery finds the same values."""
    planned, nominated, test = attempt.planned, attempt.nominated, attempt.registered_test
    measured = metrics.measurement_finished_at if metrics else None
    began = metrics.measurement_started_at if metrics else None
    verified = report.finished_at if report else None
    written = [line.at for line in (planned, nominated, test) if line is not None]
    steps = [attempt.at, *written, measured, verified]
    return {
        "started_at": attempt.at,
        "finished_at": finished_at or max((time for time in steps if time is not None), default=None),
        "proposal_wallclock_s": seconds_between(attempt.at, planned.at if planned else None),
        "setup_wallclock_s": seconds_between(planned.at if planned else None, began),
        "verify_wallclock_s": round(report.judge_wallclock_s, 3) if report else None,
    }


def _identity(attempt: Attempt) -> dict[str, Any]:
    planned: Planned | None = attempt.planned
    fork_from = planned.fork_from if planned else "baseline"
    return {
        "round": attempt.round,
        "round_attempt_id": attempt.id,
        "hypothesis": planned.ideator.hypothesis if planned else _ABORTED,
        "ideator_source": planned.ideator.source if planned else "",
        "fork_from": fork_from,
        "fork_from_canonical": canonical_fork(fork_from),
        "fork_from_ordered": fork_from if isinstance(fork_from, tuple) else None,
        "compose_mode": planned.compose_mode if planned else None,
    }


def _config(config: dict[str, Any] | None) -> dict[str, Any]:
    if config is None:
        return {}
    from autoqec.contracts.dsl import parse_dsl  # a start that records nothing does not need it

    try:
        digest = parse_dsl(config).sha256()
    except ContractError:
        digest = sha256_json(config)
    return {"dsl_config": config, "dsl_config_sha256": digest}


def verdict_differences(row: HistoryRow, report: VerifyReport) -> list[str]:
    """Compare a row with the report that it was written from; return one line per difference."""
    expected = {**verification_fields(report), "sandbox": report.sandbox}
    found = {name: (getattr(row, name), value) for name, value in expected.items()}
    return [
        f"{name} is {recorded!r} in history.jsonl and {reported!r} in the report"
        for name, (recorded, reported) in found.items()
        if recorded != reported
    ]


def verification_fields(report: VerifyReport) -> dict[str, Any]:
    """Return the fields of a row that come from its report."""
    fields: dict[str, Any] = {
        "verify_verdict": report.verdict,
        "verify_reasons": report.reasons,
        "paired_eval_bundle_id": report.bundle_id,
        "beats_panel": {member.name: member.beats for member in report.panel} or None,
    }
    if report.members:
        fields["holdout_members"] = report.members
    if report.composition is not None:
        fields["composition_verdict"] = report.composition.verdict
    if report.cost is not None:
        fields["judge_flops_per_syndrome"] = report.cost.expected_flops_per_syndrome
        fields["judge_n_params"] = report.cost.n_params
        fields["single_shot_failure"] = report.cost.latency_failure
        fields["cost_counted_by"] = report.cost.counted_by
    if report.effect is not None:
        effect = report.effect
        fields |= {
            "delta_vs_baseline_holdout": effect.delta,
            "delta_holdout_low": effect.delta_low,
            "delta_holdout_high": effect.delta_high,
            "relative_holdout": effect.relative,
            "relative_holdout_low": effect.relative_low,
            "relative_holdout_high": effect.relative_high,
            "holdout_shots": effect.counts.shots,
        }
    if report.effect_simultaneous is not None:
        fields["delta_simultaneous_low"] = report.effect_simultaneous.delta_low
        fields["delta_simultaneous_high"] = report.effect_simultaneous.delta_high
    return fields
