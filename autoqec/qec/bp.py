"""Belief propagation with OSD or LSD post-processing on the error mechanisms of the DEM.

Uses ldpc (https://github.com/quantumgizmos/ldpc). All detectors are decoded together, or those of one sector
(`bp.sector`).
"""

from __future__ import annotations

import logging
from typing import Any, Literal

import numpy as np
import scipy.sparse as sp

from autoqec.contracts.env import BpSettings
from autoqec.qec.graph import TannerGraph
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import unpack

PostProcessing = Literal["bposd", "bplsd"]
MIN_CHANNEL_PROB = 1e-9  # ldpc requires channel probabilities strictly inside (0, 1)
# ldpc 2.4.1 writes `lsd_order` bytes into a buffer of one byte per redundant column of a cluster, and a cluster may
# have a single one (https://github.com/quantumgizmos/ldpc/issues/105). The smallest block of malloc holds 24 bytes.
MAX_LSD_ORDER = 24
_LOG = logging.getLogger(__name__)


class BpDecoder:
    """Belief propagation with post-processing; per-shot priors are set as channel probabilities without rebuilding.

    Args:
        problem: The decoding problem.
        post_processing: `bposd` or `bplsd`.
        settings: Settings of the env.
        name: Name in reports.
        joint: Decode all detectors and error mechanisms, even if the env restricts decoding to one sector.
    """

    def __init__(
        self, problem: Problem, post_processing: PostProcessing, settings: BpSettings, name: str, *, joint: bool = False
    ) -> None:
        self.name = name
        self._n_detectors = problem.n_detectors
        graph = problem.graph if isinstance(problem.graph, TannerGraph) and not joint else problem.mechanisms
        self._in_sector = graph.in_sector
        self._prior = graph.prior
        self._flips = sp.csr_matrix(graph.observables)
        self._decoder = make_ldpc(graph, post_processing, settings)

    def decode(self, detection_events: np.ndarray) -> np.ndarray:
        """Decode bit-packed detection events, uint8 [n, ceil(n_detectors / 8)], to bool [n, n_observables]."""
        return self._decode(detection_events, None)

    def decode_soft(self, detection_events: np.ndarray, log_odds: np.ndarray) -> np.ndarray:
        """Decode each shot under channel probabilities sigmoid(log_odds), log_odds: float32 [n, n_edges].

        Raises:
            ValueError: Wrong shape, or a value that is not finite.
        """
        if log_odds.shape != (len(detection_events), len(self._prior)):
            raise ValueError(
                f"log-odds have shape {log_odds.shape}, expected {(len(detection_events), len(self._prior))}"
            )
        if not np.isfinite(log_odds).all():
            raise ValueError("log-odds hold values that are not finite")
        try:
            return self._decode(detection_events, log_odds)
        finally:
            self._decoder.update_channel_probs(self._prior)

    def _decode(self, detection_events: np.ndarray, log_odds: np.ndarray | None) -> np.ndarray:
        events = np.ascontiguousarray(unpack(detection_events, self._n_detectors)[:, self._in_sector])
        predictions = np.zeros((len(detection_events), self._flips.shape[1]), bool)
        for shot, syndrome in enumerate(events):
            if log_odds is not None:
                probability = 1 / (1 + np.exp(-log_odds[shot].astype(np.float64)))
                self._decoder.update_channel_probs(np.clip(probability, MIN_CHANNEL_PROB, 1 - MIN_CHANNEL_PROB))
            mechanisms = np.nonzero(self._decoder.decode(syndrome))[0]
            predictions[shot] = np.asarray(self._flips[mechanisms].sum(axis=0)).ravel() & 1
        return predictions


def make_ldpc(graph: TannerGraph, post_processing: PostProcessing, settings: BpSettings) -> Any:
    """Build the decoder of ldpc: OSD-0 or LSD-0 for order 0, else OSD-CS or LSD-CS."""
    from ldpc.bplsd_decoder import BpLsdDecoder
    from ldpc.bposd_decoder import BpOsdDecoder

    order = safe_order(graph.check_matrix, post_processing, settings.order)
    shared: dict[str, Any] = {
        "error_channel": graph.prior.tolist(),
        "max_iter": settings.iterations,
        "bp_method": settings.method,
        "ms_scaling_factor": settings.scaling,
    }
    if post_processing == "bplsd":
        method = "LSD_0" if order == 0 else "LSD_CS"
        return BpLsdDecoder(graph.check_matrix, **shared, lsd_method=method, lsd_order=order)
    method = "OSD_0" if order == 0 else "OSD_CS"
    return BpOsdDecoder(graph.check_matrix, **shared, osd_method=method, osd_order=order)


def safe_order(check_matrix: sp.csc_matrix, post_processing: PostProcessing, order: int) -> int:
    """Clamp the order of a second stage to what ldpc can search without writing outside its buffers.

    Args:
        check_matrix: uint8 [n_checks, n_columns].
        post_processing: The second stage, OSD or LSD.
        order: The order that the env asks for.

    Returns:
        The order, at most n_columns - rank(check_matrix), and at most `MAX_LSD_ORDER` for LSD. A clamped order is
        logged as a warning.
    """
    from ldpc.mod2 import rank

    n_checks, n_columns = check_matrix.shape
    limit = n_columns - n_checks  # rank <= n_checks: the rank itself is needed for small redundancy only
    if order > limit:
        limit = n_columns - rank(sp.csr_matrix(check_matrix))
    if post_processing == "bplsd":
        limit = min(limit, MAX_LSD_ORDER)
    if order > limit:
        _LOG.warning(
            "%s: order %d exceeds the %d that this code allows; using %d", post_processing, order, limit, limit
        )
    return min(order, limit)
