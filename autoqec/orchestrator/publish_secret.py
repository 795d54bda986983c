"""The end of a run: its secret is published, so that anyone may draw the judge's shots again, and no round follows."""

from __future__ import annotations

from contextlib import suppress

from autoqec.contracts.base import sha256_bytes
from autoqec.errors import InputError, RunPaused
from autoqec.orchestrator.recovery.apply import recover
from autoqec.store import atomic, run_log
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from autoqec.system import run_lock
from autoqec.system.git import Repo


def close_run(layout: RunLayout, repo: Repo) -> str:
    """Publish the run's secret; returns it as hex. A run that is closed already stays as it is.

    Killed on the way, the run counts as closed once its secret can be read; closing it again ends the work. Raises
    InputError where the run is held or not there, RunPaused where recovery or a wrong secret needs a person.
    """
    info = History(layout).info()
    if not layout.secret.exists():
        return published_secret(layout).hex()
    with run_lock.hold(layout.root), run_log.attach(layout):
        recover(layout, repo, run_log.logged(None))
        _nobody_at_work(layout)
        secret = layout.secret.read_bytes()
        if sha256_bytes(secret) != info.secret_sha256:
            what = "the run's secret is not the one it began with"
            raise RunPaused(what, where=str(layout.secret), mend=f"restore {layout.secret}")
        atomic.write_text(layout.published, secret.hex() + "\n")
        with atomic.disk(layout.secret):
            layout.secret.unlink()
        atomic.fsync_dir(layout.root)
    return secret.hex()


def _nobody_at_work(layout: RunLayout) -> None:
    """InputError where recovery left a round to a cluster's job: what it ends in could no longer be judged."""
    history = History(layout)
    closed = history.state().rounds
    for attempt in history.attempt_state().attempts.values():
        if attempt.id not in closed:
            what = f"round {attempt.round} is still a cluster's job"
            mend = f"autoqec run --resume {layout.run_id} waits for it; Ctrl-C twice there calls it off"
            raise InputError(what, where=f"run {layout.run_id}", mend=mend)


def is_closed(layout: RunLayout) -> bool:
    """Whether the secret is public, or gone: no shot drawn from it could surprise anybody."""
    return layout.published.exists() or not layout.secret.is_file()


def published_secret(layout: RunLayout) -> bytes:
    """The secret of a closed run. InputError where it is not there, or not the one the run is committed to."""
    secret = b""
    with suppress(OSError, ValueError):
        secret = bytes.fromhex(layout.published.read_text(encoding="utf-8"))
    if sha256_bytes(secret) != History(layout).info().secret_sha256:
        what = "holds no secret that fits the run's commitment"
        raise InputError(what, where=str(layout.published), mend=f"restore {layout.published}")
    return secret
