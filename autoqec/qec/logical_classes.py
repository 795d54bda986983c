"""Matching conditioned on each logical class: minimum-weight solutions of both, and their complementary gap.

The observable becomes a syndrome bit. A gauge transformation (one bit per detector) moves the observable of every edge
on to the boundary edges; those that still carry it end on one extra detector B instead of the boundary. Matching with
B set to 0 or 1 then gives the minimum-weight explanation of either logical class. The difference of their weights is
the complementary gap, a confidence of plain matching (Gidney, Newman, Brooks, Jones, arXiv:2312.04522).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, partial

import numpy as np
import pymatching
import scipy.sparse as sp

from autoqec.errors import UsageError
from autoqec.qec.c_library import addresses
from autoqec.qec.graph import MatchingGraph
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import pack, unpack
from autoqec.qec.weighted_mwpm import MAX_LOG_ODDS, GapTable, WeightedMatching, compiled_gap

MAX_TABLE_NODES = 2048  # 32 MB of distances; beyond, a search per shot is faster
NEAR_EDGES = 1.0  # mean weights of an edge; pairs farther apart are rarely needed
WORK_PER_EDGE = 32  # pairs of events that C looks at, per edge of the graph; at p=.005 shots take at most 7


class LogicalClassMatcher:
    """Matching of each shot under the condition that the observable did not flip, and that it did.

    Args:
        problem: The decoding problem.
        hint: What errors recommend, since several features need the logical classes.

    Raises:
        UsageError: The circuit has several observables, or no cut of boundary edges separates the logical classes
            (surface and repetition codes have one).
    """

    def __init__(self, problem: Problem, *, hint: str = "set `training.finetune_share: 0`") -> None:
        graph = problem.matching_graph
        name = problem.env.name
        if problem.n_observables != 1:
            raise UsageError(
                f"matching under both logical classes needs one observable, this circuit has {problem.n_observables}",
                location=f"env `{name}`",
                hint=hint,
            )
        self._in_sector, self._n_detectors = graph.in_sector, problem.n_detectors
        self._gauge = _gauge(graph, name, hint)
        self._checks = _cut(graph, self._gauge, name, hint)
        self._matching = WeightedMatching(self._checks, max_weight=MAX_LOG_ODDS)
        self._weights = -graph.log_odds
        self._capped: _CappedGraph | None = None

    def complementary_gap(self, detection_events: np.ndarray, cap: float = MAX_LOG_ODDS) -> np.ndarray:
        """Compute weight(observable flipped) - weight(not flipped) under the priors.

        Args:
            detection_events: uint8 [n, ceil(n_detectors / 8)], bit-packed.
            cap: Bound of the result in nats. A smaller cap is faster: matching does not search beyond it.

        Returns:
            float32 [n], in nats, within +-cap; positive where plain matching predicts "not flipped".
        """
        capped = self._capped
        if capped is None or capped.cap != cap:
            capped = _CappedGraph(self._checks, self._weights, self._gauge, self._in_sector, self._n_detectors, cap)
            self._capped = capped  # other threads may replace it
        gap, work = capped.gap(detection_events)
        if np.count_nonzero(left := work < 0):
            detections = unpack(detection_events[left], self._n_detectors)
            unflipped_weight, flipped_weight = (capped.match(rows) for rows in self._syndromes(detections))
            gap[left] = flipped_weight - unflipped_weight
        return gap

    def match_both_classes(self, detections: np.ndarray, log_odds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Find the minimum-weight edge sets of both classes, each shot under its own weights.

        Args:
            detections: uint8 [n, n_detectors], detection events.
            log_odds: float [n, n_edges]; weights are its negatives, clipped to +-MAX_LOG_ODDS nats.

        Returns:
            (not flipped, flipped), both uint8 [n, n_edges].

        Raises:
            ValueError: A value is not finite.
        """
        syndromes = np.stack(self._syndromes(detections), axis=1)
        selected = self._matching.decode_batch(syndromes.reshape(-1, syndromes.shape[2]), -log_odds)
        return selected[::2], selected[1::2]

    def _syndromes(self, detections: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return uint8 [n, len(in_sector) + 1] for each class; B is the class plus the gauge of the events."""
        in_sector = detections[:, self._in_sector]
        parity = (in_sector @ self._gauge & 1)[:, None]
        return np.concatenate([in_sector, parity], axis=1), np.concatenate([in_sector, 1 - parity], axis=1)


class _CappedGraph:
    """The prior graph with one more edge, from B to the boundary at weight `cap`.

    C computes gaps, from distances between all nodes if there are few. PyMatching matches the shots that take too much
    work, and all of them where the package was built without a C compiler.
    """

    def __init__(
        self,
        checks: sp.csc_matrix,
        weights: np.ndarray,
        gauge: np.ndarray,
        in_sector: np.ndarray,
        n_detectors: int,
        cap: float,
    ) -> None:
        self.cap = cap
        rows = checks.shape[0]
        cap_edge = sp.csc_matrix((np.ones(1, np.uint8), ([rows - 1], [0])), (rows, 1))
        self._checks = sp.hstack([checks, cap_edge]).tocsc()
        self._weights = np.append(weights, cap).astype(np.float64)
        self._gauge = np.append(gauge, np.uint8(0)).astype(np.uint8)
        self._node_of = np.full(-(-n_detectors // 8) * 8, -1, np.int32)
        self._node_of[in_sector] = np.arange(len(in_sector), dtype=np.int32)
        self._solve = self._solver() if (self._weights >= 0).all() else None

    def _solver(self) -> Callable[..., int] | None:
        """Return the C function that computes gaps, with the graph as its first arguments; None if it was not built."""
        functions = compiled_gap()
        if functions is None:
            return None
        distances, gap, wide_gap = functions
        n_nodes, n_edges, *links = WeightedMatching(self._checks).adjacency
        most_work = WORK_PER_EDGE * n_edges
        self._arrays = [*links, self._weights, self._node_of, self._gauge]  # kept alive for their addresses
        *graph_addresses, of_node_of, of_gauge = addresses(*self._arrays)
        graph, self._maps = (n_nodes, n_edges, *graph_addresses), (of_node_of, of_gauge)
        if n_nodes > MAX_TABLE_NODES:
            return partial(wide_gap, *graph, most_work)
        bound, apart = np.empty(n_nodes), np.empty((n_nodes, n_nodes))
        if distances(*graph, *addresses(bound, apart)) != 0:
            return None
        reach = NEAR_EDGES * float(self._weights.mean())
        node, near = np.nonzero(np.tril(apart < reach, -1))
        first_near = np.searchsorted(node, np.arange(n_nodes + 1)).astype(np.int64)
        arrays: dict[str, np.ndarray] = {
            "bound": bound, "apart": apart, "first_near": first_near, "near": near.astype(np.int32),
            "near_apart": apart[node, near],
        }  # fmt: skip
        self._arrays += arrays.values()
        table = GapTable(nodes=n_nodes, reach=reach, **dict(zip(arrays, addresses(*arrays.values()), strict=True)))
        return partial(gap, table, most_work)

    def gap(self, detection_events: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Compute gaps in C.

        Returns:
            float32 [n], and int64 [n], how many pairs of events were looked at; -1 for shots whose gap is not computed.

        Raises:
            ValueError: The shots are not uint8 [n, ceil(n_detectors / 8)].
        """
        expected = (len(detection_events), len(self._node_of) // 8)
        if detection_events.shape != expected or detection_events.dtype != np.uint8:
            raise ValueError(
                f"detection events are {detection_events.dtype} {detection_events.shape}, not uint8 {expected}"
            )
        gap, work = np.empty(len(detection_events), np.float32), np.empty(len(detection_events), np.int64)
        if self._solve is not None:
            shots = np.ascontiguousarray(detection_events)
            if self._solve(*shots.shape, *self._maps, *addresses(shots, gap, work)) != 0:
                work[:] = -1  # out of memory
        else:
            work[:] = -1
        return gap, work

    def match(self, syndromes: np.ndarray) -> np.ndarray:
        """Return float64 [n], weights of PyMatching's solutions of syndromes, uint8 [n, n_nodes]."""
        return np.asarray(self._pymatching.decode_batch(pack(syndromes), bit_packed_shots=True, return_weights=True)[1])

    @cached_property
    def _pymatching(self) -> pymatching.Matching:
        no_faults = sp.csc_matrix((1, self._checks.shape[1]), dtype=np.uint8)
        return pymatching.Matching.from_check_matrix(self._checks, weights=self._weights, faults_matrix=no_faults)


def _gauge(graph: MatchingGraph, name: str, hint: str) -> np.ndarray:
    """Return uint8 [len(in_sector)], bits whose difference along each inner edge is that edge's observable."""
    position = {int(detector): row for row, detector in enumerate(graph.in_sector)}
    neighbours: list[list[tuple[int, int]]] = [[] for _ in graph.in_sector]
    for (u, v), flips in zip(graph.endpoints, graph.observables[:, 0], strict=True):
        if v >= 0:
            a, b = position[int(u)], position[int(v)]
            neighbours[a].append((b, int(flips)))
            neighbours[b].append((a, int(flips)))
    gauge = np.full(len(graph.in_sector), -1, int)
    for start in range(len(gauge)):
        if gauge[start] >= 0:
            continue
        gauge[start] = 0
        stack = [start]
        while stack:
            here = stack.pop()
            for there, flips in neighbours[here]:
                if gauge[there] < 0:
                    gauge[there] = gauge[here] ^ flips
                    stack.append(there)
                elif gauge[there] != gauge[here] ^ flips:
                    raise _no_cut_error(name, "a closed loop of edges flips the observable", hint)
    return gauge.astype(np.uint8, copy=False)


def _cut(graph: MatchingGraph, gauge: np.ndarray, name: str, hint: str) -> sp.csc_matrix:
    """Return uint8 [len(in_sector) + 1, n_edges], the check matrix with detector B in its last row."""
    position = {int(detector): row for row, detector in enumerate(graph.in_sector)}
    ends = [position[int(u)] for u in graph.endpoints[:, 0]]
    outer = graph.endpoints[:, 1] < 0
    crossing = outer & ((graph.observables[:, 0] ^ gauge[ends]) == 1)
    if not crossing.any() or crossing.sum() == outer.sum():
        raise _no_cut_error(name, "both ends of every error chain lie on one boundary", hint)
    last = sp.csc_matrix(crossing[None, :].astype(np.uint8))
    return sp.vstack([graph.check_matrix, last]).tocsc()


def _no_cut_error(name: str, reason: str, hint: str) -> UsageError:
    return UsageError(
        f"no cut of boundary edges separates the two logical classes: {reason}",
        location=f"env `{name}`",
        hint=hint,
    )
