"""Holds a run: takes its lock, attaches its log file, and checks that no copy of the run shares its secret."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from autoqec.orchestrator.secret import require_only_copy
from autoqec.store import run_log
from autoqec.store.layout import RunLayout
from autoqec.system import run_lock


@contextmanager
def hold_run(layout: RunLayout, command: str) -> Iterator[run_lock.RunOwner]:
    """Hold the lock of the run for the duration of the context, and log to the run's log file.

    Args:
        layout: The run.
        command: Subcommand of `autoqec` that it is held for; `run` if rounds may run.

    Raises:
        UsageError: Another process holds the run.
        ManualInterventionRequired: The run is a copy whose original still exists.
    """
    require_only_copy(layout)  # before the lock is taken, which overwrites the directory in owner.json
    with run_lock.lock_run(layout.root, command) as owner, run_log.attach(layout):
        yield owner
