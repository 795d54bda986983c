"""Two judges' worth of plain decoding at once: part of `make bench`."""

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
    """CPU seconds of decoding SHOTS shots."""
    problem = surface(5)
    backend, shots = backends.make_backend("mwpm", problem), sampling.sample(problem, SHOTS, seed)
    backend.decode(shots.detection_events[:1_000])
    start = time.process_time()
    backend.decode(shots.detection_events)
    return time.process_time() - start


def rows() -> list[Row]:
    """CPU seconds, not wall-clock: what two at once cost each other; a machine's other load would hide in the clock."""
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("spawn")) as pool:
        alone = statistics.median(pool.submit(decode, seed).result() for seed in range(REPEATS))
        both = statistics.median(value for seed in range(REPEATS) for value in pool.map(decode, (seed, seed + REPEATS)))
    return [
        Row(
            "plain backend on 2 processes, d=5 p=.005",
            f"{2 * alone / both:.2f} x the shots a CPU second of one",
            "one process alone; aim: >= 1.8 x, each process having a core",
            f"{SHOTS:,} shots a process, median of {REPEATS}",
        )
    ]
