"""Holding a run: its lock, its log file, and the certainty that no copy of it shares its secret."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from autoqec.orchestrator.secret import require_only_copy
from autoqec.store import run_log
from autoqec.store.layout import RunLayout
from autoqec.system import run_lock


@contextmanager
def hold_run(layout: RunLayout) -> Iterator[run_lock.RunOwner]:
    """Own the run while the block runs, and write what the package logs to the run's log file.

    Raises:
        UsageError: Another process holds the run.
        ManualInterventionRequired: The run is a copy whose original still exists.
    """
    require_only_copy(layout)  # before the lock is taken: its owner.json names the place of the last owner
    with run_lock.lock_run(layout.root) as owner, run_log.attach(layout):
        yield owner
