"""Files through which other processes follow and stop a run, also from machines that share the run directory."""

from __future__ import annotations

from datetime import UTC, datetime

from autoqec.contracts.job import DetachedRun
from autoqec.errors import ContractError, StorageError
from autoqec.store import atomic
from autoqec.store.layout import RunLayout
from autoqec.store.round_files import read_contract

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


def read_detached(layout: RunLayout) -> DetachedRun | None:
    """Return the chain of jobs of a detached run that has not ended; None for any other run. Raises as `last_chain`."""
    state = last_chain(layout)
    return None if state is None or state.ended is not None else state


def last_chain(layout: RunLayout) -> DetachedRun | None:
    """Return the chain of jobs of a run that is or was detached.

    Raises:
        ContractError: Its state is damaged.
        StorageError: Its state cannot be read.
    """
    hint = f"autoqec run --resume {layout.run_id} (it replaces the file if SLURM has no job of the run)"
    try:
        return read_contract(layout.detached, DetachedRun)
    except ContractError as error:
        error.hint = hint
        raise
    except OSError as error:
        message = f"could not be read: {error.strerror or error}"
        raise StorageError(message, location=str(layout.detached), hint=hint) from error


def chain_job_name(layout: RunLayout) -> str:
    """Return how the names of the jobs of a detached run begin; the position in the chain follows."""
    return f"autoqec-run-{layout.run_id}-"


def write_detached(layout: RunLayout, state: DetachedRun) -> None:
    """Write the state of a detached run."""
    atomic.write_json(layout.detached, state.dump())


def end_detached(layout: RunLayout, state: DetachedRun, reason: str) -> None:
    """Record that no further job continues the run."""
    write_detached(layout, state.model_copy(update={"ended": reason}))
