"""The baseline decoders that a candidate is compared with, all on the same shots."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pymatching
from numpy.typing import NDArray

from autoqec.contracts.env import CORRELATED, PREDICTED
from autoqec.contracts.verdict import BaselineResult, PairedEffect
from autoqec.qec import backends
from autoqec.qec.graph import MatchingGraph
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import Shots, sample, unpack
from autoqec.qec.stats import cpu_timed, error_mask, rate
from autoqec.verification.shot_stream import CHUNK

REFERENCE_SEED = 2**62  # public, and disjoint from every candidate's seeds
_REFERENCE_CACHE: dict[tuple[str, str, str, int], tuple[int, int]] = {}


class Baselines:
    """The env's baselines, built once; the baseline decoder of the env's backend comes first.

    Correlated matching is added wherever the env decodes by matching, so that weak baselines in an env cannot hide
    that a decoder from a public library does better; on recorded shots, so is matching with the estimated model.

    Predictions that were recorded with the shots are not decoded here: `RecordedSession` reads them.

    Attributes:
        names: The baselines, recorded predictions included.
        cpu_s: CPU time that each baseline spent on decoding so far, by name.
    """

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        always: tuple[str, ...] = (CORRELATED,) if problem.env.plain == "mwpm" else ()
        always += problem.env.code.compared
        self.names = tuple(dict.fromkeys((problem.env.plain, *problem.env.baselines, *always)))
        self.cpu_s = dict.fromkeys(self.names, 0.0)
        decoded = (name for name in self.names if not name.startswith(PREDICTED))
        self._decoders = {name: backends.make_baseline(name, problem) for name in decoded}

    def error_mask(self, shots: Shots) -> dict[str, NDArray[np.bool_]]:
        """Return the shots that each baseline decodes wrongly, bool [n] by name; recorded predictions are left out."""
        masks = {}
        for name, decoder in self._decoders.items():
            predictions, cpu_s = cpu_timed(decoder.decode, shots.detection_events)
            self.cpu_s[name] += cpu_s
            masks[name] = error_mask(predictions, shots.observables)
        return masks

    def results(self, effects: dict[str, PairedEffect]) -> tuple[BaselineResult, ...]:
        """Return the report's entry of each baseline, given the candidate's effect against it."""
        rounds = self.problem.env.code.rounds
        return tuple(
            BaselineResult(
                name=name,
                rate=rate(effects[name].counts.errors_reference, effects[name].counts.shots, rounds=rounds),
                against=effects[name],
                beats=effects[name].delta_low > 0,
            )
            for name in self.names
        )


def reference_errors(problem: Problem, shots: int) -> tuple[int, int]:
    """Count errors of the baseline decoder on shots that no candidate ever influences; cached by problem.

    For MWPM the decoder is built here, from the problem's edges and PyMatching alone, so that a manipulation of
    `qec.backends.Mwpm` shows up as a different error rate.

    Returns:
        (errors, shots)
    """
    chunks = -(-shots // CHUNK)
    key = (problem.circuit_sha256, problem.env.plain, repr(problem.env.bp), chunks)
    if key not in _REFERENCE_CACHE:
        decode = _reference_decoder(problem)
        errors = 0
        for index in range(chunks):
            shots_of_chunk = sample(problem, CHUNK, REFERENCE_SEED + index)
            errors += int(error_mask(decode(shots_of_chunk.detection_events), shots_of_chunk.observables).sum())
        _REFERENCE_CACHE[key] = (errors, chunks * CHUNK)
    return _REFERENCE_CACHE[key]


def _reference_decoder(problem: Problem) -> Callable[[NDArray[np.uint8]], NDArray[np.bool_]]:
    if problem.env.plain != "mwpm":
        return backends.make_backend(problem.env.plain, problem).decode
    matching = pymatching.Matching()
    for (u, v), weight, observables in _distinct_edges(problem.matching_graph):
        if u < 0:
            matching.add_boundary_edge(v, weight=weight, fault_ids=observables)
        else:
            matching.add_edge(u, v, weight=weight, fault_ids=observables)
    matching.ensure_num_fault_ids(problem.n_observables)
    ignored = problem.matching_graph.out_of_sector

    def decode(detection_events: NDArray[np.uint8]) -> NDArray[np.bool_]:
        events = unpack(detection_events, problem.n_detectors)
        events[:, ignored] = 0
        return matching.decode_batch(events[:, : matching.num_detectors]).astype(bool)

    return decode


def _distinct_edges(graph: MatchingGraph) -> Iterator[tuple[tuple[int, int], float, set[int]]]:
    """Yield the likeliest of each set of parallel edges, as `qec.backends.Mwpm` keeps it."""
    likeliest: dict[tuple[int, int], int] = {}
    for edge in np.argsort(graph.prior, kind="stable"):
        u, v = sorted(int(end) for end in graph.endpoints[edge])
        likeliest[u, v] = int(edge)
    for ends, edge in likeliest.items():
        yield ends, -float(graph.log_odds[edge]), set(np.nonzero(graph.observables[edge])[0].tolist())
