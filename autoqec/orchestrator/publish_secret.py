"""The end of a run: its secret is published, so that anyone may draw the judge's shots again, and no round follows."""

from __future__ import annotations

from contextlib import suppress

from autoqec.contracts.base import sha256_bytes
from autoqec.errors import ManualInterventionRequired, UsageError
from autoqec.orchestrator.recovery.apply import recover
from autoqec.store import atomic, run_log
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from autoqec.system import run_lock
from autoqec.system.git import Repo


def publish_secret(layout: RunLayout, repo: Repo) -> str:
    """Publish the run's secret; returns it as hex. A run that is closed already stays as it is.

    Killed on the way, the run counts as closed once its secret can be read; closing it again ends the work. Raises
    UsageError where the run is held or not there, ManualInterventionRequired where recovery or a wrong secret needs a
    person.
    """
    info = History(layout).info()
    if not layout.secret.exists():
        return read_published_secret(layout).hex()
    with run_lock.lock_run(layout.root), run_log.attach(layout):
        recover(layout, repo, run_log.logged(None))
        _require_no_cluster_job(layout)
        secret = layout.secret.read_bytes()
        if sha256_bytes(secret) != info.secret_sha256:
            message = "the run's secret is not the one it began with"
            raise ManualInterventionRequired(message, location=str(layout.secret), hint=f"restore {layout.secret}")
        atomic.write_text(layout.secret_hex, secret.hex() + "\n")
        with atomic.storage_errors(layout.secret):
            layout.secret.unlink()
        atomic.fsync_dir(layout.root)
    return secret.hex()


def _require_no_cluster_job(layout: RunLayout) -> None:
    """UsageError where recovery left a round to a cluster's job: what it ends in could no longer be judged."""
    history = History(layout)
    closed = history.state().rounds
    for attempt in history.attempt_state().attempts.values():
        if attempt.id not in closed:
            message = f"round {attempt.round} is still a cluster's job"
            hint = f"autoqec run --resume {layout.run_id} waits for it; Ctrl-C twice there calls it off"
            raise UsageError(message, location=f"run {layout.run_id}", hint=hint)


def is_closed(layout: RunLayout) -> bool:
    """Whether the secret is public, or gone: no shot drawn from it could surprise anybody."""
    return layout.secret_hex.exists() or not layout.secret.is_file()


def read_published_secret(layout: RunLayout) -> bytes:
    """The secret of a closed run. UsageError where it is not there, or not the one the run is committed to."""
    secret = b""
    with suppress(OSError, ValueError):
        secret = bytes.fromhex(layout.secret_hex.read_text(encoding="utf-8"))
    if sha256_bytes(secret) != History(layout).info().secret_sha256:
        message = "holds no secret that fits the run's commitment"
        raise UsageError(message, location=str(layout.secret_hex), hint=f"restore {layout.secret_hex}")
    return secret
