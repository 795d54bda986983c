"""Decoding with several threads: one decoder object per thread, over parts of the shots, in the order of the input.

The C code of gate and weighted matching and the operations of torch release Python's lock; belief propagation holds it.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Protocol

import numpy as np
import torch

from autoqec.decoders.decoding import CHUNK
from autoqec.errors import UsageError
from autoqec.system.machine import cpu_count

PART = 8 * CHUNK  # shots of a part: whole chunks, so that networks see the same batches with any number of threads
PARTS_AHEAD = 2  # parts per thread that are read before their turn; bounds memory


class ShotDecoder(Protocol):
    """What a thread calls; `CheckpointDecoder` is one."""

    def decode(self, detection_events: np.ndarray) -> np.ndarray:
        """Decode bit-packed detection events, uint8 [n, ceil(n_detectors / 8)], to bool [n, n_observables]."""
        ...


def check_threads(threads: int, location: str) -> None:
    """Raise UsageError unless every thread can have a core of its own."""
    if not 1 <= threads <= cpu_count():
        raise UsageError(
            f"{threads} threads on {cpu_count()} cores", location=location, hint=f"use 1 to {cpu_count()} threads"
        )


def decoders_needed(threads: int, n_shots: int | None) -> int:
    """Return how many of `threads` have a part of the shots to decode; all if the number of shots is not known."""
    return threads if n_shots is None else max(1, min(threads, -(-n_shots // PART)))


def decode_parts(decoders: Sequence[ShotDecoder], parts: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
    """Decode parts of the shots with one thread per decoder; torch itself uses one thread in each.

    Args:
        decoders: Equal decoders, one per thread; none is used by two threads at once.
        parts: Bit-packed detection events, uint8 [n, ceil(n_detectors / 8)] each.

    Yields:
        Predictions of each part, bool [n, n_observables], in the order of the parts. An error is raised in that order
        too, and ends the decoding.
    """
    torch.set_num_threads(1)
    if len(decoders) == 1:
        for part in parts:
            yield decoders[0].decode(part)
        return
    idle: queue.SimpleQueue[ShotDecoder] = queue.SimpleQueue()
    for decoder in decoders:
        idle.put(decoder)

    def decode(part: np.ndarray) -> np.ndarray:
        decoder = idle.get()
        try:
            return decoder.decode(part)
        finally:
            idle.put(decoder)

    pool = ThreadPoolExecutor(len(decoders), "decode", initializer=partial(torch.set_num_threads, 1))
    pending: deque[Future[np.ndarray]] = deque()
    try:
        for part in parts:
            pending.append(pool.submit(decode, part))
            if len(pending) > PARTS_AHEAD * len(decoders):
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def decode_array(decoders: Sequence[ShotDecoder], detection_events: np.ndarray) -> np.ndarray:
    """Decode bit-packed detection events with one thread per decoder, see `decode_parts`."""
    parts = (detection_events[start : start + PART] for start in range(0, max(len(detection_events), 1), PART))
    return np.concatenate(list(decode_parts(decoders, parts)))
