"""Compares a checkpoint with the artifact that was verified, before somebody decodes with it."""

from __future__ import annotations

from pathlib import Path

from autoqec.contracts.dsl import parse_dsl
from autoqec.errors import UsageError
from autoqec.store.history import History
from autoqec.store.layout import RunLayout


def require_verified(
    layout: RunLayout, number: int, checkpoint: Path, modules_dir: Path | None, *, override: str
) -> None:
    """Check that a round is VERIFIED and that its checkpoint, config and code are those that were verified.

    Args:
        layout: The run.
        number: The round.
        checkpoint: The checkpoint that will be used.
        modules_dir: The round's editable modules if its branch changed code; otherwise None.
        override: What the user can do to use the checkpoint without this check; part of the hint.

    Raises:
        UsageError: The round is not VERIFIED, or the files differ from the verified artifact.
    """
    from autoqec.verification.shot_stream import artifact_sha256

    history, location = History(layout), f"run {layout.run_id}, round {number}"
    verified = [
        attempt
        for attempt in history.state().rounds.values()
        if attempt.row.round == number and attempt.row.verify_verdict == "VERIFIED"
    ]
    if not verified:
        hint = f"autoqec verify {layout.round(number).dir}, or {override}"
        raise UsageError("is not VERIFIED", location=location, hint=hint, code="not_verified")
    attempt = history.attempt_state().attempts.get(verified[-1].attempt_id)
    if attempt is None or attempt.charged is None:
        message = "attempts.jsonl does not hold the hash of the verified artifact"
        raise UsageError(message, location=location, hint=f"restore {layout.attempts}, or {override}")
    dsl = parse_dsl(verified[-1].row.dsl_config or {}, location=location)
    if artifact_sha256(checkpoint, dsl, modules_dir) != attempt.charged.artifact_sha256:
        message = "is not the checkpoint that was verified: its hash differs"
        hint = f"restore the file, or {override}"
        raise UsageError(message, location=str(checkpoint), hint=hint, code="artifact_mismatch")
