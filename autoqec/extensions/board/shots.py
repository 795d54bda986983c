"""Shots of a board: detector error models of circuits, and shots that are the same on every machine."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp
import stim

from autoqec.errors import UsageError
from autoqec.qec.problem import incidence_matrices, read_mechanisms
from autoqec.qec.sampling import Shots, pack
from autoqec.reporting.text import pluralize

BLOCK_SHOTS = 1000
# Shots from which decoders estimate: no measurement has a negative seed.
TRAINING_SEED, TRAINING_BLOCKS = -1, 100
PART_SHOTS = 125  # shots drawn at once, which is part of the definition of a block; few shots are measured in parts
PARTS = BLOCK_SHOTS // PART_SHOTS


@dataclass(frozen=True, eq=False)
class Model:
    """A circuit's detector error model.

    Attributes:
        dem: The flattened model, decomposed into graph-like parts where stim can do it.
        matchable: Whether it is decomposed, so that matching applies.
        probs: float64 [n_mechanisms].
        H: uint8 csr [n_detectors, n_mechanisms].
        L: uint8 csr [n_observables, n_mechanisms].
    """

    dem: stim.DetectorErrorModel
    matchable: bool
    probs: np.ndarray
    H: sp.csr_matrix
    L: sp.csr_matrix

    @classmethod
    def of(cls, circuit: stim.Circuit, *, location: str) -> Model:
        """Compute the model of a circuit, as sinter does for its decoders.

        Raises:
            UsageError: The circuit has no detectors or observables, or stim cannot compute its errors.
        """
        if circuit.num_detectors == 0 or circuit.num_observables == 0:
            raise UsageError(
                f"the circuit has {pluralize(circuit.num_detectors, 'detector')} and "
                f"{pluralize(circuit.num_observables, 'observable')}; a decoder needs at least one of each",
                location=location,
                hint="add DETECTOR and OBSERVABLE_INCLUDE lines to the circuit",
            )
        try:
            dem, matchable = _error_model(circuit)
        except ValueError as error:
            reason = str(error).strip().splitlines()[0]
            raise UsageError(
                f"stim cannot compute its detector error model ({reason})",
                location=location,
                hint="stim analyze_errors --in FILE",
            ) from error
        return cls.of_dem(dem, matchable=matchable)

    @classmethod
    def of_dem(cls, dem: stim.DetectorErrorModel, *, matchable: bool) -> Model:
        """Return a flattened detector error model as one that can be sampled."""
        probs, mechanisms = read_mechanisms(dem)
        H, L = incidence_matrices(mechanisms, dem.num_detectors, dem.num_observables)
        return cls(dem, matchable, probs, H, L)

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the model's text."""
        return hashlib.sha256(str(self.dem).encode()).hexdigest()

    @cached_property
    def _flips(self) -> sp.csr_matrix:
        """int32 csr [n_mechanisms, n_detectors + n_observables]."""
        return sp.vstack([self.H, self.L]).T.astype(np.int32).tocsr()

    def sample(self, seed: int, block: int) -> Shots:
        """Draw the shots of one block: every error mechanism occurs independently with its probability.

        The random bits are the raw output of PCG64, which no version of numpy may change, and a probability is
        rounded to a multiple of 2**-32. Unlike stim's sampler, whose shots depend on the SIMD width of the processor,
        this gives the same shots on every machine.
        """
        parts = [self.sample_part(seed, block * PARTS + index) for index in range(PARTS)]
        events, observables = ([getattr(part, name) for part in parts] for name in ("detection_events", "observables"))
        return Shots(np.concatenate(events), np.concatenate(observables))

    def sample_part(self, seed: int, part: int) -> Shots:
        """Draw an eighth of the shots of block `part // 8`, the same as those of the whole block."""
        block, index = divmod(part, PARTS)
        digest = hashlib.sha256(f"{self.sha256}\x1f{seed}\x1f{block}".encode()).digest()
        thresholds = np.round(self.probs * 2**32).astype(np.uint64)
        n_words = -(-PART_SHOTS * len(thresholds) // 2)
        generator = np.random.PCG64(int.from_bytes(digest[:16], "big"))
        generator.advance(index * n_words)
        words = generator.random_raw(n_words).astype("<u8").view("<u4")
        occurred = words[: PART_SHOTS * len(thresholds)].reshape(PART_SHOTS, -1) < thresholds
        bits = ((sp.csr_matrix(occurred, dtype=np.int32) @ self._flips).toarray() & 1).astype(np.uint8)
        n_detectors = self.H.shape[0]
        return Shots(pack(bits[:, :n_detectors]), bits[:, n_detectors:].astype(bool))


def _error_model(circuit: stim.Circuit) -> tuple[stim.DetectorErrorModel, bool]:
    """Return the flattened model, and whether it is decomposed."""
    try:
        dem = circuit.detector_error_model(decompose_errors=True, approximate_disjoint_errors=True)
    except ValueError:
        return circuit.detector_error_model(approximate_disjoint_errors=True).flattened(), False
    return dem.flattened(), True
