"""Estimation of a detector error model's probabilities from detection events alone.

With s = -log(1 - 2p), the sum of s over the mechanisms that flip detector i is -log(1 - 2 f_i), where f_i is its
detection fraction, and the sum over those that flip both i and j is log(E_ij / (E_i E_j)) / 2, where E is the mean
parity (-1)^events. For a model without hyperedges this is the p_ij analysis of Spitz et al. (Adv. Quantum Technol. 1,
1800012, 2018) and Google Quantum AI (Nature 595, 383, 2021). Here all equations are solved together by weighted least
squares, so that mechanisms that flip more than two detectors get probabilities of their own; a weak prior keeps those
near the model that the events do not determine. From there, `likelihood` refines the probabilities. Its result is used
only if it describes the shots: if it does not, as under leakage, matching does better with the pairs alone
(docs/results/recorded-shots.md).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import scipy.sparse as sp
import stim
from scipy.optimize import lsq_linear

from autoqec.contracts.base import sha256_bytes
from autoqec.errors import UsageError
from autoqec.extensions.recorded.decoding import first_events
from autoqec.extensions.recorded.likelihood import MAX_ITERATIONS, GroupModel, PatternCounter
from autoqec.extensions.recorded.progress import SILENT, Reading
from autoqec.extensions.recorded.saved_counts import SavedCounts
from autoqec.extensions.recorded.shots import RecordedShots
from autoqec.extensions.recorded.statistics import (
    MAX_PAIR_DETECTORS,
    SMALLEST_PARITY,
    EventCounts,
    count_events,
    mechanism_strength,
)
from autoqec.qec.problem import Problem

PRIOR_WIDTH = 1.0  # standard deviation of the prior, relative to the model's scaled strength
SMALLEST = 0.02  # smallest estimate, relative to the model's scaled strength: an absent edge could not be matched
LARGEST_P = 0.49
MAX_MISFIT = 1.0  # of the refined model; that of shots of independent mechanisms is below, at any number of shots


def estimate_dem(problem: Problem, parts: Iterable[np.ndarray], shots: int) -> stim.DetectorErrorModel:
    """Return the problem's detector error model with probabilities estimated from detection events.

    Args:
        problem: The env with the model whose mechanisms are kept.
        parts: Detection events of training shots, bit-packed, uint8 [n, ceil(n_detectors / 8)] each; read once.
        shots: Number of training shots.

    Raises:
        UsageError: There are no detection events, or more detectors than pairs are counted for.
    """
    _require_estimable(problem)
    patterns = PatternCounter(problem, shots)
    counts = count_events(patterns.watch(parts), problem.n_detectors)
    return with_probabilities(problem.dem, _fit(problem, counts, patterns))


def estimate_recorded(
    problem: Problem, recorded: RecordedShots, shots: int, reading: Reading, **inputs: Any
) -> stim.DetectorErrorModel:
    """Estimate a model from the first recorded shots; see `estimate_dem`.

    Args:
        problem: The env with the model whose mechanisms are kept.
        recorded: The shots.
        shots: Number of training shots.
        reading: Reports and resumes the counting, and keeps the result for the steps after it.
        inputs: What else identifies the shots, for example the hashes of their files if these are known.
    """
    _require_estimable(problem)
    sources = [recorded.directory / name for name in recorded.names]
    inputs |= {"layout": recorded.layout.dump(), "shots": shots, "model": sha256_bytes(str(problem.dem).encode())}
    result = reading.saved("estimate", sources, **inputs)
    if (found := result.load(probs=(problem.n_mechanisms,))) and (found["probs"] <= LARGEST_P).all():
        return with_probabilities(problem.dem, found["probs"])
    patterns = PatternCounter(problem, shots)
    place = reading.saved("training", sources, **inputs)
    saved = SavedCounts(place, problem.n_detectors, patterns=patterns.counts)
    start = saved.load()
    parts = reading.watch("estimating the model", first_events(recorded, shots), shots, len)
    parts = patterns.watch(parts, 0 if start is None else start.shots)
    counts = count_events(parts, problem.n_detectors, start, saved.save_part)
    saved.save_all(counts)
    probs = _fit(problem, counts, patterns, reading)
    result.save(probs=probs)
    return with_probabilities(problem.dem, probs)


def _require_estimable(problem: Problem) -> None:
    if problem.n_detectors > MAX_PAIR_DETECTORS:
        raise UsageError(
            f"the model has {problem.n_detectors} detectors, at most {MAX_PAIR_DETECTORS} can be estimated",
            hint="estimate the model of fewer rounds",
        )


def _fit(problem: Problem, counts: EventCounts, patterns: PatternCounter, reading: Reading = SILENT) -> np.ndarray:
    """Return the estimated probabilities, float64 [n_mechanisms]; UsageError if there are no detection events."""
    if counts.shots == 0 or not counts.single.any():
        raise UsageError("no detection events to estimate a model from", hint="use more shots")
    scaled, strength = match_moments(problem, counts)
    model = GroupModel(problem, patterns)
    refined = model.refine(scaled, strength, lambda done: reading.report("fitting the model", done, MAX_ITERATIONS))
    if model.misfit(refined) <= MAX_MISFIT:
        strength = refined
    probs = np.minimum((1 - np.exp(-strength)) / 2, LARGEST_P)
    return np.where(problem.mechanism_probs > 0, probs, 0.0)


def match_moments(problem: Problem, counts: EventCounts) -> tuple[np.ndarray, np.ndarray]:
    """Solve the equations of single detectors and pairs.

    Args:
        problem: The env with the model.
        counts: Counts of training shots.

    Returns:
        The strengths -log(1 - 2p) of the model scaled to the mean of the detection fractions, and the estimated ones;
        float64 [n_mechanisms] each, all positive.
    """
    matrix, values, deviations = _equations(problem, counts)
    nominal = mechanism_strength(problem.mechanism_probs)
    singles = problem.n_detectors
    nominal = nominal * values[:singles].sum() / max(float((matrix[:singles] @ nominal).sum()), 1e-12)
    nominal = np.maximum(nominal, 1e-9)
    # unknowns are relative to the scaled model, so that all have the same size
    scaled = sp.diags(1 / deviations) @ matrix @ sp.diags(nominal)
    system = sp.vstack([scaled, sp.identity(len(nominal)) / PRIOR_WIDTH]).tocsr()
    target = np.concatenate([values / deviations, np.full(len(nominal), 1 / PRIOR_WIDTH)])
    solution = lsq_linear(system, target, bounds=(SMALLEST, np.inf), tol=1e-8, lsmr_tol="auto").x
    return nominal, solution * nominal


def _equations(problem: Problem, counts: EventCounts) -> tuple[sp.csr_matrix, np.ndarray, np.ndarray]:
    """Return the matrix [equations, mechanisms], the measured sums, and their standard deviations.

    The first equations are those of single detectors, then follow the pairs that some mechanism flips.
    """
    checks = problem.H.astype(float).tocsr()
    shots = counts.shots
    fractions = counts.fractions
    parity = np.maximum(np.abs(1 - 2 * fractions), SMALLEST_PARITY)
    single = -np.log(parity)
    single_deviation = np.sqrt(np.maximum(1 - parity**2, 1 / shots) / shots) / parity
    together = sp.triu(checks @ checks.T, 1).tocoo()
    i, j = together.row, together.col
    both = counts.pairs[i, j] / shots
    pair_parity = np.maximum(1 - 2 * (fractions[i] + fractions[j] - 2 * both), SMALLEST_PARITY)
    pair = np.log(pair_parity / (parity[i] * parity[j])) / 2
    pair_deviation = 2 * np.sqrt((both + 1 / shots) / shots) / pair_parity
    matrix = sp.vstack([checks, checks[i].multiply(checks[j])]).tocsr()
    return matrix, np.concatenate([single, pair]), np.concatenate([single_deviation, pair_deviation])


def with_probabilities(dem: stim.DetectorErrorModel, probs: np.ndarray) -> stim.DetectorErrorModel:
    """Return a flattened model with other probabilities, float64 [n_mechanisms] in its order."""
    result = stim.DetectorErrorModel()
    remaining = iter(probs)
    for instruction in dem.flattened():
        if instruction.type == "error":
            instruction = stim.DemInstruction("error", [float(next(remaining))], instruction.targets_copy())
        result.append(instruction)
    return result
