"""Describes this machine and how long the rounds of a run took on it."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autoqec.contracts.history import HistoryRow
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from autoqec.store.run_log import LOGGER
from autoqec.system import machine


def machine_state(run: RunLayout | Path | str | None = None) -> dict[str, Any]:
    """Return a JSON-serialisable description of this machine, and of a run's rounds if one is given.

    Args:
        run: Layout or directory of a run.

    Returns:
        `machine` and `gpu`; with a run also `rounds` ([{round, status, train_wallclock_s, eval_wallclock_s}]),
        `killed_by_safety`, `params_vs_time` ([n_params, seconds] of each measured round) and `predicted_round_s` (their
        median in seconds, None before the first).
    """
    state: dict[str, Any] = {"machine": machine.snapshot(), "gpu": _gpu_snapshot()}
    if run is None:
        return state
    return state | round_statistics(History(_layout(run)).rows())


def round_statistics(rows: Sequence[HistoryRow]) -> dict[str, Any]:
    """Return the part of `machine_state` that describes rounds."""
    rows = [row for row in rows if row.refers_to_attempt is None]
    measured = [row for row in rows if row.n_params is not None and row.train_wallclock_s is not None]
    latest = next((row.device for row in reversed(measured) if row.device), None)
    # Times on other devices than the latest predict nothing. Rows of earlier versions do not name theirs.
    timed = [(row.n_params, _seconds(row)) for row in measured if row.device in (None, latest)]
    return {
        "rounds": [
            {
                "round": row.round,
                "status": row.status,
                "train_wallclock_s": row.train_wallclock_s,
                "eval_wallclock_s": row.eval_wallclock_s,
            }
            for row in rows
        ],
        "devices": dict(Counter(row.device for row in measured if row.device)),
        "killed_by_safety": sum(row.status == "killed_by_safety" for row in rows),
        "params_vs_time": [list(pair) for pair in timed],
        "predicted_round_s": statistics.median(seconds for _, seconds in timed) if timed else None,
    }


def _seconds(row: HistoryRow) -> float:
    return (row.train_wallclock_s or 0.0) + (row.eval_wallclock_s or 0.0)


def _layout(run: RunLayout | Path | str) -> RunLayout:
    if isinstance(run, RunLayout):
        return run
    directory = Path(run).resolve()
    return RunLayout(directory.parent.parent, directory.name)


def _gpu_snapshot() -> dict[str, Any]:
    """Return the name and memory in bytes of the first GPU; empty if there is none, or its driver fails."""
    try:
        import torch

        if not torch.cuda.is_available():
            return {}
        free, total = torch.cuda.mem_get_info()
        return {
            "name": torch.cuda.get_device_name(),
            "count": torch.cuda.device_count(),
            "free_bytes": free,
            "total_bytes": total,
        }
    except Exception:  # drivers fail in many ways, and the other values are still useful
        LOGGER.debug("the state of the GPU is unknown", exc_info=True)
        return {}
