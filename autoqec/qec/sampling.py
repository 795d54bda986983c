"""Shots, from named seed streams."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import stim

from autoqec.contracts.dsl import OutputMode
from autoqec.contracts.env import Band
from autoqec.qec.problem import Problem


@dataclass(frozen=True, eq=False)
class Shots:
    """detectors: uint8 [n, ceil(n_detectors / 8)], bit-packed, little-endian. observables: bool [n, n_observables]."""

    detection_events: np.ndarray
    observables: np.ndarray

    def __len__(self) -> int:
        return len(self.detection_events)


@dataclass(frozen=True, eq=False)
class LabelledShots:
    """detections uint8 [n, n_detectors], observables bool [n, n_observables], edges uint8 [n, n_edges].

    edges[i, e] = 1 where an odd number of the shot's mechanisms run over edge e; for hard_flip, over mechanism e.
    """

    detections: np.ndarray
    observables: np.ndarray
    edges: np.ndarray

    def __len__(self) -> int:
        return len(self.detections)


def sample(problem: Problem, n: int, seed: int) -> Shots:
    """n shots of the circuit's own noise (of the DEM's, where there is no circuit).

    The same seed gives the same shots for one stim version and CPU width.
    """
    if isinstance(problem.source, stim.DetectorErrorModel):
        detection_events, observables, _ = problem.source.compile_sampler(seed=seed).sample(n, bit_packed=True)
    else:
        sampler = problem.source.compile_detector_sampler(seed=seed)
        detection_events, observables = sampler.sample(n, separate_observables=True, bit_packed=True)
    return Shots(detection_events, unpack(observables, problem.n_observables).astype(bool))


class LabelledSampler:
    """Shots with the mechanisms that made them: training data. Draws from the DEM (independent mechanisms)."""

    def __init__(self, problem: Problem, seed: int, output_mode: OutputMode = "soft_priors") -> None:
        self.problem = problem
        self._mechanism_to_edge = problem.variables(output_mode).mechanism_to_edge
        self._sampler = problem.dem.compile_sampler(seed=seed)

    def draw(self, n: int) -> LabelledShots:
        problem = self.problem
        detection_events, observables, faults = self._sampler.sample(n, return_errors=True, bit_packed=True)
        edges = sparse_bits(faults, problem.n_mechanisms) @ self._mechanism_to_edge
        edges.data &= 1
        return LabelledShots(
            unpack(detection_events, problem.n_detectors),
            unpack(observables, problem.n_observables).astype(bool),
            edges.astype(np.uint8).toarray(),
        )


def unpack(packed: np.ndarray, n_bits: int) -> np.ndarray:
    """uint8 [n, ceil(n_bits / 8)] -> uint8 [n, n_bits] of 0 and 1."""
    return np.unpackbits(packed, axis=1, count=n_bits, bitorder="little")


def pack(bits: np.ndarray) -> np.ndarray:
    """[n, n_bits] of 0 and 1 -> uint8 [n, ceil(n_bits / 8)]."""
    return np.packbits(bits, axis=1, bitorder="little")


def sparse_bits(packed: np.ndarray, n_bits: int) -> sp.csr_matrix:
    """int32 csr [n, n_bits] of bit-packed rows. Visits only bytes that are not zero: faults are rare."""
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
    """A seed inside `band` (both ends included), fixed by `key`."""
    low, high = band
    digest = hashlib.sha256("\x1f".join(map(str, key)).encode()).digest()
    return low + int.from_bytes(digest[:8], "big") % (high - low + 1)
