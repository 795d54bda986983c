"""Matching conditioned on each logical class: minimum-weight solutions of both, and their complementary gap.

The observable becomes a syndrome bit. A gauge transformation (one bit per detector) moves the observable of every edge
on to the boundary edges; those that still carry it end on one extra detector B instead of the boundary. Matching with
B set to 0 or 1 then gives the minimum-weight explanation of either logical class. The difference of their weights is
the complementary gap, a confidence of plain matching (Gidney, Newman, Brooks, Jones, arXiv:2312.04522).
"""

from __future__ import annotations

import numpy as np
import pymatching
import scipy.sparse as sp

from autoqec.errors import UsageError
from autoqec.qec.graph import MatchingGraph
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import pack
from autoqec.qec.weighted_mwpm import MAX_LOG_ODDS, WeightedMatching


class LogicalClassMatcher:
    """Matching of each shot under the condition that the observable did not flip, and that it did.

    Raises:
        UsageError: The circuit has several observables, or no cut of boundary edges separates the logical classes
            (surface and repetition codes have one).
    """

    def __init__(self, problem: Problem) -> None:
        graph = problem.matching_graph
        name = problem.env.name
        if problem.n_observables != 1:
            raise UsageError(
                f"matching under both logical classes needs one observable, this circuit has {problem.n_observables}",
                location=f"env `{name}`",
                hint="set `training.finetune_share: 0`",
            )
        self._in_sector = graph.in_sector
        self._gauge = _gauge(graph, name)
        self._checks = _cut(graph, self._gauge, name)
        self._matching = WeightedMatching(self._checks, max_weight=MAX_LOG_ODDS)
        self._weights = -graph.log_odds
        self._capped: tuple[float, pymatching.Matching] | None = None

    def complementary_gap(self, detections: np.ndarray, cap: float = MAX_LOG_ODDS) -> np.ndarray:
        """Compute weight(observable flipped) - weight(not flipped) under the priors.

        Args:
            detections: uint8 [n, n_detectors], detection events.
            cap: Bound of the result in nats. A smaller cap is faster: matching does not search beyond it.

        Returns:
            float32 [n], in nats, within +-cap; positive where plain matching predicts "not flipped".
        """
        matching = self._with_cap(cap)
        unflipped_weight, flipped_weight = (
            matching.decode_batch(pack(rows), bit_packed_shots=True, return_weights=True)[1]
            for rows in self._syndromes(detections)
        )
        complementary_gap: np.ndarray = (flipped_weight - unflipped_weight).astype(np.float32)
        return complementary_gap

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

    def _with_cap(self, cap: float) -> pymatching.Matching:
        """Return the prior graph with one more edge, from B to the boundary at weight `cap`."""
        if self._capped is None or self._capped[0] != cap:
            rows = self._checks.shape[0]
            bound = sp.csc_matrix((np.ones(1, np.uint8), ([rows - 1], [0])), (rows, 1))
            checks = sp.hstack([self._checks, bound]).tocsc()
            no_faults = sp.csc_matrix((1, checks.shape[1]), dtype=np.uint8)
            matching = pymatching.Matching.from_check_matrix(
                checks, weights=np.append(self._weights, cap), faults_matrix=no_faults
            )
            self._capped = (cap, matching)
        return self._capped[1]


def _gauge(graph: MatchingGraph, name: str) -> np.ndarray:
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
                    raise _no_cut_error(name, "a closed loop of edges flips the observable")
    return gauge.astype(np.uint8, copy=False)


def _cut(graph: MatchingGraph, gauge: np.ndarray, name: str) -> sp.csc_matrix:
    """Return uint8 [len(in_sector) + 1, n_edges], the check matrix with detector B in its last row."""
    position = {int(detector): row for row, detector in enumerate(graph.in_sector)}
    ends = [position[int(u)] for u in graph.endpoints[:, 0]]
    outer = graph.endpoints[:, 1] < 0
    crossing = outer & ((graph.observables[:, 0] ^ gauge[ends]) == 1)
    if not crossing.any() or crossing.sum() == outer.sum():
        raise _no_cut_error(name, "both ends of every error chain lie on one boundary")
    last = sp.csc_matrix(crossing[None, :].astype(np.uint8))
    return sp.vstack([graph.check_matrix, last]).tocsc()


def _no_cut_error(name: str, reason: str) -> UsageError:
    return UsageError(
        f"no cut of boundary edges separates the two logical classes: {reason}",
        location=f"env `{name}`",
        hint="set `training.finetune_share: 0`",
    )
