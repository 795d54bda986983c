"""Counts of detection events that an interrupted command saves for the next one."""

from __future__ import annotations

import numpy as np

from autoqec.extensions.recorded import progress
from autoqec.extensions.recorded.progress import Saved
from autoqec.extensions.recorded.statistics import EventCounts, n_paired


class SavedCounts:
    """Saves counts after every segment of the shots in which they were counted."""

    def __init__(self, saved: Saved, n_detectors: int, **more: np.ndarray) -> None:
        """Save nothing yet.

        Args:
            saved: Place of the counts.
            n_detectors: Number of detectors.
            more: Arrays that are counted together with them; `load` restores their content.
        """
        self._saved, self._more, self._saved_shots = saved, more, 0
        self._bytes_per_shot = -(-n_detectors // 8)
        k = n_paired(n_detectors)
        self._shapes: dict[str, tuple[int, ...]] = {"shots": (), "single": (n_detectors,), "pairs": (k, k)}
        self._shapes |= {name: array.shape for name, array in more.items()}

    def load(self) -> EventCounts | None:
        """Return the counts of the first shots, if an interrupted command has saved them."""
        arrays = self._saved.load(**self._shapes)
        if not arrays:
            return None
        for name, array in self._more.items():
            array[...] = arrays[name]
        self._saved_shots = int(arrays["shots"])
        return EventCounts(self._saved_shots, arrays["single"], arrays["pairs"])

    def save_part(self, counts: EventCounts) -> None:
        """Save the counts if another segment was counted."""
        if (counts.shots - self._saved_shots) * self._bytes_per_shot >= progress.SEGMENT:
            self._save(counts)

    def save_all(self, counts: EventCounts) -> None:
        """Save the counts of all shots, unless it is as quick to count them again."""
        if counts.shots * self._bytes_per_shot >= max(progress.SMALLEST_SAVED, 8 * counts.pairs.nbytes):
            self._save(counts)

    def _save(self, counts: EventCounts) -> None:
        self._saved.save(shots=np.array(counts.shots), single=counts.single, pairs=counts.pairs, **self._more)
        self._saved_shots = counts.shots
