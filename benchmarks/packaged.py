"""Failures, cost and latency of packaged models beside correlated matching, on the same shots; part of `make bench`."""

from __future__ import annotations

import os

import numpy as np
import torch

from autoqec.decoders.decoding import CheckpointDecoder
from autoqec.decoders.latency import decode_one_by_one
from autoqec.models import model_env, model_path
from autoqec.qec import backends, sampling
from autoqec.qec.stats import count_pairs, error_mask, latency_quantiles, paired_effect
from benchmarks.gated import FIRST_SEED, REPEATS, median_cpu_us
from benchmarks.problems import surface
from benchmarks.table import Row

CASES = (("surface_d5_z", 5), ("surface_family_d7", 5), ("surface_family_d7", 7), ("surface_d7_z", 7))
SHOTS, TIMED_SHOTS, SINGLE_SHOTS = 200_000, 20_000, 10_000


def rows() -> list[Row]:
    """Measure each model on the circuit of a distance, all decoders on the same shots and in one process."""
    torch.set_num_threads(1)
    return [row for model, distance in CASES for row in model_rows(model, distance)]


def model_rows(model: str, distance: int) -> list[Row]:
    """Return cost and failures, failures that the gate adds, and latency of single shots."""
    problem = surface(distance)
    gated, ungated = (CheckpointDecoder.of(model_env(model), model_path(model), problem.dem) for _ in range(2))
    gate, ungated.decoder.gate = gated.decoder.gate, None
    if gate is None:
        raise ValueError(f"model {model} has no gate")
    correlated = backends.make_backend("mwpm_correlated", problem)
    decoders = {"gated": gated.decode, "ungated": ungated.decode, "correlated": correlated.decode}
    shots = sampling.sample(problem, SHOTS, FIRST_SEED)
    wrong = {name: error_mask(decode(shots.detection_events), shots.observables) for name, decode in decoders.items()}
    failures = {name: int(np.count_nonzero(mask)) for name, mask in wrong.items()}
    effect = paired_effect(count_pairs(wrong["correlated"], wrong["gated"]))
    added = paired_effect(count_pairs(wrong["ungated"], wrong["gated"]))
    timed = shots.detection_events[:TIMED_SHOTS]
    cost = median_cpu_us(
        {name: lambda d=decode: d(timed) for name, decode in decoders.items()},  # type: ignore[misc]
        len(timed),
    )
    single = {
        name: latency_quantiles(decode_one_by_one(decoders[name], shots.detection_events[:SINGLE_SHOTS])[1])
        for name in ("gated", "correlated")
    }
    p50, p99, p999 = single["gated"]
    title = f"{model}, d={distance} p=.005"
    return [
        Row(
            f"{title}: CPU time per shot, and fewer failures",
            f"{cost['gated'] / cost['correlated']:.2f} x ({cost['gated']:.2f} µs); "
            f"{_percent(effect.relative, effect.relative_low, effect.relative_high)} fewer",
            f"mwpm_correlated; aims: <= 1.0 x, >= 12% at d=5, interval above 0 at d=7; without the gate "
            f"{cost['ungated'] / cost['correlated']:.2f} x",
            f"{SHOTS:,} fresh shots, {failures['correlated']:,} and {failures['gated']:,} failures; times on "
            f"{TIMED_SHOTS:,}, median of {REPEATS}",
        ),
        Row(
            f"{title}: fewer failures because of the gate ({gate.threshold:g} nats)",
            f"{_percent(added.relative, added.relative_low, added.relative_high)}",
            "the same network without a gate; aim: within 1%",
            f"{SHOTS:,} fresh shots, {failures['ungated']:,} and {failures['gated']:,} failures; "
            f"{100 * gate.ambiguous_share:.1f}% of all shots are ambiguous",
        ),
        Row(
            f"{title}: 99th percentile of single shots ÷ median",
            f"{p99 / p50:.1f} ({p50:.1f}, {p99:.1f} and {p999:.1f} µs: p50, p99, p99.9)",
            "aim: <= 4; mwpm_correlated: " + ", ".join(f"{value:.1f}" for value in single["correlated"]) + " µs",
            f"{SINGLE_SHOTS:,} shots one by one, elapsed time; load {os.getloadavg()[0]:.1f}",
        ),
    ]


def _percent(value: float | None, low: float | None, high: float | None) -> str:
    """Return a relative difference with its 95% interval."""
    return " ".join(
        ["-" if value is None else f"{100 * value:.1f}%"]
        + ([] if low is None or high is None else [f"[{100 * low:.1f}, {100 * high:.1f}]"])
    )
