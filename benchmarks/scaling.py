"""Measure baseline decoding in two concurrent processes; part of `make bench`."""

from __future__ import annotations

import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor

from autoqec.qec import backends, sampling
from benchmarks.problems import surface
from benchmarks.table import Row

REPEATS, SHOTS = 5, 100_000


def decode(seed: int) -> float:
    """Return CPU seconds of decoding SHOTS shots."""
    problem = surface(5)
    backend, shots = backends.make_backend("mwpm", problem), sampling.sample(problem, SHOTS, seed)
    backend.decode(shots.detection_events[:1_000])
    start = time.process_time()
    backend.decode(shots.detection_events)
    return time.process_time() - start


def rows() -> list[Row]:
    """Compare CPU seconds, which show the mutual slowdown independently of other load on the machine."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        alone = statistics.median(pool.submit(decode, seed).result() for seed in range(REPEATS))
        both = statistics.median(value for seed in range(REPEATS) for value in pool.map(decode, (seed, seed + REPEATS)))
    return [
        Row(
            "baseline decoder in 2 processes, d=5 p=.005",
            f"{2 * alone / both:.2f} x the shots per CPU second of one",
            "one process; aim: >= 1.8 x with one core per process",
            f"{SHOTS:,} shots per process, median of {REPEATS}",
        )
    ]
