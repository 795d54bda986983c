"""Classical decoders behind one protocol. Built once; reweighted, never rebuilt from a DEM per shot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

import numpy as np
import pymatching
import scipy.sparse as sp

from autoqec.contracts.dsl import OutputMode
from autoqec.errors import InputError
from autoqec.qec.bp import BpDecoder, Stage
from autoqec.qec.decoder_trust import external_decoder
from autoqec.qec.external_decoders import ExternalDecoder
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import pack, unpack
from autoqec.qec.weighted_mwpm import ExactMatcher


class Backend(Protocol):
    """decode: packed detection events uint8 [n, ceil(n_detectors / 8)] -> bool [n, n_observables]."""

    name: str

    def decode(self, detectors: np.ndarray) -> np.ndarray: ...


class SoftBackend(Backend, Protocol):
    """decode_soft: also log-odds float32 [n, n_edges], each shot decoded exactly under its own."""

    def decode_soft(self, detectors: np.ndarray, log_odds: np.ndarray) -> np.ndarray: ...


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
        inside[0, graph.own] = 1
        self._own_bits = np.packbits(inside, axis=1, bitorder="little")
        self._exact = ExactMatcher(graph.check_matrix)
        self._wide = self._build_wide(problem)

    def _build_wide(self, problem: Problem) -> pymatching.Matching:
        """The same graph over all detector ids, so that packed shots need no repacking."""
        matching = pymatching.Matching()
        for (one, two), weight, flips in zip(
            self._graph.endpoints, -self._graph.log_odds, self._graph.observables, strict=True
        ):
            ids = set(np.nonzero(flips)[0].tolist())
            if two < 0:
                matching.add_boundary_edge(int(one), weight=weight, fault_ids=ids, merge_strategy="smallest-weight")
            else:
                matching.add_edge(int(one), int(two), weight=weight, fault_ids=ids, merge_strategy="smallest-weight")
        matching.ensure_num_fault_ids(problem.n_observables)
        return matching

    def decode(self, detectors: np.ndarray) -> np.ndarray:
        own = detectors & self._own_bits
        columns = -(-self._wide.num_detectors // 8)  # detectors beyond the last edge have no bit to give
        return self._wide.decode_batch(np.ascontiguousarray(own[:, :columns]), bit_packed_shots=True).astype(bool)

    def decode_soft(self, detectors: np.ndarray, log_odds: np.ndarray) -> np.ndarray:
        """Each shot exactly, under weights -log_odds clipped to +-MAX_LOG_ODDS nats.

        Raises ValueError on a wrong shape or a value that is not finite.
        """
        graph = self._graph
        if log_odds.shape != (len(detectors), graph.n_edges):
            raise ValueError(f"log-odds have shape {log_odds.shape}, expected {(len(detectors), graph.n_edges)}")
        taken = self._exact.solve(unpack(detectors, self._n_detectors)[:, graph.own], log_odds)
        return (taken @ graph.observables & 1).astype(bool)


class CorrelatedMwpm:
    """PyMatching's two-pass correlated matching on the full decomposed DEM."""

    name = "mwpm_correlated"

    def __init__(self, problem: Problem) -> None:
        self._matching = pymatching.Matching.from_detector_error_model(problem.dem, enable_correlations=True)

    def decode(self, detectors: np.ndarray) -> np.ndarray:
        answers = self._matching.decode_batch(detectors, bit_packed_shots=True, enable_correlations=True)
        return answers.astype(bool)


def _bp(stage: Stage, name: str, order: int | None = None, joint: bool = False) -> Callable[[Problem], Backend]:
    """The env's own BP settings, but for a fixed order where the name gives one."""

    def build(problem: Problem) -> Backend:
        settings = problem.env.bp if order is None else problem.env.bp.model_copy(update={"order": order})
        return BpDecoder(problem, stage, settings, name, joint=joint)

    return build


BACKENDS: dict[str, Callable[[Problem], Backend]] = {
    "mwpm": Mwpm,
    "mwpm_correlated": CorrelatedMwpm,
    "bposd": _bp("bposd", "bposd"),
    "bplsd": _bp("bplsd", "bplsd"),
    "bposd0": _bp("bposd", "bposd0", 0),
    "bposd_cs10": _bp("bposd", "bposd_cs10", 10),
    "bposd_joint": _bp("bposd", "bposd_joint", joint=True),
}


def make(name: str, problem: Problem) -> Backend:
    """A backend by its name in an env; InputError lists the known ones."""
    if (spec := external_decoder(name)) is not None:
        return ExternalDecoder(problem, name, spec)
    if name not in BACKENDS:
        raise InputError(
            f"unknown backend {name!r}", where="env field `backend`", mend=f"choose one of {', '.join(BACKENDS)}"
        )
    return BACKENDS[name](problem)


class HardFlip:
    """A backend behind applied corrections: mechanisms with log-odds above 0 are taken as having happened.

    Their detectors are cleaned from the syndrome and their observables added to the backend's answer: the
    correction moves the logical frame, and to clean without tracking that would be wrong.
    """

    def __init__(self, problem: Problem, backend: Backend) -> None:
        self.name = backend.name
        self._backend = backend
        self._n_detectors = problem.n_detectors
        self._detectors_of = problem.H.T.astype(np.int32).tocsr()
        self._observables_of = problem.L.T.astype(np.int32).tocsr()

    def decode(self, detectors: np.ndarray) -> np.ndarray:
        return self._backend.decode(detectors)

    def decode_soft(self, detectors: np.ndarray, log_odds: np.ndarray) -> np.ndarray:
        """log_odds: [n, n_faults]. Raises ValueError on a wrong shape or a value that is not finite."""
        expected = (len(detectors), self._detectors_of.shape[0])
        if log_odds.shape != expected:
            raise ValueError(f"log-odds have shape {log_odds.shape}, expected {expected}")
        if not np.isfinite(log_odds).all():
            raise ValueError("log-odds hold values that are not finite")
        cleaned, frame = self.apply(detectors, log_odds > 0)
        return self._backend.decode(cleaned) ^ frame

    def apply(self, detectors: np.ndarray, flips: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Cleaned syndrome (packed) and the observables' frame, bool [n, n_observables]; flips: bool [n, n_faults]."""
        taken = sp.csr_matrix(flips.astype(np.int32))
        events = ((taken @ self._detectors_of).toarray() & 1).astype(np.uint8)
        frame = ((taken @ self._observables_of).toarray() & 1).astype(bool)
        return detectors ^ pack(events), frame


def make_soft(problem: Problem, output_mode: OutputMode = "soft_priors") -> SoftBackend:
    """The env's backend as a predecoder of this output mode drives it; its outputs go to `decode_soft`."""
    backend = make(problem.env.backend, problem)
    return HardFlip(problem, backend) if output_mode == "hard_flip" else cast(SoftBackend, backend)
