"""Advice in findings and diagnoses, given only where a command or option would accept it."""

from __future__ import annotations

import json

from autoqec.contracts.profiles import PROFILES
from autoqec.store.layout import RunLayout
from autoqec.store.run_state import RoundState


def larger_profile(profile: str) -> str:
    """Return the advice to start a run with the next larger profile; empty for the largest."""
    names = list(PROFILES)
    larger = names[names.index(profile) + 1 :][:1]
    if not larger:
        return ""
    found = PROFILES[larger[0]]
    return (
        f"start a run with --profile {found.name}: {found.train_shots:,} training, {found.val_shots:,} validation and "
        f"up to {found.judge_test_shots:,} verification shots per round"
    )


def resume_command(layout: RunLayout, finished: int) -> str:
    """Return the advice to continue a run of `finished` rounds; empty for a closed run."""
    return "" if layout.secret_hex.exists() else f"autoqec run --resume {layout.run_id} --rounds {finished + 5}"


def adopt_command(layout: RunLayout, attempts: tuple[RoundState, ...]) -> str:
    """Return the command that restores the first restorable of the aborted rounds; empty if there is none."""
    if layout.secret_hex.exists():
        return ""
    for attempt in attempts:
        if attempt.lost and attempt.branch is not None and _was_measured(layout, attempt.row.round):
            return f"autoqec adopt {layout.run_id} {attempt.row.round}"
    return ""


def _was_measured(layout: RunLayout, number: int) -> bool:
    try:
        metrics = json.loads(layout.round(number).metrics.read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(metrics, dict) and metrics.get("status") == "ok"
