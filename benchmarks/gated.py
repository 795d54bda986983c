"""Cost of matching under per-shot weights, of complementary gaps and of gated decoding, as ratios within one process.

`make bench` records the rows that need no network. With one:
`python -m benchmarks.gated ENV CHECKPOINT [SHOTS [DISTANCE]]`.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pymatching
import scipy.sparse as sp
import torch

from autoqec.decoders.decoding import CheckpointDecoder
from autoqec.decoders.gating import CAP_MARGIN, Gate
from autoqec.qec import backends, sampling
from autoqec.qec.logical_classes import LogicalClassMatcher
from autoqec.qec.stats import count_pairs, error_mask, paired_effect
from autoqec.qec.weighted_mwpm import WeightedMatching
from autoqec.store.files import load_env
from benchmarks.problems import surface
from benchmarks.table import Row

REPEATS, REBUILT_SHOTS = 5, 200
FUSION_SCALE = 1000  # integer steps per nat
GATES = (2.0, 3.0, 4.0, 5.0, 6.0, 8.0)  # nats
TIMED_SHOTS = 20_000
FIRST_SEED = 2**32 + 1  # training and validation draw below 2**32


def median_cpu_us(works: dict[str, Callable[[], object]], shots: int) -> dict[str, float]:
    """Return median CPU microseconds per shot of each function; repetitions alternate, so that load affects all."""
    durations: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(REPEATS):
        for name, work in works.items():
            start = time.process_time()
            work()
            durations[name].append(time.process_time() - start)
    return {name: 1e6 * statistics.median(values) / shots for name, values in durations.items()}


def rows() -> list[Row]:
    """Return the rows that need no network."""
    return [row(distance) for distance in (5, 7) for row in (weighted_row, fusion_row, gap_row)]


def weighted_shots(distance: int) -> tuple[sp.csc_matrix, np.ndarray, np.ndarray]:
    """Return a check matrix, detection events of 2,000 shots, and weights within a few nats of the priors."""
    problem = surface(distance)
    graph, events = problem.matching_graph, sampling.sample(problem, 2_000, 1).detection_events
    detections = sampling.unpack(events, problem.n_detectors)[:, graph.in_sector]
    noise = np.random.default_rng(0).normal(0, 1, (len(events), graph.n_edges))
    return graph.check_matrix, detections, (noise - graph.log_odds).astype(np.float32)


def fusion_row(distance: int) -> Row:
    """Measure weighted matching against fusion-blossom with dynamic weights; both must find the same total weight."""
    import fusion_blossom as fb

    checks, detections, weights = weighted_shots(distance)
    n_nodes, n_edges = checks.shape
    ends = [checks.indices[checks.indptr[edge] : checks.indptr[edge + 1]].tolist() for edge in range(n_edges)]
    virtual = [edge for edge in range(n_edges) if len(ends[edge]) == 1]  # one virtual vertex per boundary edge
    number = {edge: n_nodes + place for place, edge in enumerate(virtual)}
    edges = [(pair[0], pair[1] if len(pair) == 2 else number[edge], 2) for edge, pair in enumerate(ends)]
    solver = fb.SolverSerial(fb.SolverInitializer(n_nodes + len(virtual), edges, list(number.values())))
    scaled = 2 * np.maximum(np.rint(weights * FUSION_SCALE), 0).astype(int)  # even integers, none below 0
    matching = WeightedMatching(checks)

    def fusion() -> list[list[int]]:
        chosen = []
        for row, shot in zip(scaled, detections, strict=True):
            pattern = fb.SyndromePattern(
                defect_vertices=np.nonzero(shot)[0].tolist(), dynamic_weights=list(enumerate(row.tolist()))
            )
            solver.solve(pattern)
            chosen.append(solver.subgraph())
            solver.clear()
        return chosen

    ours = matching.decode_batch(detections, scaled)
    excess = (scaled * ours).sum(axis=1) - [row[edges].sum() for row, edges in zip(scaled, fusion(), strict=True)]
    if excess.any():
        raise AssertionError(f"total weights differ on {np.count_nonzero(excess)} shots")
    cost = median_cpu_us(
        {"ours": lambda: matching.decode_batch(detections, weights), "fusion": fusion}, len(detections)
    )
    return Row(
        f"WeightedMatching.decode_batch beside fusion-blossom, d={distance} p=.005",
        f"{cost['fusion'] / cost['ours']:.1f} x the shots per second ({cost['ours']:.1f} µs per shot)",
        "SolverSerial with dynamic_weights of all edges, from Python; equal total weights",
        f"{len(detections):,} shots, median of {REPEATS}",
    )


def weighted_row(distance: int) -> Row:
    """Measure weighted matching against PyMatching graphs that are rebuilt for every shot."""
    checks, detections, weights = weighted_shots(distance)
    matching = WeightedMatching(checks)

    def rebuild() -> None:
        for row, shot in zip(weights[:REBUILT_SHOTS], detections[:REBUILT_SHOTS], strict=True):
            pymatching.Matching.from_check_matrix(checks, weights=row).decode(shot)

    batch = median_cpu_us({"batch": lambda: matching.decode_batch(detections, weights)}, len(detections))["batch"]
    rebuilt = median_cpu_us({"rebuilt": rebuild}, REBUILT_SHOTS)["rebuilt"]
    return Row(
        f"WeightedMatching.decode_batch, d={distance} p=.005",
        f"{rebuilt / batch:.1f} x the shots per second ({batch:.1f} µs per shot)",
        "PyMatching's Matching.from_check_matrix rebuilt for every shot",
        f"{len(detections):,} and {REBUILT_SHOTS} shots, median of {REPEATS}",
    )


def gap_row(distance: int) -> Row:
    """Measure the complementary gap against one plain matching by PyMatching."""
    problem = surface(distance)
    graph, events = problem.matching_graph, sampling.sample(problem, 10_000, 1).detection_events
    packed = sampling.pack(sampling.unpack(events, problem.n_detectors)[:, graph.in_sector])
    matcher = LogicalClassMatcher(problem)
    plain = pymatching.Matching.from_check_matrix(graph.check_matrix, weights=-graph.log_odds)
    works: dict[str, Callable[[], object]] = {
        "gap": lambda: matcher.complementary_gap(events, 4 + CAP_MARGIN),
        "plain": lambda: plain.decode_batch(packed, bit_packed_shots=True),
    }
    cost = median_cpu_us(works, len(events))
    return Row(
        f"complementary gap up to {4 + CAP_MARGIN} nats, d={distance} p=.005",
        f"{cost['gap'] / cost['plain']:.2f} x the time per shot ({cost['gap']:.2f} µs)",
        "one PyMatching decode_batch of the same graph; the gap's sign is the plain prediction",
        f"{len(events):,} shots, median of {REPEATS}",
    )


def main(env_path: Path, checkpoint: Path, shots: int, distance: int | None) -> None:
    """Print failures and CPU time of a network with and without gates beside plain and correlated matching.

    A network of type `local` is also timed in torch, and decodes another distance of the surface code if one is given.
    """
    torch.set_num_threads(1)
    env, _ = load_env(env_path)

    def load() -> CheckpointDecoder:
        if distance is None:
            return CheckpointDecoder.of(env, checkpoint)
        return CheckpointDecoder.of_other_circuit(surface(distance), checkpoint, gated=False)

    problem = load().problem
    decoders: dict[str, Callable[[np.ndarray], np.ndarray]] = {
        name: backends.make_backend(name, problem).decode for name in ("mwpm", "mwpm_correlated")
    }
    bare = pymatching.Matching.from_detector_error_model(problem.dem)
    decoders["pymatching"] = lambda events: bare.decode_batch(events, bit_packed_shots=True).astype(bool)
    in_torch: dict[str, Callable[[np.ndarray], np.ndarray]] = {}
    gates: dict[str, Gate | None] = {"no gate": None} | {f"gate {nats:g}": Gate(problem, nats) for nats in GATES}
    for name, gate in gates.items():
        compiled, other = load(), load()
        compiled.decoder.gate = other.decoder.gate = gate
        decoders[name] = compiled.decode
        if compiled._local is not None:
            other._local, in_torch[name] = None, other.decode
    drawn = sampling.sample(problem, shots, FIRST_SEED)
    timed = drawn.detection_events[:TIMED_SHOTS]
    works = decoders | {f"{name}, torch": decode for name, decode in in_torch.items()}
    cost = median_cpu_us({key: lambda d=decode: d(timed) for key, decode in works.items()}, len(timed))  # type: ignore[misc]
    for gate in filter(None, gates.values()):
        gate.shots = gate.ambiguous_shots = 0  # the share is that of all shots, without repetitions
    print(f"{problem.env.name}, p={problem.p}, {shots} shots, seed {FIRST_SEED}; CPU time: median of {REPEATS}")
    wrong = {name: error_mask(decode(drawn.detection_events), drawn.observables) for name, decode in decoders.items()}
    for name, mask in wrong.items():
        gate_or_none = gates.get(name)
        share = "" if gate_or_none is None else f"; {100 * gate_or_none.ambiguous_share:.1f}% ambiguous"
        effect = paired_effect(count_pairs(wrong["mwpm_correlated"], mask))
        figures = (effect.relative, effect.relative_low, effect.relative_high)
        fewer = ", ".join("-" if figure is None else f"{100 * figure:.1f}%" for figure in figures)
        times = [cost[each] for each in (name, f"{name}, torch") if each in cost]
        ratios = ", ".join(f"{us:.2f} us {us / cost['mwpm_correlated']:.2f} x" for us in times)
        print(f"{name}: {np.count_nonzero(mask)} failures, fewer than correlated {fewer}; {ratios}{share}", flush=True)
    for name, decode in in_torch.items():
        differing = int((decode(timed) != decoders[name](timed)).sum())
        print(f"{name}: {differing} of {len(timed)} predictions differ between torch and C")


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        Path(sys.argv[2]),
        int(sys.argv[3]) if len(sys.argv) > 3 else 100_000,
        int(sys.argv[4]) if len(sys.argv) > 4 else None,
    )
