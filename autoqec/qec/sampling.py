"""Sampling of shots from deterministic seeds, and packing of bits."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import stim

from autoqec.contracts.dsl import Labels, OutputMode
from autoqec.contracts.env import Band
from autoqec.qec.expected_labels import ExpectedLabels
from autoqec.qec.problem import Problem


@dataclass(frozen=True, eq=False)
class Shots:
    """Sampled shots.

    Attributes:
        detection_events: uint8 [n, ceil(n_detectors / 8)], bit-packed, little-endian.
        observables: bool [n, n_observables], whether each observable flipped.
    """

    detection_events: np.ndarray
    observables: np.ndarray

    def __len__(self) -> int:
        return len(self.detection_events)


@dataclass(frozen=True, eq=False)
class LabelledShots:
    """Sampled shots with the errors that caused them.

    Attributes:
        detections: uint8 [n, n_detectors], detection events.
        observables: bool [n, n_observables].
        edges: uint8 [n, n_edges], 1 if an odd number of the shot's error mechanisms flip the edge; for hard_flip an
            edge is an error mechanism. Expected labels are probabilities, float32.
    """

    detections: np.ndarray
    observables: np.ndarray
    edges: np.ndarray

    def __len__(self) -> int:
        return len(self.detections)


def sample(problem: Problem, n: int, seed: int) -> Shots:
    """Sample n shots from the circuit, or from the detector error model if the env has no circuit.

    The same seed gives the same shots for one version of stim and one SIMD width of the CPU.
    """
    if isinstance(problem.source, stim.DetectorErrorModel):
        detection_events, observables, _ = problem.source.compile_sampler(seed=seed).sample(n, bit_packed=True)
    else:
        sampler = problem.source.compile_detector_sampler(seed=seed)
        detection_events, observables = sampler.sample(n, separate_observables=True, bit_packed=True)
    return Shots(detection_events, unpack(observables, problem.n_observables).astype(bool))


class LabelledSampler:
    """Sampler of training data: shots with the error mechanisms that occurred, drawn independently from the DEM.

    Args:
        problem: The decoding problem.
        seed: Seed of stim's sampler.
        output_mode: Whether a label belongs to an edge or to an error mechanism.
        labels: Sampled: the edges that the mechanisms flip; expected: see `expected_labels`. The shots are the same.
    """

    def __init__(
        self, problem: Problem, seed: int, output_mode: OutputMode = "soft_priors", labels: Labels = "sampled"
    ) -> None:
        self.problem = problem
        self._mechanism_to_edge = problem.variables(output_mode).mechanism_to_edge
        self._expected = ExpectedLabels(problem, output_mode) if labels == "expected" else None
        self._sampler = problem.dem.compile_sampler(seed=seed)

    def draw(self, n: int) -> LabelledShots:
        """Sample the next n shots."""
        problem = self.problem
        detection_events, observables, mechanisms = self._sampler.sample(n, return_errors=True, bit_packed=True)
        return LabelledShots(
            unpack(detection_events, problem.n_detectors),
            unpack(observables, problem.n_observables).astype(bool),
            self._labels(sparse_bits(mechanisms, problem.n_mechanisms)),
        )

    def _labels(self, mechanisms: sp.csr_matrix) -> np.ndarray:
        """Return the labels [n, n_edges] of error mechanisms that occurred, int32 [n, n_mechanisms]."""
        if self._expected is not None:
            return self._expected(mechanisms)
        edges = mechanisms @ self._mechanism_to_edge
        edges.data &= 1
        labels: np.ndarray = edges.astype(np.uint8).toarray()
        return labels


def unpack(packed: np.ndarray, n_bits: int) -> np.ndarray:
    """Unpack uint8 [n, ceil(n_bits / 8)] to uint8 [n, n_bits] of 0 and 1."""
    return np.unpackbits(packed, axis=1, count=n_bits, bitorder="little")


def pack(bits: np.ndarray) -> np.ndarray:
    """Pack [n, n_bits] of 0 and 1 to uint8 [n, ceil(n_bits / 8)]."""
    return np.packbits(bits, axis=1, bitorder="little")


def sparse_bits(packed: np.ndarray, n_bits: int) -> sp.csr_matrix:
    """Convert bit-packed rows to int32 csr [n, n_bits]; fast for rare bits, since only nonzero bytes are visited."""
    rows, byte = np.nonzero(packed)
    values = packed[rows, byte]
    row_parts, column_parts = [], []
    for bit in range(8):
        hit = (values >> bit & 1).astype(bool)
        row_parts.append(rows[hit])
        column_parts.append(byte[hit] * 8 + bit)
    where = (np.concatenate(row_parts), np.concatenate(column_parts))
    return sp.csr_matrix((np.ones(len(where[0]), np.int32), where), (len(packed), n_bits))


def band_seed(band: Band, *key: str | int) -> int:
    """Derive a seed inside `band` (both ends included) from `key`."""
    low, high = band
    digest = hashlib.sha256("\x1f".join(map(str, key)).encode()).digest()
    return low + int.from_bytes(digest[:8], "big") % (high - low + 1)
