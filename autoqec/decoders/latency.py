"""Latency of single shots and throughput of batches, of a predecoder beside matching."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from autoqec.contracts.env import CORRELATED
from autoqec.decoders.base import Predecoder
from autoqec.decoders.decoding import CHUNK, CheckpointDecoder
from autoqec.decoders.gating import make_decoder
from autoqec.qec import backends, sampling
from autoqec.qec.problem import Problem
from autoqec.qec.stats import cpu_timed, latency_quantiles

WARM_UP_SHOTS, WARM_UP_S = 20, 1.0  # caches and lazily built tables, until the first of them; not measured
REPEATS, ENOUGH_CPU_S = 5, 2.0  # of the prediction of a time ratio, which ends at the first of them

Decode = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class DecodingTimes:
    """Times of one decoder on one machine.

    Attributes:
        shots: Shots that were decoded one by one.
        p50_us: Median wall time of a shot, in microseconds, with the calls from Python.
        p99_us: 99th percentile.
        p999_us: 99.9th percentile; with fewer than 1,000 shots close to the largest value.
        batch_us_per_shot: CPU time per shot when all shots are one batch, in microseconds.
    """

    shots: int
    p50_us: float
    p99_us: float
    p999_us: float
    batch_us_per_shot: float


def measure_latency(decode: Decode, detection_events: np.ndarray) -> DecodingTimes:
    """Decode shots one by one, then together.

    Args:
        decode: Maps bit-packed detection events to predictions.
        detection_events: uint8 [n, ceil(n_detectors / 8)], n >= 1.
    """
    _, elapsed_us = decode_one_by_one(decode, detection_events)
    _, batch_s = cpu_timed(decode, detection_events)
    return DecodingTimes(len(detection_events), *latency_quantiles(elapsed_us), 1e6 * batch_s / len(detection_events))


def decode_one_by_one(
    decode: Decode, detection_events: np.ndarray, limit_s: float = math.inf
) -> tuple[np.ndarray, np.ndarray]:
    """Decode shots one by one, at least one, until a time limit.

    Args:
        decode: Maps bit-packed detection events to predictions.
        detection_events: uint8 [n, ceil(n_detectors / 8)], n >= 1.
        limit_s: No shot is begun later; warming up is not counted.

    Returns:
        Predictions of the first k shots, bool [k, n_observables], and their elapsed times in us, float64 [k].
    """
    start_s = time.perf_counter()
    for index in range(min(WARM_UP_SHOTS, len(detection_events))):
        decode(detection_events[index : index + 1])
        if time.perf_counter() - start_s > WARM_UP_S:
            break
    predictions: list[np.ndarray] = []
    times_ns: list[int] = []
    deadline_ns = time.perf_counter_ns() + 1e9 * limit_s
    for index in range(len(detection_events)):
        start_ns = time.perf_counter_ns()
        if start_ns > deadline_ns and predictions:
            break
        predictions.append(decode(detection_events[index : index + 1]))
        times_ns.append(time.perf_counter_ns() - start_ns)
    return np.concatenate(predictions), np.array(times_ns) / 1e3


def compare_latency(decoder: CheckpointDecoder, detection_events: np.ndarray) -> dict[str, DecodingTimes]:
    """Measure the predecoder, and correlated matching if the code has a matching graph, on the same shots."""
    decoders: dict[str, Decode] = {"predecoder": decoder.decode}
    if decoder.problem.env.backend == "mwpm":
        decoders[CORRELATED] = backends.make_backend(CORRELATED, decoder.problem).decode
    return {name: measure_latency(decode, detection_events) for name, decode in decoders.items()}


def predict_time_ratio(model: Predecoder, problem: Problem) -> float:
    """Return the CPU time of gated decoding divided by that of correlated matching, before the network is trained.

    Trained weights move log-odds further from the priors, which makes matching slower rather than faster.

    Args:
        model: The predecoder.
        problem: A decoding problem whose backend is matching.
    """
    decoder = make_decoder(problem, model.output_mode, model.gate)
    seed = sampling.band_seed(problem.env.seed_policy.train, "time ratio")
    events = sampling.sample(problem, CHUNK, seed).detection_events

    def network(detection_events: np.ndarray) -> np.ndarray:
        shots = torch.from_numpy(sampling.unpack(detection_events, problem.n_detectors)).float()
        with torch.no_grad():
            output: np.ndarray = model(shots).numpy()
        return output

    correlated = backends.make_backend(CORRELATED, problem)
    works: tuple[Callable[[], object], ...] = (
        lambda: decoder.decode_with(events, network),
        lambda: correlated.decode(events),
    )
    least, start_s = [float("inf")] * 2, time.process_time()
    for repeat in range(REPEATS):
        for index, work in enumerate(works):
            before_s = time.process_time()
            work()
            least[index] = min(least[index], time.process_time() - before_s)
        if repeat and time.process_time() - start_s > ENOUGH_CPU_S:
            break
    return least[0] / least[1]
