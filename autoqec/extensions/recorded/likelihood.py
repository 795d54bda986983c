"""Refinement of estimated error probabilities by maximum likelihood on small groups of detectors.

The likelihood of whole shots is a sum over all error patterns, but that of the 2**k patterns of detection events in a
group of k detectors is short: the parity of a subset is the product of 1 - 2p over the mechanisms that flip an odd
number of it, and a Walsh-Hadamard transform turns parities into probabilities. The sum of the groups' log-likelihoods
is maximized, a composite likelihood (Varin, Reid and Firth, Statistica Sinica 21, 5, 2011). Unlike the pairs of
`estimation`, groups see three and more detectors fire together, which tells hyperedges from edges.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import scipy.sparse as sp
from scipy.linalg import hadamard
from scipy.optimize import minimize

from autoqec.extensions.recorded.statistics import shared_strength
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import unpack

GROUP = 6  # detectors per group
PATTERNS = 1 << GROUP
MAX_SHOTS = 1 << 20  # shots whose patterns are counted, spread evenly over all
GROUPS_AT_ONCE = 256  # bounds the memory
PRIOR_WIDTH = 1.0  # standard deviation of the logarithm of a mechanism's strength around the scaled model
BOUND = 4.0  # largest change of that logarithm
SMALLEST_PROBABILITY = 1e-12
MAX_ITERATIONS = 300
SMALLEST_EXPECTED = 5.0  # shots; rarer patterns say little about the fit


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

    def watch(self, parts: Iterable[np.ndarray], counted: int = 0) -> Iterator[np.ndarray]:
        """Yield bit-packed parts of the shots unchanged, and count every part, or every n-th of very many shots.

        Args:
            parts: The parts, uint8 [n, ceil(n_detectors / 8)] each.
            counted: Shots at the start that `counts` holds already.
        """
        seen = 0
        for index, part in enumerate(parts):
            if index % max(self._stride, 1) == 0 and seen >= counted:
                self._add(part)
            seen += len(part)
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

    def refine(
        self, scaled: np.ndarray, start: np.ndarray, on_iteration: Callable[[int], None] = lambda done: None
    ) -> np.ndarray:
        """Return the strengths of largest composite likelihood, with a weak log-normal prior.

        Args:
            scaled: float64 [n_mechanisms], strengths at which the prior is centred; positive.
            start: float64 [n_mechanisms], strengths from which the search starts; positive.
            on_iteration: Called with the number of iterations, at most `MAX_ITERATIONS`.
        """

        def objective(change: np.ndarray) -> tuple[float, np.ndarray]:
            strength = scaled * np.exp(change)
            parities, probabilities = self.probabilities(strength)
            slope = (self.counts / probabilities) @ self.transform / PATTERNS * parities @ self.odd
            loss = -(self.counts * np.log(probabilities)).sum() / self.repeated
            gradient = (self.flipped.T @ slope.ravel()) * strength / self.repeated
            return float(loss + (change**2).sum() / (2 * PRIOR_WIDTH**2)), gradient + change / PRIOR_WIDTH**2

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
            callback=lambda _: on_iteration(next(iterations)),
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
