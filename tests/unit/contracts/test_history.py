"""History rows and attempt lines: identity, and fields that require each other."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from autoqec.contracts.history import ATTEMPT_LINE, HistoryRow
from tests.support import rounds

FAILED: dict[str, Any] = {
    "status": "train_error",
    "status_reason": "loss is not finite",
    "round": 1,
    "hypothesis": "h",
    "verdict": "ignore",
    "round_attempt_id": "a",
}


def row(**changes: Any) -> HistoryRow:
    return HistoryRow.model_validate({**FAILED, **changes})


def test_exactly_one_identity() -> None:
    row()
    row(round_attempt_id=None, reconcile_id="r", refers_to_attempt="a", status="branch_manually_deleted")
    for ids in ({"reconcile_id": "r"}, {"round_attempt_id": None}):
        with pytest.raises(ValidationError, match="exactly one of"):
            row(**ids)


def test_parents_are_written_in_canonical_form() -> None:
    parents = {"fork_from": ["b", "a"], "fork_from_ordered": ["b", "a"], "compose_mode": "pure"}
    row(**parents, fork_from_canonical="a|b")
    with pytest.raises(ValidationError, match="fork_from_canonical"):
        row(**parents, fork_from_canonical="b|a")


def test_verified_names_branch_and_commit() -> None:
    with pytest.raises(ValidationError, match="VERIFIED"):
        row(verify_verdict="VERIFIED")
    with pytest.raises(ValidationError, match="VERIFIED"):
        row(verify_verdict="VERIFIED", branch="exp/a/01-b")
    row(verify_verdict="VERIFIED", branch="exp/a/01-b", commit_sha="0" * 40)


def test_conflict_leaves_no_branch() -> None:
    with pytest.raises(ValidationError, match="compose conflict"):
        row(status="compose_conflict", branch="exp/a/01-b")
    assert row(status="compose_conflict", conflicting_files=["x"]).branch is None


def test_round_trip_keeps_every_key() -> None:
    value = row(summary_1line="Δ über 量子").dump()
    assert HistoryRow.read(value).dump() == value
    assert set(HistoryRow.model_fields) == set(value)


@pytest.mark.parametrize("line", [{"kind": "begun"}, {"kind": "guessed", "round": 1}, {}, [], "prose"])
def test_attempt_lines_are_refused_by_kind(line: object) -> None:
    with pytest.raises(ValidationError):
        ATTEMPT_LINE.validate_python(line)


def test_attempt_lines_survive_a_round_trip() -> None:
    begun = rounds.begun(3)
    assert ATTEMPT_LINE.validate_python(begun.dump()) == begun


def test_parts_without_figures_are_none() -> None:
    row = rounds.row(1, status="train_error", status_reason="x", delta_ler=None, verify_verdict=None, verdict="ignore")
    assert row.validation is None and row.verification is None
    partial = rounds.row(1, val_fixed=None)
    assert partial.validation is not None and partial.validation.counts is None
