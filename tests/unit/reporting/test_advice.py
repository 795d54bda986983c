"""Advice is given only where the run allows to follow it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoqec.contracts.history import HistoryRow
from autoqec.contracts.profiles import PROFILES
from autoqec.reporting import advice
from autoqec.store.layout import RunLayout
from autoqec.store.run_state import RoundState
from tests.support import rounds


@pytest.fixture
def layout(tmp_path: Path) -> RunLayout:
    found = RunLayout(tmp_path, rounds.RUN_ID)
    found.round(1).dir.mkdir(parents=True)
    found.round(1).metrics.write_text(json.dumps({"status": "ok"}), encoding="utf-8")
    return found


def aborted(**more: object) -> RoundState:
    fields = {"status": "orphaned_branch", "status_reason": "killed", "delta_ler": None, "checkpoint_path": None}
    row: HistoryRow = rounds.row(1, **fields | {"verify_verdict": None, "delta_vs_baseline_holdout": None} | more)
    return RoundState("attempt-1", row)


def test_larger_profile_of_the_largest_is_no_advice() -> None:
    assert "--profile dev" in advice.larger_profile("smoke") and "--profile prod" in advice.larger_profile("dev")
    assert advice.larger_profile("prod") == ""
    dev = PROFILES["dev"]
    named = [f"{shots:,}" for shots in (dev.train_shots, dev.val_shots, dev.judge_test_shots)]
    assert all(shots in advice.larger_profile("smoke") for shots in named), "not what both profiles have alone"


def test_closed_run_is_neither_resumed_nor_restored(layout: RunLayout) -> None:
    assert advice.resume_command(layout, 2) == f"autoqec run --resume {rounds.RUN_ID} --rounds 7"
    assert advice.adopt_command(layout, (aborted(),)) == f"autoqec adopt {rounds.RUN_ID} 1"
    layout.secret_hex.write_text("00", encoding="utf-8")
    assert advice.resume_command(layout, 2) == advice.adopt_command(layout, (aborted(),)) == ""


@pytest.mark.parametrize("metrics", [None, "{}", '{"status": "train_error"}', "not JSON"])
def test_unmeasured_round_is_not_restored(layout: RunLayout, metrics: str | None) -> None:
    layout.round(1).metrics.unlink()
    if metrics is not None:
        layout.round(1).metrics.write_text(metrics, encoding="utf-8")
    assert advice.adopt_command(layout, (aborted(),)) == ""


def test_round_without_branch_is_not_restored(layout: RunLayout) -> None:
    assert advice.adopt_command(layout, (aborted(branch=None),)) == ""
