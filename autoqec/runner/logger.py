"""Training records: train.log, train/progress.csv, snapshots, and progress events."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from autoqec.contracts.dsl import SnapshotMode
from autoqec.errors import RoundError
from autoqec.store import atomic, train_log
from autoqec.store.layout import RoundLayout

ProgressCallback = Callable[[dict[str, Any]], None]


class TrainLogger:
    """Record losses and diagnostics over all phases of one training.

    Args:
        layout: Where the files are written.
        snapshot_mode: `none`; `last`: one file, overwritten; `all`: one file per log interval; `gap`: of those only
            iteration 0 and every iteration i with (i + 1) divisible by `snapshot_gap`.
        snapshot_gap: See `snapshot_mode`; in iterations.
        on_progress: Called with {phase, step, steps, loss, eta_s} at every log interval.
    """

    def __init__(
        self,
        layout: RoundLayout,
        *,
        snapshot_mode: SnapshotMode = "none",
        snapshot_gap: int = 1,
        on_progress: ProgressCallback | None = None,
    ) -> None:
        self.layout = layout
        self.snapshot_mode, self.snapshot_gap = snapshot_mode, snapshot_gap
        self._on_progress = on_progress
        self.phase = "training"
        self.losses: list[float] = []
        self._rows: list[dict[str, Any]] = []
        self._lines_written = 0

    def begin(self, phase: str) -> None:
        """Start a phase: its name precedes every following row and snapshot."""
        self.phase = phase

    def record_loss(self, loss: float) -> None:
        """Record the loss of one optimizer step.

        Raises:
            RoundError: The loss is not finite; the round ends as killed_by_safety.
        """
        self.losses.append(loss)
        if not math.isfinite(loss):
            self.flush_losses()
            message = f"the loss is not finite at step {len(self.losses) - 1}"
            raise RoundError("killed_by_safety", message, cause="not finite")

    def flush_losses(self) -> None:
        """Append the losses not yet in train.log; steps count through all phases."""
        train_log.append(self.layout.train_log, self._lines_written, self.losses[self._lines_written :])
        self._lines_written = len(self.losses)

    def record_row(self, row: dict[str, Any]) -> None:
        """Append a row to progress.csv; a column that appears later is empty in earlier rows."""
        self._rows.append({"Phase": self.phase, **row})
        columns = list(dict.fromkeys(name for known in self._rows for name in known))
        text = io.StringIO()
        table = csv.DictWriter(text, columns, restval="", lineterminator="\n")
        table.writeheader()
        table.writerows(self._rows)
        atomic.make_dir(self.layout.train_dir)
        atomic.write_text(self.layout.progress, text.getvalue())
        self.flush_losses()

    def progress(self, *, step: int, steps: int, loss: float | None, eta_s: float | None) -> None:
        """Report progress to the callback, if there is one."""
        if self._on_progress is not None:
            self._on_progress({"phase": self.phase, "step": step, "steps": steps, "loss": loss, "eta_s": eta_s})

    def save_snapshot(self, itr: int, snapshot: dict[str, Any]) -> None:
        """Save `snapshot` if the mode selects this iteration: train/<phase>_last.pt or train/<phase>_itr_<itr>.pt."""
        if self.snapshot_mode == "none":
            return
        if self.snapshot_mode == "gap" and itr != 0 and (itr + 1) % self.snapshot_gap:
            return
        name = "last" if self.snapshot_mode == "last" else f"itr_{itr}"
        data = io.BytesIO()
        torch.save(snapshot, data)
        atomic.make_dir(self.layout.train_dir)
        atomic.write_bytes(self.layout.train_dir / f"{self.phase}_{name}.pt", data.getvalue())


class NullLogger(TrainLogger):
    """A logger that writes no files; a loss that is not finite still raises."""

    def __init__(self) -> None:
        super().__init__(RoundLayout(Path(), 0))

    def flush_losses(self) -> None:
        """Write nothing."""

    def record_row(self, row: dict[str, Any]) -> None:
        """Write nothing."""
