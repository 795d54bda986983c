"""Measure decoding and sampling as ratios within one run: `make bench`; networks: `make bench ARGS=--aims`.

Times are CPU seconds and the median of several repetitions, so that a busy machine gives the same figures.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pymatching
import stim

from autoqec.qec import backends, sampling, weighted_mwpm
from autoqec.qec.graph import MatchingGraph
from autoqec.qec.problem import Problem
from benchmarks import aims, gated, packaged, parallel, report, scaling, threads
from benchmarks.problems import surface
from benchmarks.table import Row, record

REPEATS = 5


def median_cpu_s(work: Callable[[], object]) -> float:
    """Return the median CPU seconds of one call."""
    durations = []
    for _ in range(REPEATS):
        start = time.process_time()
        work()
        durations.append(time.process_time() - start)
    return statistics.median(durations)


def decode_rebuilt(problem: Problem, log_odds: np.ndarray, detection_events: np.ndarray) -> np.ndarray:
    """Decode by building a DEM and a Matching for every shot, with the probabilities of that shot."""
    graph = problem.matching_graph
    events = sampling.unpack(detection_events, problem.n_detectors)
    predictions = np.zeros((len(detection_events), problem.n_observables), bool)
    inside = np.isin(np.arange(problem.n_detectors), graph.in_sector)
    for shot, row in enumerate(log_odds):
        matching = pymatching.Matching.from_detector_error_model(reweighted_dem(graph, row, problem.n_detectors))
        predictions[shot] = matching.decode(events[shot] * inside)
    return predictions


def reweighted_dem(graph: MatchingGraph, log_odds: np.ndarray, n_detectors: int) -> stim.DetectorErrorModel:
    lines = [f"detector D{n_detectors - 1}"]
    for ends, flips, value in zip(graph.endpoints, graph.observables, log_odds, strict=True):
        targets = [f"D{end}" for end in ends if end >= 0] + [f"L{bit}" for bit in np.nonzero(flips)[0]]
        lines.append(f"error({1 / (1 + np.exp(-value)):.12g}) {' '.join(targets)}")
    return stim.DetectorErrorModel("\n".join(lines))


def soft_rows() -> list[Row]:
    """Measure per-shot weights around the priors against rebuilding a DEM and a Matching for every shot."""
    rows = []
    for distance in (5, 7):
        problem = surface(distance)
        graph, shots = problem.matching_graph, sampling.sample(problem, 10_000, 1)
        rng = np.random.default_rng(0)
        log_odds = (graph.log_odds + rng.normal(0, 1, (len(shots), graph.n_edges))).clip(-30, -0.01).astype(np.float32)
        backend = backends.make_soft_backend(problem)
        n, few = 2_000, 200
        fast = (
            median_cpu_s(lambda b=backend, s=shots, z=log_odds, n=n: b.decode_soft(s.detection_events[:n], z[:n])) / n
        )  # type: ignore[misc]
        slow = (
            median_cpu_s(lambda p=problem, s=shots, z=log_odds, n=few: decode_rebuilt(p, z[:n], s.detection_events[:n]))
            / few
        )  # type: ignore[misc]
        rows.append(
            Row(
                f"per-shot-weighted matching, d={distance} p=.005",
                f"{slow / fast:.1f} x the shots per second ({1e6 * fast:.0f} µs per shot)",
                "a DEM and a Matching rebuilt for every shot; aim: >= 30 x",
                f"{n:,} and {few} shots, median of {REPEATS}; {match_c_status()}",
            )
        )
        if distance == 5:
            rows.append(minimum_weight_row(problem, shots, log_odds))
    return rows


def minimum_weight_row(problem: Problem, shots: sampling.Shots, log_odds: np.ndarray) -> Row:
    """Compare weights of the found edge sets with those of a Matching built for each shot."""
    graph = problem.matching_graph
    events = sampling.unpack(shots.detection_events, problem.n_detectors)[:, graph.in_sector]
    weights = -log_odds.astype(float)
    ours = weighted_mwpm.WeightedMatching(graph.check_matrix).decode_batch(events, weights)
    theirs = np.stack(
        [
            pymatching.Matching.from_check_matrix(graph.check_matrix, weights=row).decode(shot)
            for row, shot in zip(weights, events, strict=True)
        ]
    )
    excess = (weights * ours).sum(axis=1) - (weights * theirs).sum(axis=1)
    return Row(
        "shots whose minimum weight is that of a rebuilt Matching, d=5 p=.005",
        f"{100 * (np.abs(excess) < 1e-3).mean():.2f}% (largest excess {max(excess.max(), 0):.1e} nats)",
        "aim: all; PyMatching rounds its weights to integers",
        f"{len(shots):,} shots, random weights; {match_c_status()}",
    )


def match_c_status() -> str:
    return "in C" if weighted_mwpm.compiled_matcher() is not None else "without C: no compiler during installation"


def plain_rows() -> list[Row]:
    rows = []
    for distance in (5, 7):
        problem = surface(distance)
        shots = sampling.sample(problem, 50_000, 1)
        ours, bare = (
            backends.make_backend("mwpm", problem),
            pymatching.Matching.from_detector_error_model(problem.dem),
        )
        mine = median_cpu_s(lambda b=ours, s=shots: b.decode(s.detection_events))  # type: ignore[misc]
        theirs = median_cpu_s(lambda b=bare, s=shots: b.decode_batch(s.detection_events, bit_packed_shots=True))  # type: ignore[misc]
        rows.append(
            Row(
                f"baseline decoder, d={distance} p=.005",
                f"{theirs / mine:.2f} x the shots per second",
                "PyMatching decode_batch on the full DEM; aim: >= 0.8 x",
                f"50,000 shots, median of {REPEATS}",
            )
        )
    return rows


def sampling_rows() -> list[Row]:
    rows = []
    for distance in (5, 7):
        problem = surface(distance)
        labelled, bare = sampling.LabelledSampler(problem, 1), problem.dem.compile_sampler(seed=1)
        mine = median_cpu_s(lambda s=labelled: s.draw(16_384))  # type: ignore[misc]
        theirs = median_cpu_s(lambda s=bare: s.sample(16_384, return_errors=True, bit_packed=True))  # type: ignore[misc]
        rows.append(
            Row(
                f"training data with edge labels, d={distance} p=.005",
                f"{theirs / mine:.2f} x the shots per second",
                "stim's DEM sampler with its errors, bit-packed; aim: >= 0.5 x",
                f"16,384 shots, median of {REPEATS}",
            )
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--aims", nargs="*", metavar="NAME", help="train and measure networks instead: all, or the named ones"
    )
    parser.add_argument("--dir", type=Path, default=Path("outputs/aims"), help="directory of trained networks")
    args = parser.parse_args()
    if args.aims is not None:
        aims.main(args.aims, args.dir)
        return
    rows = [*soft_rows(), *gated.rows(), *plain_rows(), *sampling_rows(), *scaling.rows(), *threads.rows()]
    record("decoding and sampling", rows)
    model_rows = packaged.rows()
    record("packaged models", model_rows)
    report_rows = report.rows()
    record("the report", report_rows)
    concurrent_rows = parallel.rows()
    record("concurrent rounds", concurrent_rows)
    for row in [*rows, *model_rows, *report_rows, *concurrent_rows]:
        print(f"{row.name}: {row.figure} (against {row.against}; {row.runs})")


if __name__ == "__main__":
    main()
