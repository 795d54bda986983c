"""Closes a run by publishing its secret, so that others can sample the verification shots; no further rounds follow."""

from __future__ import annotations

from autoqec.errors import UsageError
from autoqec.orchestrator.hold import hold_run
from autoqec.orchestrator.recovery.apply import recover
from autoqec.orchestrator.secret import is_closed, read_published_secret, read_secret
from autoqec.store import atomic, run_log
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from autoqec.system.git import Repo


def publish_secret(layout: RunLayout, repo: Repo) -> str:
    """Publish the secret of a run; a closed run is not changed.

    If the process is killed meanwhile, the run counts as closed once the published secret exists; closing it again
    completes the work.

    Returns:
        The secret as hex.

    Raises:
        UsageError: The run does not exist, another process holds it, or a job of a cluster still measures a round.
        ManualInterventionRequired: Recovery needs a decision of the user, or the secret is lost or wrong.
    """
    info = History(layout).info()
    if is_closed(layout) and not layout.secret.exists():
        return read_published_secret(layout, info).hex()
    with hold_run(layout, "close"):
        recover(layout, repo, run_log.logged(None))
        _require_no_cluster_job(layout)
        secret = read_published_secret(layout, info) if is_closed(layout) else read_secret(layout, info)
        atomic.write_text(layout.secret_hex, secret.hex() + "\n")
        with atomic.storage_errors(layout.secret):
            layout.secret.unlink(missing_ok=True)
        atomic.fsync_dir(layout.root)
    return secret.hex()


def _require_no_cluster_job(layout: RunLayout) -> None:
    """Raise UsageError if a job of a cluster still measures a round, whose result could no longer be verified."""
    history = History(layout)
    recorded = history.state().rounds
    for attempt in history.attempt_state().attempts.values():
        if attempt.id not in recorded:
            message = f"a job of a cluster still measures round {attempt.round}"
            hint = f"`autoqec run --resume {layout.run_id}` waits for it; press Ctrl-C twice to cancel it"
            raise UsageError(message, location=f"run {layout.run_id}", hint=hint)
