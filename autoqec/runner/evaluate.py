"""Plain backend and predecoder on the same shots."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from autoqec.contracts.verdict import PairedCounts
from autoqec.qec import backends, sampling
from autoqec.qec.problem import Problem
from autoqec.qec.stats import count_pairs
from autoqec.runner.agents import PredecoderAgent

VAL_KEY = "val"  # one seed an env: every round is measured on the same shots
CHUNK = 2048  # shots unpacked and decoded at once

EvaluationProgress = Callable[[PairedCounts, int], None]  # counts so far, shots in all


def val_counts(
    problem: Problem, agent: PredecoderAgent, n_shots: int, on_progress: EvaluationProgress | None = None
) -> PairedCounts:
    """Errors of the plain backend and of predecoder + backend on the val band's first `n_shots` shots."""
    shots = sampling.sample(problem, n_shots, sampling.band_seed(problem.env.seed_policy.val, VAL_KEY))
    agent.eval_mode(0)
    plain, candidate = decode_both(problem, agent, shots, on_progress)
    return count_pairs(plain, candidate)


def decode_both(
    problem: Problem, agent: PredecoderAgent, shots: sampling.Shots, on_progress: EvaluationProgress | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """bool [n] each: did the plain backend, did predecoder + backend, miss any observable.

    Works in chunks: memory does not grow with the number of shots.
    """
    backend = backends.make_soft_backend(problem, agent.output_mode)
    plain = (backend.decode(shots.detection_events) != shots.observables).any(axis=1)
    candidate = np.empty(len(shots), bool)
    for start in range(0, len(shots), CHUNK):
        part = slice(start, min(start + CHUNK, len(shots)))
        packed = shots.detection_events[part]
        log_odds = agent.infer(sampling.unpack(packed, problem.n_detectors))
        candidate[part] = (backend.decode_soft(packed, log_odds) != shots.observables[part]).any(axis=1)
        if on_progress is not None:
            on_progress(count_pairs(plain[: part.stop], candidate[: part.stop]), len(shots))
    return plain, candidate
