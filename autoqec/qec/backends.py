"""Classical decoders behind one protocol. Built once; reweighted, never rebuilt from a DEM per shot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

import numpy as np
import pymatching
import scipy.sparse as sp

from autoqec.contracts.dsl import OutputMode
from autoqec.errors import UsageError
from autoqec.qec.bp import BpDecoder, PostProcessing
from autoqec.qec.decoder_trust import external_decoder
from autoqec.qec.external_decoders import ExternalDecoder
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import pack, unpack
from autoqec.qec.weighted_mwpm import WeightedMatcher


class Backend(Protocol):
    """decode: packed detection events uint8 [n, ceil(n_detectors / 8)] -> bool [n, n_observables]."""

    name: str

    def decode(self, detection_events: np.ndarray) -> np.ndarray: ...


class SoftBackend(Backend, Protocol):
    """decode_soft: also log-odds float32 [n, n_edges], each shot decoded exactly under its own."""

    def decode_soft(self, detection_events: np.ndarray, log_odds: np.ndarray) -> np.ndarray: ...


class Mwpm:
    """Minimum-weight perfect matching on the components that hold an observable (PyMatching).

    https://github.com/oscarhiggott/PyMatching
    """

    name = "mwpm"

    def __init__(self, problem: Problem) -> None:
        graph = problem.matching_graph
        self._n_detectors = problem.n_detectors
        self._graph = graph
        inside = np.zeros((1, problem.n_detectors), np.uint8)
        inside[0, graph.in_sector] = 1
        self._in_sector_mask = np.packbits(inside, axis=1, bitorder="little")
        self._matcher = WeightedMatcher(graph.check_matrix)
        self._packed_matching = self._build_packed_matching(problem)

    def _build_packed_matching(self, problem: Problem) -> pymatching.Matching:
        """The same graph over all detector ids, so that packed shots need no repacking."""
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
        in_sector = detection_events & self._in_sector_mask
        columns = -(-self._packed_matching.num_detectors // 8)  # detectors beyond the last edge have no bit to give
        return self._packed_matching.decode_batch(
            np.ascontiguousarray(in_sector[:, :columns]), bit_packed_shots=True
        ).astype(bool)

    def decode_soft(self, detection_events: np.ndarray, log_odds: np.ndarray) -> np.ndarray:
        """Each shot exactly, under weights -log_odds clipped to +-MAX_LOG_ODDS nats.

        Raises ValueError on a wrong shape or a value that is not finite.
        """
        graph = self._graph
        if log_odds.shape != (len(detection_events), graph.n_edges):
            raise ValueError(f"log-odds have shape {log_odds.shape}, expected {(len(detection_events), graph.n_edges)}")
        selected = self._matcher.solve(unpack(detection_events, self._n_detectors)[:, graph.in_sector], log_odds)
        return (selected @ graph.observables & 1).astype(bool)


class CorrelatedMwpm:
    """PyMatching's two-pass correlated matching on the full decomposed DEM."""

    name = "mwpm_correlated"

    def __init__(self, problem: Problem) -> None:
        self._matching = pymatching.Matching.from_detector_error_model(problem.dem, enable_correlations=True)

    def decode(self, detection_events: np.ndarray) -> np.ndarray:
        predictions = self._matching.decode_batch(detection_events, bit_packed_shots=True, enable_correlations=True)
        return predictions.astype(bool)


def _bp_factory(
    post_processing: PostProcessing, name: str, order: int | None = None, joint: bool = False
) -> Callable[[Problem], Backend]:
    """The env's own BP settings, but for a fixed order where the name gives one."""

    def build(problem: Problem) -> Backend:
        settings = problem.env.bp if order is None else problem.env.bp.model_copy(update={"order": order})
        return BpDecoder(problem, post_processing, settings, name, joint=joint)

    return build


BACKENDS: dict[str, Callable[[Problem], Backend]] = {
    "mwpm": Mwpm,
    "mwpm_correlated": CorrelatedMwpm,
    "bposd": _bp_factory("bposd", "bposd"),
    "bplsd": _bp_factory("bplsd", "bplsd"),
    "bposd0": _bp_factory("bposd", "bposd0", 0),
    "bposd_cs10": _bp_factory("bposd", "bposd_cs10", 10),
    "bposd_joint": _bp_factory("bposd", "bposd_joint", joint=True),
}


def make_backend(name: str, problem: Problem) -> Backend:
    """A backend by its name in an env; UsageError lists the known ones."""
    if (spec := external_decoder(name)) is not None:
        return ExternalDecoder(problem, name, spec)
    if name not in BACKENDS:
        raise UsageError(
            f"unknown backend {name!r}", location="env field `backend`", hint=f"choose one of {', '.join(BACKENDS)}"
        )
    return BACKENDS[name](problem)


class HardFlipBackend:
    """A backend behind applied corrections: mechanisms with log-odds above 0 are taken as having happened.

    Their detectors are cleaned from the syndrome and their observables added to the backend's answer: the
    correction moves the logical frame, and to clean without tracking that would be wrong.
    """

    def __init__(self, problem: Problem, backend: Backend) -> None:
        self.name = backend.name
        self._backend = backend
        self._n_detectors = problem.n_detectors
        self._mechanism_to_detectors = problem.H.T.astype(np.int32).tocsr()
        self._mechanism_to_observables = problem.L.T.astype(np.int32).tocsr()

    def decode(self, detection_events: np.ndarray) -> np.ndarray:
        return self._backend.decode(detection_events)

    def decode_soft(self, detection_events: np.ndarray, log_odds: np.ndarray) -> np.ndarray:
        """log_odds: [n, n_faults]. Raises ValueError on a wrong shape or a value that is not finite."""
        expected = (len(detection_events), self._mechanism_to_detectors.shape[0])
        if log_odds.shape != expected:
            raise ValueError(f"log-odds have shape {log_odds.shape}, expected {expected}")
        if not np.isfinite(log_odds).all():
            raise ValueError("log-odds hold values that are not finite")
        cleaned, frame = self.apply(detection_events, log_odds > 0)
        return self._backend.decode(cleaned) ^ frame

    def apply(self, detection_events: np.ndarray, flips: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Cleaned syndrome (packed) and the observables' frame, bool [n, n_observables]; flips: bool [n, n_faults]."""
        selected = sp.csr_matrix(flips.astype(np.int32))
        events = ((selected @ self._mechanism_to_detectors).toarray() & 1).astype(np.uint8)
        frame = ((selected @ self._mechanism_to_observables).toarray() & 1).astype(bool)
        return detection_events ^ pack(events), frame


def make_soft_backend(problem: Problem, output_mode: OutputMode = "soft_priors") -> SoftBackend:
    """The env's backend as a predecoder of this output mode drives it; its outputs go to `decode_soft`."""
    backend = make_backend(problem.env.backend, problem)
    return HardFlipBackend(problem, backend) if output_mode == "hard_flip" else cast(SoftBackend, backend)
