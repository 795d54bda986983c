"""Paired evaluation: the baseline decoder and predecoder + inner decoder on the same shots."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np

from autoqec.contracts.round import PairedCounts
from autoqec.decoders import gating
from autoqec.qec import sampling
from autoqec.qec.problem import Problem
from autoqec.qec.stats import count_pairs
from autoqec.runner.agents import PredecoderAgent
from autoqec.runner.shot_source import shot_source

CHUNK = 2048  # shots unpacked and decoded at once

EvaluationProgress = Callable[[PairedCounts, int], None]  # counts so far, total number of shots


def val_counts(
    problem: Problem,
    agent: PredecoderAgent,
    n_shots: int,
    on_progress: EvaluationProgress | None = None,
    recorded: Path | None = None,
) -> PairedCounts:
    """Count logical errors of both decoders on the first `n_shots` validation shots; see `shot_source`."""
    shots = shot_source(problem, recorded).validation(n_shots)
    agent.eval_mode(0)
    plain, candidate = decode_both(problem, agent, shots, on_progress)
    return count_pairs(plain, candidate)


def decode_both(
    problem: Problem, agent: PredecoderAgent, shots: sampling.Shots, on_progress: EvaluationProgress | None = None
) -> tuple[np.ndarray, np.ndarray]:
    """Decode shots with the baseline decoder and with predecoder + inner decoder, in chunks of bounded memory.

    Returns:
        Two bool arrays [n]: whether each decoder got any observable wrong.
    """
    decoder = gating.make_decoder(problem, agent.output_mode, agent.gate)
    plain = (decoder.decode(shots.detection_events) != shots.observables).any(axis=1)
    candidate = np.empty(len(shots), bool)
    for start in range(0, len(shots), CHUNK):
        part = slice(start, min(start + CHUNK, len(shots)))
        packed = shots.detection_events[part]
        predictions = decoder.decode_with(
            packed, lambda selected: agent.infer(sampling.unpack(selected, problem.n_detectors))
        )
        candidate[part] = (predictions != shots.observables[part]).any(axis=1)
        if on_progress is not None:
            on_progress(count_pairs(plain[: part.stop], candidate[: part.stop]), len(shots))
    return plain, candidate
