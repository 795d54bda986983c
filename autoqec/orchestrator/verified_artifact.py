"""Compares a checkpoint with the artifact that was verified, before it is used for decoding."""

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
        checkpoint: The checkpoint to be used.
        modules_dir: The round's editable modules if its branch changed code; otherwise None.
        override: How the user can skip this check; part of the hint.

    Raises:
        UsageError: The round is not VERIFIED, or the files differ from the verified artifact.
    """
    from autoqec.verification.shot_stream import artifact_sha256

    history, location = History(layout), f"run {layout.run_id}, round {number}"
    verified = [
        round_state
        for round_state in history.state().rounds.values()
        if round_state.row.round == number and round_state.row.verify_verdict == "VERIFIED"
    ]
    if not verified:
        hint = f"autoqec verify {layout.round(number).dir}, or {override}"
        raise UsageError("is not VERIFIED", location=location, hint=hint, code="not_verified")
    attempt = history.attempt_state().attempts.get(verified[-1].attempt_id)
    if attempt is None or attempt.registered_test is None:
        message = "attempts.jsonl does not contain the hash of the verified artifact"
        raise UsageError(message, location=location, hint=f"restore {layout.attempts}, or {override}")
    dsl = parse_dsl(verified[-1].row.dsl_config or {}, location=location)
    if artifact_sha256(checkpoint, dsl, modules_dir) != attempt.registered_test.artifact_sha256:
        message = "is not the checkpoint that was verified: its hash differs"
        hint = f"restore the file, or {override}"
        raise UsageError(message, location=str(checkpoint), hint=hint, code="artifact_mismatch")
