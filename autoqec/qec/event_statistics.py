"""Parities of detection events, counted in recorded shots and expected under a detector error model.

The parity of a set of detectors is even with probability (1 + E) / 2. Under a model of independent error mechanisms
E is the product of 1 - 2p over the mechanisms that flip an odd number of the set's detectors.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from autoqec.qec.error_stream import Errors
from autoqec.qec.sampling import unpack

MAX_PAIR_DETECTORS = 2048  # pairs are counted among the first; more would need too much memory
SMALLEST_PARITY = 1e-9


@dataclass(frozen=True, eq=False)
class EventCounts:
    """Counts of detection events.

    Attributes:
        shots: Number of shots.
        single: int64 [n_detectors], shots in which each detector fired.
        pairs: float64 [k, k], shots in which both fired, among the first k <= MAX_PAIR_DETECTORS detectors.
    """

    shots: int
    single: np.ndarray
    pairs: np.ndarray

    @cached_property
    def fractions(self) -> np.ndarray:
        """Return float64 [n_detectors], the detection fractions."""
        return self.single / max(self.shots, 1)

    @cached_property
    def correlations(self) -> np.ndarray:
        """Return float64 [k, k], Pearson correlations; 0 on the diagonal and for constants."""
        mean = self.fractions[: len(self.pairs)]
        return _correlations(self.pairs / max(self.shots, 1) - np.outer(mean, mean), mean * (1 - mean))


def count_events(parts: Iterable[np.ndarray], n_detectors: int) -> EventCounts:
    """Count detection events, one part of the shots at a time.

    Args:
        parts: Bit-packed shots, uint8 [n, ceil(n_detectors / 8)] each.
        n_detectors: Number of detectors.
    """
    k = min(n_detectors, MAX_PAIR_DETECTORS)
    shots, single, pairs = 0, np.zeros(n_detectors, np.int64), np.zeros((k, k))
    for packed in parts:
        bits = unpack(packed, n_detectors)
        single += bits.sum(0, dtype=np.int64)
        first = bits[:, :k].astype(np.float32)  # exact: a part has fewer than 2**24 shots
        pairs += first.T @ first
        shots += len(bits)
    return EventCounts(shots, single, pairs)


@dataclass(frozen=True, eq=False)
class ModelStatistics:
    """Detection fractions and correlations that a detector error model predicts.

    Attributes:
        fractions: float64 [n_detectors].
        correlations: float64 [k, k], Pearson, among the first k detectors; 0 on the diagonal.
    """

    fractions: np.ndarray
    correlations: np.ndarray


def model_statistics(H: sp.csr_matrix, probs: np.ndarray) -> ModelStatistics:
    """Return what a model predicts, without sampling.

    Args:
        H: [n_detectors, n_mechanisms] of 0 and 1.
        probs: float64 [n_mechanisms].
    """
    return _statistics(H.astype(float) @ mechanism_strength(probs), shared_strength(H[:MAX_PAIR_DETECTORS], probs))


def statistics_of_first(blocks: Iterable[Errors], n_detectors: int) -> ModelStatistics:
    """Return what a model predicts for its first detectors, from its errors block by block.

    Args:
        blocks: All errors of the model.
        n_detectors: How many detectors, at most MAX_PAIR_DETECTORS.
    """
    single, shared = np.zeros(n_detectors), np.zeros((n_detectors, n_detectors))
    for errors in blocks:
        seen = (errors.targets >= 0) & (errors.targets < n_detectors)
        if not seen.any():
            continue
        error = np.repeat(np.arange(len(errors)), errors.lengths)[seen]
        flips, times = np.unique(error * n_detectors + errors.targets[seen], return_counts=True)
        columns, rows = divmod(flips[times % 2 == 1], n_detectors)  # a detector that occurs twice is not flipped
        H = sp.csr_matrix((np.ones(len(rows)), (rows, columns)), (n_detectors, len(errors)))
        single += H @ mechanism_strength(errors.probabilities)
        shared += shared_strength(H, errors.probabilities)
    return _statistics(single, shared)


def _statistics(strength: np.ndarray, shared: np.ndarray) -> ModelStatistics:
    """Return what follows from the sums of `mechanism_strength` per detector, and of those shared by pairs."""
    single_parity = np.exp(-strength)
    own = np.diagonal(shared)
    single = np.exp(-own)
    both = np.exp(-(own[:, None] + own[None, :] - 2 * shared))
    covariance = (both - np.outer(single, single)) / 4
    return ModelStatistics((1 - single_parity) / 2, _correlations(covariance, (1 - single**2) / 4))


def mechanism_strength(probs: np.ndarray) -> np.ndarray:
    """Return float64 [n_mechanisms], -log(1 - 2p), which adds up over mechanisms."""
    strength: np.ndarray = -np.log(np.maximum(np.abs(1 - 2 * probs), SMALLEST_PARITY))
    return strength


def shared_strength(H: sp.csr_matrix, probs: np.ndarray) -> np.ndarray:
    """Return float64 [n_detectors, n_detectors], the sum of `mechanism_strength` over the mechanisms that flip both."""
    checks = H.astype(float)
    return (checks @ sp.diags(mechanism_strength(probs)) @ checks.T).toarray()


def _correlations(covariance: np.ndarray, variance: np.ndarray) -> np.ndarray:
    scale = np.sqrt(np.maximum(variance, 0))
    scale = np.where(scale > 1e-12, scale, np.inf)
    result = covariance / np.outer(scale, scale)
    np.fill_diagonal(result, 0)
    return result


def similarity(observed: np.ndarray, expected: np.ndarray, shots: int) -> float:
    """Return the cosine between correlations off the diagonal, corrected for the sampling noise of the observed ones.

    Args:
        observed: Correlations of `shots` shots.
        expected: Correlations of the model.
        shots: Number of shots.
    """
    noise = observed.shape[0] * (observed.shape[1] - 1) / max(shots, 1)
    floor = 6 * np.sqrt(noise / max(shots, 1))  # three standard errors of the corrected norm
    norm = np.sqrt(max((observed**2).sum() - noise, floor) * max((expected**2).sum(), 1e-12))
    return float((observed * expected).sum() / norm)
