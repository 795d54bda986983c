"""What a training leaves: train.log, train/progress.csv, snapshots, and progress for whoever watches."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable
from typing import Any, Literal

import torch

from autoqec.errors import RoundError
from autoqec.store import atomic
from autoqec.store.layout import RoundLayout

SnapshotMode = Literal["none", "last", "all", "gap"]
ProgressCallback = Callable[[dict[str, Any]], None]


class TrainLogger:
    """Collects losses and diagnostics over all phases of one training.

    snapshot_mode: none; last (one file, overwritten); all (one a log interval); gap (of those, iteration 0 and
    every iteration whose number after it is a multiple of snapshot_gap).
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
        self.phase = phase

    def record_loss(self, loss: float) -> None:
        """One line of train.log. A loss that is not finite ends the round."""
        self.losses.append(loss)
        if not math.isfinite(loss):
            self.flush_losses()
            raise RoundError("killed_by_safety", f"the loss is not finite at step {len(self.losses) - 1}")

    def flush_losses(self) -> None:
        """`<step>\\t<loss>` for every batch so far; steps count through all phases."""
        with self.layout.train_log.open("a", encoding="utf-8") as stream:
            for step in range(self._lines_written, len(self.losses)):
                loss = self.losses[step]
                stream.write(f"{step}\t{f'{loss:.9g}' if math.isfinite(loss) else 'nan'}\n")
        self._lines_written = len(self.losses)

    def record_row(self, row: dict[str, Any]) -> None:
        """One line of progress.csv; a column that comes late is empty in the lines before."""
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
        """Tell whoever watches."""
        if self._on_progress is not None:
            self._on_progress({"phase": self.phase, "step": step, "steps": steps, "loss": loss, "eta_s": eta_s})

    def save_snapshot(self, itr: int, snapshot: dict[str, Any]) -> None:
        """Keep `snapshot` if the mode says so: train/<phase>_last.pt or train/<phase>_itr_<n>.pt."""
        if self.snapshot_mode == "none":
            return
        if self.snapshot_mode == "gap" and itr != 0 and (itr + 1) % self.snapshot_gap:
            return
        name = "last" if self.snapshot_mode == "last" else f"itr_{itr}"
        data = io.BytesIO()
        torch.save(snapshot, data)
        atomic.make_dir(self.layout.train_dir)
        atomic.write_bytes(self.layout.train_dir / f"{self.phase}_{name}.pt", data.getvalue())
