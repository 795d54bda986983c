"""Files through which other processes follow and stop a run, also from machines that share the run directory."""

from __future__ import annotations

from datetime import UTC, datetime

from autoqec.store import atomic
from autoqec.store.layout import RunLayout

STOPPED = "stop requested; --resume continues"  # why the loop ended


def request_stop(layout: RunLayout) -> None:
    """Ask the process that holds the run to end it after the rounds in progress."""
    atomic.write_json(layout.stop_request, {"at": datetime.now(UTC).isoformat(timespec="seconds")})


def stop_requested(layout: RunLayout) -> bool:
    """Return whether the run was asked to stop since its last start."""
    return layout.stop_request.exists()


def withdraw_stop(layout: RunLayout) -> None:
    """Delete the request, when the user starts the run again."""
    with atomic.storage_errors(layout.stop_request):
        layout.stop_request.unlink(missing_ok=True)
