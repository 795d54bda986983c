"""Double buffer, copier, replay buffer and throttle between samplers and the optimizer. All counts are shots.

A sampler fills one half of its double buffer while its copier moves the other into the replay buffer, with each shot's
statistics. This module imports numpy only, so that copier processes start fast.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from autoqec.errors import UsageError
from autoqec.extensions.training_loops.shared_memory import Mutex, SharedArray, TokenPipe
from autoqec.runner.samples import GAP, Fields, FieldSelection

END = 255


class SharedRows:
    """One shared array per field, with `n` rows shaped like those of `example`."""

    def __init__(self, n: int, example: Mapping[str, np.ndarray]) -> None:
        self.n = n
        self._arrays = {name: SharedArray((n, *row.shape[1:]), row.dtype) for name, row in example.items()}

    def write(self, rows: slice | np.ndarray, fields: Mapping[str, np.ndarray]) -> None:
        """Store `fields` in these rows."""
        for name, shared in self._arrays.items():
            shared.array[rows] = fields[name]

    def read(self, rows: slice | np.ndarray) -> Fields:
        """Return a copy of these rows."""
        return {name: np.array(shared.array[rows]) for name, shared in self._arrays.items()}

    def view(self) -> Fields:
        """Return the shared arrays themselves."""
        return {name: shared.array for name, shared in self._arrays.items()}


class DoubleBuffer:
    """Two halves of one batch each; the pipes `free` and `filled` carry the numbers of halves in that state."""

    def __init__(self, batch_size: int, samples: Fields, figures: Fields) -> None:
        self._buffers = [(SharedRows(batch_size, samples), SharedRows(batch_size, figures)) for _ in range(2)]
        self.free, self.filled = TokenPipe(0, 1), TokenPipe()

    def fill(self, samples: Fields, figures: Fields) -> None:
        """Wait for a free half and store a batch in it."""
        half = self.free.get()
        assert half is not None
        for rows, values in zip(self._buffers[half], (samples, figures), strict=True):
            rows.write(slice(None), values)
        self.filled.put(half)

    def end(self) -> None:
        """Signal the end; halves filled before are still copied."""
        self.filled.put(END)

    def drain(self, replay: ReplayBuffer, selection: FieldSelection) -> None:
        """Copy every filled half into `replay` until the end is signalled."""
        while (half := self.filled.get()) != END:
            assert half is not None
            samples, figures = self._buffers[half]
            replay.append(selection(samples.view()), figures.view())
            self.free.put(half)


class ReplayBuffer:
    """The last `size` shots of all samplers in shared memory; copiers append, the optimizer draws.

    Args:
        size: Shots kept; the oldest are overwritten.
        selected: Example of the rows that will be appended, for shapes and dtypes.
        figures: Example of their statistics.
    """

    def __init__(self, size: int, selected: Fields, figures: Fields) -> None:
        self.size = size
        self._rows, self._figures = SharedRows(size, selected), SharedRows(size, figures)
        self._count = SharedArray((1,), np.int64)
        self.lock = Mutex()

    @property
    def appended(self) -> int:
        """Number of shots that were ever appended."""
        return int(self._count.array[0])

    def append(self, selected: Fields, figures: Fields) -> None:
        """Store rows and their statistics."""
        n = len(next(iter(selected.values())))
        with self.lock:
            where = (self.appended + np.arange(n)) % self.size
            self._rows.write(where, selected)
            self._figures.write(where, figures)
            self._count.array[0] += n

    def draw(self, n: int, rng: np.random.Generator, *, near_failure: float = 0.0) -> Fields:
        """Draw `n` stored shots with replacement, a share `near_failure` of them weighted by exp(-gap)."""
        with self.lock:
            n_stored = min(self.appended, self.size)
            n_near = round(n * near_failure)
            chosen = rng.integers(0, n_stored, n - n_near)
            if n_near:
                weights = np.exp(-np.abs(self._figures.view()[GAP][:n_stored].astype(np.float64)))
                cumulative_weights = np.cumsum(weights)
                near_rows = np.searchsorted(
                    cumulative_weights, rng.random(n_near) * cumulative_weights[-1], side="right"
                )
                chosen = np.concatenate([chosen, np.minimum(near_rows, n_stored - 1)])
            return self._rows.read(chosen)

    def figures(self, since: int, most: int) -> Fields:
        """Return statistics of the stored shots that followed the first `since`, of the last `most` at most."""
        with self.lock:
            n = min(self.appended - since, self.size, most)
            return self._figures.read((self.appended - n + np.arange(n)) % self.size)


class Throttle:
    """Limits the optimizer to `ratio` shots optimized on per shot drawn, by counts: never exceeded, at any time.

    Args:
        ratio: Replay ratio.
        batch_size: Shots of one batch, of a sampler and of an optimizing process.
        ranks: Processes that optimize; an update uses one batch of each.
    """

    def __init__(self, ratio: float, batch_size: int, ranks: int = 1) -> None:
        if not ratio > 0 or not math.isfinite(ratio):
            raise UsageError(
                f"the replay ratio must be a number above 0, not {ratio:g}", location="training.replay.ratio"
            )
        self.ratio, self.ranks, self.update_size = ratio, ranks, batch_size * ranks

    def allows_update(self, updates: int, drawn: int) -> bool:
        """Return whether one more update is allowed after `updates` updates and `drawn` shots."""
        return (updates + 1) * self.update_size <= self.ratio * drawn

    def most(self, drawn: int) -> int:
        """Return the number of updates that `drawn` shots allow."""
        updates = int(self.ratio * drawn / self.update_size)
        return updates - 1 if updates and not self.allows_update(updates - 1, drawn) else updates

    def achieved_ratio(self, updates: int, drawn: int) -> float:
        """Return the shots optimized on per shot drawn."""
        return updates * self.update_size / drawn if drawn else 0.0

    def sampler_must_wait(self, batch: int, updates: int, samplers: int) -> bool:
        """Return whether batch `batch` is further ahead than the double buffers and the next update need."""
        ahead = 2 * samplers + math.ceil(self.ranks / self.ratio)
        return batch > updates * self.ranks / self.ratio + ahead


def require_gap_figure(names: Sequence[str]) -> None:
    """Check that shots come with their complementary gap.

    Raises:
        UsageError: They do not.
    """
    if GAP not in names:
        raise UsageError(
            "drawing by the complementary gap needs a sampler that computes it",
            location="training.replay.near_failure",
            hint="set `training.replay.near_failure: 0`",
        )


def check_buffer_size(batch_size: int, buffer: int) -> None:
    """Check that a batch fits into the replay buffer.

    Raises:
        UsageError: It does not.
    """
    if batch_size > buffer:
        raise UsageError(
            f"a batch of {batch_size} shots is larger than the replay buffer of {buffer}",
            location="training.replay.shots",
            hint="raise `training.replay.shots`, or lower `training.batch_size`",
        )


def run_copier(worker: Any, double_buffer: DoubleBuffer, replay: ReplayBuffer, selection: FieldSelection) -> None:
    """Copy a sampler's batches into the replay buffer, in its own process."""
    worker.ready()
    double_buffer.drain(replay, selection)
