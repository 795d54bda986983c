"""Measure gated decoding with two threads; part of `make bench`."""

from __future__ import annotations

import os
import statistics
import time
from pathlib import Path

import numpy as np

from autoqec.decoders.decoding import CheckpointDecoder
from autoqec.decoders.threads import PART, decode_array
from autoqec.models import model_env, model_path
from autoqec.qec import sampling
from benchmarks.table import Row

REPEATS, SHOTS, MODEL = 7, 24 * PART, "surface_d5_z"


class Timed:
    """A decoder that sums the time of its calls without the time that other load kept its thread from a core."""

    def __init__(self, decoder: CheckpointDecoder) -> None:
        self.decoder, self.seconds = decoder, 0.0

    def decode(self, detection_events: np.ndarray) -> np.ndarray:
        start = time.perf_counter() - waited()
        predictions = self.decoder.decode(detection_events)
        self.seconds += time.perf_counter() - waited() - start
        return predictions


def waited() -> float:
    """Return the seconds that this thread was ready to run but had no core."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def measure(decoders: list[CheckpointDecoder], events: np.ndarray) -> tuple[float, float, float]:
    """Return seconds of the busiest thread without waiting for a core, of wall-clock time, and of CPU time."""
    timed = [Timed(decoder) for decoder in decoders]
    wall, cpu = time.perf_counter(), time.process_time()
    decode_array(timed, events)
    return max(each.seconds for each in timed), time.perf_counter() - wall, time.process_time() - cpu


def rows() -> list[Row]:
    """Compare one and two threads, alternating, on the same shots."""
    decoders = [CheckpointDecoder.of(model_env(MODEL), model_path(MODEL)) for _ in range(2)]
    events = sampling.sample(decoders[0].problem, SHOTS, 1).detection_events
    decode_array(decoders, events[: 2 * PART])
    found = np.array([[measure(decoders[:count], events) for count in (1, 2)] for _ in range(REPEATS)])
    ratios = [statistics.median(found[:, 0, kind] / found[:, 1, kind]) for kind in range(3)]
    cpu = 1e6 * float(np.median(found[:, 1, 2])) / SHOTS
    return [
        Row(
            f"gated decoding with 2 threads, packaged model {MODEL}",
            f"{ratios[0]:.2f} x, without the time in which other load took the cores; wall-clock {ratios[1]:.2f} x",
            f"one thread; aim: >= 1.8 x; CPU time per shot {1 / ratios[2]:.2f} x ({cpu:.2f} µs); equal predictions",
            f"{SHOTS:,} shots, median of {REPEATS}; load {os.getloadavg()[0]:.1f}",
        )
    ]


if __name__ == "__main__":
    for row in rows():
        print(row)
