"""Estimation of a detector error model's probabilities from detection events alone.

With s = -log(1 - 2p), the sum of s over the mechanisms that flip detector i is -log(1 - 2 f_i), where f_i is its
detection fraction, and the sum over those that flip both i and j is log(E_ij / (E_i E_j)) / 2, where E is the mean
parity (-1)^events. For a model without hyperedges this is the p_ij analysis of Spitz et al. (Adv. Quantum Technol. 1,
1800012, 2018) and Google Quantum AI (Nature 595, 383, 2021). Here all equations are solved together by weighted least
squares, so that mechanisms that flip more than two detectors get probabilities of their own; a weak prior keeps those
near the model that the events do not determine.

From there, the probabilities are refined by maximum likelihood on small groups of detectors. The likelihood of whole
shots is a sum over all error patterns, but that of the 2**k patterns of detection events in a group of k detectors is
short: the parity of a subset is the product of 1 - 2p over the mechanisms that flip an odd number of it, and a
Walsh-Hadamard transform turns parities into probabilities. The sum of the groups' log-likelihoods is maximized, a
composite likelihood (Varin, Reid and Firth, Statistica Sinica 21, 5, 2011). Unlike pairs, groups see three and more
detectors fire together, which tells hyperedges from edges. The result is used only if it describes the shots: if it
does not, as under leakage, matching does better with the pairs alone (docs/results/recorded-shots.md).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator

import numpy as np
import scipy.sparse as sp
import stim
from scipy.linalg import hadamard
from scipy.optimize import lsq_linear, minimize

from autoqec.errors import UsageError
from autoqec.extensions.recorded.shots import SILENT, Progress
from autoqec.qec.event_statistics import (
    MAX_PAIR_DETECTORS,
    SMALLEST_PARITY,
    EventCounts,
    count_events,
    mechanism_strength,
    shared_strength,
)
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import unpack

PRIOR_WIDTH = 1.0  # standard deviation of the prior, relative to the model's scaled strength
SMALLEST = 0.02  # smallest estimate, relative to the model's scaled strength: an absent edge could not be matched
LARGEST_P = 0.49
MAX_MISFIT = 1.0  # of the refined model; that of shots of independent mechanisms is below, at any number of shots

GROUP = 6  # detectors per group
PATTERNS = 1 << GROUP
MAX_SHOTS = 1 << 20  # shots whose patterns are counted, spread evenly over all
GROUPS_AT_ONCE = 256  # bounds the memory
LOG_PRIOR_WIDTH = 1.0  # standard deviation of the logarithm of a mechanism's strength around the scaled model
BOUND = 4.0  # largest change of that logarithm
SMALLEST_PROBABILITY = 1e-12
MAX_ITERATIONS = 300
SMALLEST_EXPECTED = 5.0  # shots; rarer patterns say little about the fit


def estimate_dem(
    problem: Problem, parts: Iterable[np.ndarray], shots: int, progress: Progress = SILENT
) -> stim.DetectorErrorModel:
    """Return the problem's detector error model with probabilities estimated from detection events.

    Args:
        problem: The env with the model whose mechanisms are kept.
        parts: Detection events of training shots, bit-packed, uint8 [n, ceil(n_detectors / 8)] each; read once.
        shots: Number of training shots.
        progress: Reports the reading and the fit.

    Raises:
        UsageError: There are no detection events, or more detectors than pairs are counted for.
    """
    if problem.n_detectors > MAX_PAIR_DETECTORS:
        raise UsageError(
            f"the model has {problem.n_detectors} detectors, at most {MAX_PAIR_DETECTORS} can be estimated",
            hint="estimate the model of fewer rounds",
        )
    patterns = PatternCounter(problem, shots)
    watched = progress.watch("estimating the model", patterns.watch(parts), shots, len)
    counts = count_events(watched, problem.n_detectors)
    if counts.shots == 0 or not counts.single.any():
        raise UsageError("no detection events to estimate a model from", hint="use more shots")
    scaled, strength = match_moments(problem, counts)
    model = GroupModel(problem, patterns)
    refined = model.refine(scaled, strength, progress)
    if model.misfit(refined) <= MAX_MISFIT:
        strength = refined
    probs = np.minimum((1 - np.exp(-strength)) / 2, LARGEST_P)
    return with_probabilities(problem.dem, np.where(problem.mechanism_probs > 0, probs, 0.0))


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


def detector_groups(problem: Problem) -> np.ndarray:
    """Return int64 [n_groups, GROUP]: the detectors of each mechanism with their closest neighbours, padded with -1."""
    columns = problem.H.tocsc()
    shared = shared_strength(problem.H, problem.mechanism_probs)
    np.fill_diagonal(shared, 0)
    flipped = [columns.indices[start:stop] for start, stop in zip(columns.indptr, columns.indptr[1:], strict=False)]
    groups = set()
    for support in {tuple(sorted(detectors.tolist()))[:GROUP] for detectors in flipped if len(detectors)}:
        members = list(support)
        while len(members) < GROUP:
            strength = shared[members].sum(0)
            strength[members] = 0
            closest = int(strength.argmax())
            if strength[closest] <= 0:
                break
            members.append(closest)
        groups.add(tuple(sorted(members)) + (-1,) * (GROUP - len(members)))
    return np.array(sorted(groups), np.int64).reshape(-1, GROUP)


class PatternCounter:
    """Counts the patterns of detection events in groups of detectors, while the shots are read for another purpose.

    Attributes:
        groups: int64 [n_groups, GROUP].
        counts: int64 [n_groups, PATTERNS]; bit k of a pattern is the event of the group's detector k.
    """

    def __init__(self, problem: Problem, shots: int) -> None:
        self.groups = detector_groups(problem)
        self.counts = np.zeros((len(self.groups), PATTERNS), np.int64)
        self._stride = -(-shots // MAX_SHOTS)
        self._detectors = problem.n_detectors

    def watch(self, parts: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        """Yield bit-packed parts, uint8 [n, ceil(n_detectors / 8)]; count every part, or every n-th of very many."""
        for index, part in enumerate(parts):
            if index % max(self._stride, 1) == 0:
                self._add(part)
            yield part

    def _add(self, packed: np.ndarray) -> None:
        events = np.zeros((self._detectors + 1, len(packed)), np.uint8)  # the last row is that of the padding -1
        events[:-1] = unpack(packed, self._detectors).T
        for first in range(0, len(self.groups), GROUPS_AT_ONCE):
            groups = self.groups[first : first + GROUPS_AT_ONCE]
            patterns = np.zeros((len(groups), len(packed)), np.uint8)
            for bit in range(GROUP):
                patterns |= events[groups[:, bit]] << np.uint8(bit)
            codes = patterns + np.arange(0, len(groups) * PATTERNS, PATTERNS)[:, None]
            counted = np.bincount(codes.ravel(), minlength=len(groups) * PATTERNS)
            self.counts[first : first + len(groups)] += counted.reshape(len(groups), PATTERNS)


class GroupModel:
    """Probabilities of the patterns of all groups, as a function of the mechanisms' strengths -log(1 - 2p)."""

    def __init__(self, problem: Problem, patterns: PatternCounter) -> None:
        self.counts = patterns.counts.astype(float)
        self.flipped = _flipped_patterns(problem, patterns.groups)
        self.transform = hadamard(PATTERNS).astype(float)
        self.odd = (1 - self.transform) / 2  # odd[a, b]: whether pattern a flips the parity of subset b
        # groups overlap: shots count as often as the mean detector is in a group, and the prior only once
        self.repeated = max((patterns.groups >= 0).sum() / problem.n_detectors, 1.0)

    def probabilities(self, strength: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the parities of all subsets and the probabilities of all patterns, [n_groups, PATTERNS] each."""
        parities = np.exp(-(self.flipped @ strength).reshape(-1, PATTERNS) @ self.odd)
        return parities, np.maximum(parities @ self.transform / PATTERNS, SMALLEST_PROBABILITY)

    def refine(self, scaled: np.ndarray, start: np.ndarray, progress: Progress = SILENT) -> np.ndarray:
        """Return the strengths of largest composite likelihood, with a weak log-normal prior.

        Args:
            scaled: float64 [n_mechanisms], strengths at which the prior is centred; positive.
            start: float64 [n_mechanisms], strengths from which the search starts; positive.
            progress: Reports the number of iterations.
        """

        def objective(change: np.ndarray) -> tuple[float, np.ndarray]:
            strength = scaled * np.exp(change)
            parities, probabilities = self.probabilities(strength)
            slope = (self.counts / probabilities) @ self.transform / PATTERNS * parities @ self.odd
            loss = -(self.counts * np.log(probabilities)).sum() / self.repeated
            gradient = (self.flipped.T @ slope.ravel()) * strength / self.repeated
            return float(loss + (change**2).sum() / (2 * LOG_PRIOR_WIDTH**2)), gradient + change / LOG_PRIOR_WIDTH**2

        first = np.clip(np.log(start / scaled), -BOUND, BOUND)
        bounds = [(-BOUND, BOUND)] * len(scaled)
        options = {"maxiter": MAX_ITERATIONS, "maxcor": 20}
        iterations = itertools.count(1)
        found = minimize(
            objective,
            first,
            jac=True,
            method="L-BFGS-B",
            bounds=bounds,
            options=options,
            callback=lambda _: progress.report("fitting the model", next(iterations), MAX_ITERATIONS),
        )
        refined: np.ndarray = scaled * np.exp(found.x)
        return refined

    def misfit(self, strength: np.ndarray) -> float:
        """Return the mean of (observed - expected)**2 / expected over the patterns that are expected often enough.

        It is about 1 for the true model, less for a fitted one, and grows with the shots if no model of independent
        mechanisms describes them, because of leakage or drift.
        """
        expected = self.probabilities(strength)[1] * self.counts.sum(1, keepdims=True)
        often = expected >= SMALLEST_EXPECTED
        return float(((self.counts - expected)[often] ** 2 / expected[often]).sum() / max(often.sum(), 1))


def _flipped_patterns(problem: Problem, groups: np.ndarray) -> sp.csr_matrix:
    """Return 0/1 [n_groups * PATTERNS, n_mechanisms]: which pattern of each group a mechanism flips."""
    n_groups = len(groups)
    group, bit = np.nonzero(groups >= 0)
    weights = sp.csr_matrix((2.0**bit, (group, groups[group, bit])), shape=(n_groups, problem.n_detectors))
    codes = (weights @ problem.H.astype(float)).tocoo()
    rows = codes.row.astype(np.int64) * PATTERNS + codes.data.astype(np.int64)
    return sp.csr_matrix((np.ones(len(rows)), (rows, codes.col)), shape=(n_groups * PATTERNS, problem.n_mechanisms))
