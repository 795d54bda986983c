"""Advice in findings and diagnoses, given only where a command or option would accept it."""

from __future__ import annotations

import json
from typing import Any, get_args

from autoqec.contracts.profiles import ProfileName, profile_of
from autoqec.store.layout import RunLayout
from autoqec.store.run_state import RoundState


def larger_profile(profile: str) -> str:
    """Return the advice to start a run with the next larger profile; empty for the largest."""
    names = get_args(ProfileName)
    larger = names[names.index(profile) + 1 :][:1]
    if not larger:
        return ""
    found = profile_of(larger[0])
    return (
        f"start a run with --profile {found.name}: {found.train_shots:,} training, {found.val_shots:,} validation and "
        f"up to {found.judge_test_shots:,} verification shots per round"
    )


def can_start_finetuning(config: dict[str, Any] | None, backend: str = "mwpm") -> bool:
    """Return whether a config trains without the inner decoder although it could train through it."""
    config = config or {}
    is_off = (config.get("training") or {}).get("finetune_share") == 0
    return is_off and backend == "mwpm" and config.get("output_mode", "soft_priors") == "soft_priors"


def without_effect(config: dict[str, Any] | None, backend: str, profile: str | None) -> str:
    """Return what to change after a round without an effect; only what is not so already."""
    if can_start_finetuning(config, backend):
        return "train through the inner decoder: training.finetune_share above 0"
    if profile is None:
        return "train longer: a larger profile"
    return larger_profile(profile) or "change the architecture; no profile is larger"


def after_harm(config: dict[str, Any] | None) -> str:
    """Return what to change after a round that broke more shots than it fixed; only what is not so already."""
    config = config or {}
    block, training = config.get(str(config.get("type"))) or {}, config.get("training") or {}
    changes = []
    if config.get("output_mode") == "hard_flip":
        changes.append("use output_mode soft_priors: hard flips often harm")
    if isinstance(block, dict) and block.get("inputs") == "all":
        changes.append("read inputs other_sector: detectors of the observable's sector count evidence twice")
    if training.get("finetune_share", 1.0) and not changes:
        changes.append("use a smaller training.finetune_learning_rate")
    return "; ".join(changes) or "use a smaller network or learning rate"


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
