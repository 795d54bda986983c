"""Matching of bit-packed shots to observables, each shot under its own log-odds, in one call of the C extension."""

from __future__ import annotations

import numpy as np

from autoqec.qec.c_library import addresses
from autoqec.qec.graph import MatchingGraph
from autoqec.qec.sampling import unpack
from autoqec.qec.weighted_mwpm import MAX_LOG_ODDS, WeightedMatching, compiled_soft_matcher

NOT_FINITE = -3  # status of the C function


class SoftMatching:
    """`WeightedMatching` between the arrays of a decoder: without unpacking, edges of shots, or copies of log-odds.

    Args:
        graph: The graph of the inner decoder.
        n_detectors: Number of detectors of a shot.
    """

    def __init__(self, graph: MatchingGraph, n_detectors: int) -> None:
        self._graph, self._n_detectors = graph, n_detectors
        self._weighted = WeightedMatching(graph.check_matrix, max_weight=MAX_LOG_ODDS)
        self._row_bytes, self._checked = -(-n_detectors // 8), False
        node_of = np.full(8 * self._row_bytes, -1, np.int32)
        node_of[graph.in_sector] = np.arange(len(graph.in_sector), dtype=np.int32)
        flips = np.ascontiguousarray(graph.observables, np.uint8)
        n_nodes, n_edges, *links = self._weighted.adjacency
        self._arrays = [*links, node_of, flips]  # kept alive for their addresses
        *link_addresses, of_node_of, of_flips = addresses(*self._arrays)
        self._fixed = (n_nodes, n_edges, *link_addresses, flips.shape[1], of_node_of, of_flips, MAX_LOG_ODDS)

    def decode(self, detection_events: np.ndarray, log_odds: np.ndarray) -> np.ndarray:
        """Decode each shot under its own log-odds.

        Args:
            detection_events: uint8 [n, ceil(n_detectors / 8)], bit-packed.
            log_odds: float [n, n_edges], computed in float32; weights are its negatives, clipped to +-MAX_LOG_ODDS.

        Returns:
            bool [n, n_observables].

        Raises:
            ValueError: Shapes do not fit, a value is not finite, or no edges explain a shot.
        """
        n = len(detection_events)
        for what, shape, expected in (
            ("detection events", detection_events.shape, (n, self._row_bytes)),
            ("log-odds", log_odds.shape, (n, self._graph.n_edges)),
        ):
            if shape != expected:
                raise ValueError(f"{what} have shape {shape}, expected {expected}")
        function = compiled_soft_matcher()
        if function is None:
            return self._decode_edges(detection_events, log_odds)
        shots, values = np.ascontiguousarray(detection_events, np.uint8), np.ascontiguousarray(log_odds, np.float32)
        flipped, done = np.empty((n, self._graph.observables.shape[1]), np.uint8), np.empty(n, np.uint8)
        status = function(self._checked, n, self._row_bytes, *self._fixed, *addresses(values, shots, flipped, done))
        if status == NOT_FINITE:
            raise ValueError("log-odds hold values that are not finite")
        self._checked = status == 0  # checking takes as long as matching one shot
        predictions = flipped.view(bool)
        if status != 0 or np.count_nonzero(done) < n:
            left = done == 0 if status == 0 else np.ones(n, bool)  # without memory in C, PyMatching decodes all
            predictions[left] = self._decode_edges(detection_events[left], log_odds[left])
        return predictions

    def _decode_edges(self, detection_events: np.ndarray, log_odds: np.ndarray) -> np.ndarray:
        """Decode by way of the selected edges."""
        events = unpack(detection_events, self._n_detectors)[:, self._graph.in_sector]
        edges = self._weighted.decode_batch(events, -log_odds)
        return (edges @ self._graph.observables & 1).astype(bool)
