"""Between samplers and optimizer: double buffer, copier, replay buffer, throttle. numpy only; all counts are shots.

A sampler fills one half of its double buffer while its copier empties the other into the replay buffer. Figures of a
shot (what a trajectory of one step is logged by) travel with it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from autoqec.errors import UsageError
from autoqec.runner.shared_memory import Mutex, SharedArray, TokenPipe

Fields = dict[str, np.ndarray]  # one row a shot, under each name
END = 255
GAP = "Gap"  # the figure that says how near to failure plain matching came, in nats


@dataclass(frozen=True)
class FieldSelection:
    """An algorithm's `samples_to_buffer`: which fields are kept, and which of them as bits.

    The copier has its own copy from the moment it starts: what happens to the algorithm afterwards, it never sees.
    """

    names: tuple[str, ...]
    bits: tuple[str, ...] = ()

    def __call__(self, fields: Mapping[str, np.ndarray]) -> Fields:
        return {name: self._pack_field(name, fields[name]) for name in self.names}

    def restore(self, rows: Fields, widths: Mapping[str, int]) -> Fields:
        """What was kept, as the sampler gave it. widths: columns of the fields kept as bits."""
        return {
            name: np.unpackbits(values, axis=1, count=widths[name], bitorder="little") if name in self.bits else values
            for name, values in rows.items()
        }

    def _pack_field(self, name: str, values: np.ndarray) -> np.ndarray:
        return np.packbits(values, axis=1, bitorder="little") if name in self.bits else values


class SharedRows:
    """One shared array a field, `n` rows each, shaped like `example`."""

    def __init__(self, n: int, example: Mapping[str, np.ndarray]) -> None:
        self.n = n
        self._arrays = {name: SharedArray((n, *row.shape[1:]), row.dtype) for name, row in example.items()}

    def write(self, rows: slice | np.ndarray, fields: Mapping[str, np.ndarray]) -> None:
        for name, shared in self._arrays.items():
            shared.array[rows] = fields[name]

    def read(self, rows: slice | np.ndarray) -> Fields:
        """A copy."""
        return {name: np.array(shared.array[rows]) for name, shared in self._arrays.items()}

    def view(self) -> Fields:
        return {name: shared.array for name, shared in self._arrays.items()}


class DoubleBuffer:
    """Two halves of one batch each. `free` and `filled` carry the number of the half they speak of."""

    def __init__(self, batch_size: int, samples: Fields, figures: Fields) -> None:
        self._buffers = [(SharedRows(batch_size, samples), SharedRows(batch_size, figures)) for _ in range(2)]
        self.free, self.filled = TokenPipe(0, 1), TokenPipe()

    def fill(self, samples: Fields, figures: Fields) -> None:
        """Waits for a free half."""
        half = self.free.get()
        assert half is not None
        for rows, values in zip(self._buffers[half], (samples, figures), strict=True):
            rows.write(slice(None), values)
        self.filled.put(half)

    def end(self) -> None:
        """Nothing more will come; what was filled before is still copied."""
        self.filled.put(END)

    def drain(self, replay: ReplayBuffer, selection: FieldSelection) -> None:
        """A copier's work: until the end, every filled half into `replay`."""
        while (half := self.filled.get()) != END:
            assert half is not None
            samples, figures = self._buffers[half]
            replay.append(selection(samples.view()), figures.view())
            self.free.put(half)


class ReplayBuffer:
    """The last `size` shots of every sampler, on shared memory; copiers append, the optimizer draws.

    selected, figures: rows as they will be appended, for their shapes. lock: held by whoever reads or writes rows.
    """

    def __init__(self, size: int, selected: Fields, figures: Fields) -> None:
        self.size = size
        self._rows, self._figures = SharedRows(size, selected), SharedRows(size, figures)
        self._count = SharedArray((1,), np.int64)
        self.lock = Mutex()

    @property
    def appended(self) -> int:
        """Shots that ever arrived."""
        return int(self._count.array[0])

    def append(self, selected: Fields, figures: Fields) -> None:
        n = len(next(iter(selected.values())))
        with self.lock:
            where = (self.appended + np.arange(n)) % self.size
            self._rows.write(where, selected)
            self._figures.write(where, figures)
            self._count.array[0] += n

    def draw(self, n: int, rng: np.random.Generator, *, near_failure: float = 0.0) -> Fields:
        """`n` stored shots, with replacement; a share `near_failure` of them by exp(-gap), the others evenly."""
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
        """Figures of the shots that came after the first `since`; the last `most` at most, and as many as are held."""
        with self.lock:
            n = min(self.appended - since, self.size, most)
            return self._figures.read((self.appended - n + np.arange(n)) % self.size)


class Throttle:
    """Holds the optimizer to `ratio` shots optimized on for each shot drawn. It counts, so it is never above it."""

    def __init__(self, ratio: float, batch_size: int) -> None:
        if not ratio > 0 or not math.isfinite(ratio):
            raise UsageError(f"a replay ratio is a number above 0, not {ratio:g}", location="training.replay.ratio")
        self.ratio, self.batch_size = ratio, batch_size

    def allows_update(self, updates: int, drawn: int) -> bool:
        """Whether one more update keeps within the ratio after `updates` of them and `drawn` shots."""
        return (updates + 1) * self.batch_size <= self.ratio * drawn

    def most(self, drawn: int) -> int:
        """Updates that `drawn` shots allow."""
        updates = int(self.ratio * drawn / self.batch_size)
        return updates - 1 if updates and not self.allows_update(updates - 1, drawn) else updates

    def achieved_ratio(self, updates: int, drawn: int) -> float:
        return updates * self.batch_size / drawn if drawn else 0.0

    def sampler_must_wait(self, batch: int, updates: int, samplers: int) -> bool:
        """Whether batch number `batch` comes too early: further ahead than double buffers and the next update need."""
        ahead = 2 * samplers + math.ceil(1 / self.ratio)
        return batch > updates / self.ratio + ahead


def require_gap_figure(names: Sequence[str]) -> None:
    if GAP not in names:
        raise UsageError(
            "shots near failure can be preferred only where matching tells two logical classes apart",
            location="training.replay.near_failure",
            hint="set `training.replay.near_failure: 0`",
        )


def check_buffer_size(batch_size: int, buffer: int) -> None:
    if batch_size > buffer:
        raise UsageError(
            f"a batch of {batch_size} shots is larger than the replay buffer of {buffer}",
            location="training.replay.shots",
            hint="raise `training.replay.shots`, or lower `training.batch_size`",
        )


def run_copier(worker: Any, double_buffer: DoubleBuffer, replay: ReplayBuffer, selection: FieldSelection) -> None:
    """The body of a copier process."""
    worker.ready()
    double_buffer.drain(replay, selection)
