"""The baselines a candidate is shown beside: every member on the same shots."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pymatching
from numpy.typing import NDArray

from autoqec.contracts.verdict import BaselineResult, PairedEffect
from autoqec.qec import backends
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import Shots, sample
from autoqec.qec.stats import error_mask, rate
from autoqec.verification.shot_stream import CHUNK

REFERENCE_SEED = 2**62  # public, and apart from every candidate's draw
_REFERENCE_CACHE: dict[tuple[str, str, str, int], tuple[int, int]] = {}


class Baselines:
    """The env's baselines, built once; the plain backend is always among them."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.names = tuple(dict.fromkeys((problem.env.plain, *problem.env.baselines)))
        self._decoders = {name: backends.make_backend(name, problem) for name in self.names}

    def error_mask(self, shots: Shots) -> dict[str, NDArray[np.bool_]]:
        """bool [n] a member: the shots it loses."""
        return {
            name: error_mask(decoder.decode(shots.detection_events), shots.observables)
            for name, decoder in self._decoders.items()
        }

    def results(self, effects: dict[str, PairedEffect]) -> tuple[BaselineResult, ...]:
        rounds = self.problem.env.code.rounds
        return tuple(
            BaselineResult(
                name=name,
                rate=rate(effects[name].counts.errors_reference, effects[name].counts.shots, rounds=rounds),
                against=effects[name],
                beats=effects[name].delta_low > 0,
            )
            for name in self.names
        )


def reference_errors(problem: Problem, shots: int) -> tuple[int, int]:
    """(errors, shots) of the plain backend on shots of the judge's own; drawn once a process and problem.

    Matching is done by PyMatching alone, on the whole DEM: a plain backend that was spoiled here is seen beside it.
    """
    chunks = -(-shots // CHUNK)
    key = (problem.circuit_sha256, problem.env.plain, repr(problem.env.bp), chunks)
    if key not in _REFERENCE_CACHE:
        decode = _reference_decoder(problem)
        errors = 0
        for index in range(chunks):
            shots_of_chunk = sample(problem, CHUNK, REFERENCE_SEED + index)
            errors += int(error_mask(decode(shots_of_chunk.detection_events), shots_of_chunk.observables).sum())
        _REFERENCE_CACHE[key] = (errors, chunks * CHUNK)
    return _REFERENCE_CACHE[key]


def _reference_decoder(problem: Problem) -> Callable[[NDArray[np.uint8]], NDArray[np.bool_]]:
    if problem.env.plain != "mwpm":
        return backends.make_backend(problem.env.plain, problem).decode
    matching = pymatching.Matching.from_detector_error_model(problem.dem)
    return lambda detection_events: matching.decode_batch(detection_events, bit_packed_shots=True).astype(bool)
