"""Inner decoders by name, behind one protocol: matching, correlated matching, belief propagation, external decoders.

An inner decoder is built once per problem; per-shot priors reweight it without rebuilding it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

import numpy as np
import pymatching
import scipy.sparse as sp

from autoqec.contracts.dsl import OutputMode
from autoqec.contracts.env import CORRELATED, ESTIMATED
from autoqec.errors import UsageError
from autoqec.qec.bp import BpDecoder, PostProcessing
from autoqec.qec.c_library import addresses
from autoqec.qec.decoder_trust import external_decoder
from autoqec.qec.external_decoders import ExternalDecoder
from autoqec.qec.graph import MatchingGraph
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import pack, unpack
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


class Backend(Protocol):
    """A decoder with fixed priors."""

    name: str

    def decode(self, detection_events: np.ndarray) -> np.ndarray:
        """Decode bit-packed detection events, uint8 [n, ceil(n_detectors / 8)], to bool [n, n_observables]."""
        ...


class SoftBackend(Backend, Protocol):
    """A decoder that also takes priors of its own for every shot."""

    def decode_soft(self, detection_events: np.ndarray, log_odds: np.ndarray) -> np.ndarray:
        """Decode each shot under its own priors.

        Args:
            detection_events: uint8 [n, ceil(n_detectors / 8)], bit-packed.
            log_odds: float32 [n, n_edges], log(p / (1 - p)) of each variable.

        Returns:
            bool [n, n_observables].

        Raises:
            ValueError: Wrong shape, a value that is not finite, or a syndrome that no errors explain.
        """
        ...


class Mwpm:
    """Minimum-weight perfect matching on the components in which an edge flips an observable.

    PyMatching (https://github.com/oscarhiggott/PyMatching) under the priors, `WeightedMatching` under per-shot weights.
    """

    name = "mwpm"

    def __init__(self, problem: Problem) -> None:
        graph = problem.matching_graph
        self._graph = graph
        inside = np.zeros((1, problem.n_detectors), np.uint8)
        inside[0, graph.in_sector] = 1
        self._in_sector_mask = np.packbits(inside, axis=1, bitorder="little")
        self._soft = SoftMatching(graph, problem.n_detectors)
        self._packed_matching = self._build_packed_matching(problem)

    def _build_packed_matching(self, problem: Problem) -> pymatching.Matching:
        """Return the same graph over all detector ids, so that bit-packed shots need no repacking."""
        matching = pymatching.Matching()
        for (u, v), weight, flips in zip(
            self._graph.endpoints, -self._graph.log_odds, self._graph.observables, strict=True
        ):
            ids = set(np.nonzero(flips)[0].tolist())
            if v < 0:
                matching.add_boundary_edge(int(u), weight=weight, fault_ids=ids, merge_strategy="smallest-weight")
            else:
                matching.add_edge(int(u), int(v), weight=weight, fault_ids=ids, merge_strategy="smallest-weight")
        matching.ensure_num_fault_ids(problem.n_observables)
        return matching

    def decode(self, detection_events: np.ndarray) -> np.ndarray:
        """See `Backend.decode`."""
        in_sector = detection_events & self._in_sector_mask
        columns = -(-self._packed_matching.num_detectors // 8)  # without detectors beyond the last edge
        return self._packed_matching.decode_batch(
            np.ascontiguousarray(in_sector[:, :columns]), bit_packed_shots=True
        ).astype(bool)

    def decode_soft(self, detection_events: np.ndarray, log_odds: np.ndarray) -> np.ndarray:
        """See `SoftBackend.decode_soft`; weights are -log_odds, clipped to +-MAX_LOG_ODDS nats."""
        return self._soft.decode(detection_events, log_odds)


class CorrelatedMwpm:
    """PyMatching's two-pass correlated matching on the full decomposed DEM."""

    name = CORRELATED

    def __init__(self, problem: Problem) -> None:
        self._matching = pymatching.Matching.from_detector_error_model(problem.dem, enable_correlations=True)

    def decode(self, detection_events: np.ndarray) -> np.ndarray:
        """See `Backend.decode`."""
        predictions = self._matching.decode_batch(detection_events, bit_packed_shots=True, enable_correlations=True)
        return predictions.astype(bool)


def _bp_factory(
    post_processing: PostProcessing, name: str, order: int | None = None, joint: bool = False
) -> Callable[[Problem], Backend]:
    """Return a factory with the env's BP settings; `order` replaces theirs if given."""

    def build(problem: Problem) -> Backend:
        settings = problem.env.bp if order is None else problem.env.bp.model_copy(update={"order": order})
        return BpDecoder(problem, post_processing, settings, name, joint=joint)

    return build


BACKENDS: dict[str, Callable[[Problem], Backend]] = {
    "mwpm": Mwpm,
    CORRELATED: CorrelatedMwpm,
    "bposd": _bp_factory("bposd", "bposd"),
    "bplsd": _bp_factory("bplsd", "bplsd"),
    "bposd0": _bp_factory("bposd", "bposd0", 0),
    "bposd_cs10": _bp_factory("bposd", "bposd_cs10", 10),
    "bposd_joint": _bp_factory("bposd", "bposd_joint", joint=True),
}


def make_backend(name: str, problem: Problem) -> Backend:
    """Build a decoder by its name in an env (`backend` or `baselines`).

    Raises:
        UsageError: The name is unknown, or the decoder does not take this problem.
    """
    if (spec := external_decoder(name)) is not None:
        return ExternalDecoder(problem, name, spec)
    if name not in BACKENDS:
        raise UsageError(
            f"unknown decoder {name!r}", location="env field `backend`", hint=f"choose one of {', '.join(BACKENDS)}"
        )
    return BACKENDS[name](problem)


def make_baseline(name: str, problem: Problem) -> Backend:
    """Build a baseline by its name in an env: matching with the given model, or with the estimated one.

    Raises:
        UsageError: As `make_backend`, or the env has no estimated model.
    """
    return make_backend(ESTIMATED.get(name, name), problem.estimated if name in ESTIMATED else problem.given)


class HardFlipBackend:
    """An inner decoder applied after a correction: error mechanisms with log-odds above 0 are assumed to have occurred.

    Their detectors are toggled in the syndrome, and their observables are added to the prediction of the inner decoder,
    because the correction changes the logical frame.
    """

    def __init__(self, problem: Problem, backend: Backend) -> None:
        self.name = backend.name
        self._backend = backend
        self._n_detectors = problem.n_detectors
        self._mechanism_to_detectors = problem.H.T.astype(np.int32).tocsr()
        self._mechanism_to_observables = problem.L.T.astype(np.int32).tocsr()

    def decode(self, detection_events: np.ndarray) -> np.ndarray:
        """See `Backend.decode`; no correction is applied."""
        return self._backend.decode(detection_events)

    def decode_soft(self, detection_events: np.ndarray, log_odds: np.ndarray) -> np.ndarray:
        """See `SoftBackend.decode_soft`; log_odds: [n, n_mechanisms]."""
        expected = (len(detection_events), self._mechanism_to_detectors.shape[0])
        if log_odds.shape != expected:
            raise ValueError(f"log-odds have shape {log_odds.shape}, expected {expected}")
        if not np.isfinite(log_odds).all():
            raise ValueError("log-odds hold values that are not finite")
        cleaned, frame = self.apply(detection_events, log_odds > 0)
        return self._backend.decode(cleaned) ^ frame

    def apply(self, detection_events: np.ndarray, flips: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Apply corrections to syndromes.

        Args:
            detection_events: uint8 [n, ceil(n_detectors / 8)], bit-packed.
            flips: bool [n, n_mechanisms], the error mechanisms that are assumed to have occurred.

        Returns:
            The corrected syndromes, bit-packed, and the logical frame, bool [n, n_observables].
        """
        selected = sp.csr_matrix(flips.astype(np.int32))
        events = ((selected @ self._mechanism_to_detectors).toarray() & 1).astype(np.uint8)
        frame = ((selected @ self._mechanism_to_observables).toarray() & 1).astype(bool)
        return detection_events ^ pack(events), frame


def make_soft_backend(problem: Problem, output_mode: OutputMode = "soft_priors") -> SoftBackend:
    """Build the env's inner decoder for a predecoder of this output mode; its outputs go to `decode_soft`."""
    backend = make_backend(problem.env.backend, problem)
    return HardFlipBackend(problem, backend) if output_mode == "hard_flip" else cast(SoftBackend, backend)
