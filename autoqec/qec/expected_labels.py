"""Expected labels: the probability of each edge, given what the sampled errors flip outside the decoded sector.

The part of an error mechanism outside the sector is all that a net that reads the other sector can learn from. Error
mechanisms that flip the same out-of-sector detectors form a group, and given the parity of each group the edges of a
shot have a probability that is known exactly. In place of the sampled edges, that probability is a label with the same
mean for every syndrome of the other sector and a smaller variance (Rao-Blackwell): mechanisms without an out-of-sector
part, and the choice between the members of a group, are averaged over and not sampled.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp

from autoqec.contracts.dsl import OutputMode
from autoqec.qec.problem import Problem

TINY = 1e-12  # smallest size of a factor whose logarithm is taken


class ExpectedLabels:
    """Labels of the variables of one output mode.

    With (-1)^edge as a product over independent groups, its mean is the product of the means of the groups' factors. If
    A and B are the products of 1 - 2p over the members of a group that flip the edge and those that do not, the mean of
    a factor is (A + B) / (1 + A B) for an even number of errors in the group and (A - B) / (1 - A B) for an odd one.

    Args:
        problem: The decoding problem.
        output_mode: Whether a variable is an edge or (hard_flip) an error mechanism.
    """

    def __init__(self, problem: Problem, output_mode: OutputMode) -> None:
        flips = sp.csr_matrix(problem.variables(output_mode).mechanism_to_edge)
        factors = 1 - 2 * problem.mechanism_probs
        group = _groups(problem)
        self._even = _products(flips, factors, np.nonzero(group < 0)[0])
        self._members = sp.csr_matrix(
            (np.ones(np.count_nonzero(group >= 0), np.int32), (np.nonzero(group >= 0)[0], group[group >= 0])),
            (len(group), max(int(group.max(initial=-1)) + 1, 1)),
        )
        self._log_ratio = sp.lil_matrix((self._members.shape[1], flips.shape[1]), dtype=np.float32)
        self._negative = sp.lil_matrix(self._log_ratio.shape, dtype=np.int32)
        for number, members in enumerate(np.split(np.argsort(group, kind="stable"), _starts(group))[1:]):
            edges, even, odd = _group_means(flips[members], factors[members])
            even = np.where(np.abs(even) < TINY, TINY, even)  # in both: the product of an odd group is its mean again
            self._even[edges] *= even
            ratio = odd / even
            self._log_ratio[number, edges] = np.log(np.maximum(np.abs(ratio), TINY))
            self._negative[number, edges] = ratio < 0
        self._log_ratio, self._negative = self._log_ratio.tocsr(), self._negative.tocsr()

    def __call__(self, mechanisms: sp.csr_matrix) -> np.ndarray:
        """Return float32 [n, n_edges] for the error mechanisms that occurred, int32 [n, n_mechanisms] of 0 and 1."""
        odd = mechanisms @ self._members
        odd.data &= 1
        odd.eliminate_zeros()
        mean: np.ndarray = np.exp((odd.astype(np.float32) @ self._log_ratio).toarray())
        mean *= self._even.astype(np.float32)
        signs = (odd @ self._negative).tocoo()
        turned = (signs.data & 1).astype(bool)
        mean[signs.row[turned], signs.col[turned]] *= -1
        return np.clip((1 - mean) / 2, 0, 1)


def _groups(problem: Problem) -> np.ndarray:
    """Return int [n_mechanisms], the group of each error mechanism; -1 without out-of-sector detectors."""
    outside = sp.csc_matrix(sp.csr_matrix(problem.H)[problem.graph.out_of_sector])
    outside.sort_indices()
    numbers: dict[bytes, int] = {}
    group = np.full(outside.shape[1], -1)
    for mechanism in np.nonzero(np.diff(outside.indptr))[0]:
        detectors = outside.indices[outside.indptr[mechanism] : outside.indptr[mechanism + 1]]
        group[mechanism] = numbers.setdefault(detectors.tobytes(), len(numbers))
    return group


def _starts(group: np.ndarray) -> np.ndarray:
    """Return where each group begins in the sorted order of the mechanisms, after those without a group."""
    return np.searchsorted(np.sort(group), np.arange(group.max(initial=-1) + 1))


def _products(flips: sp.csr_matrix, factors: np.ndarray, members: np.ndarray) -> np.ndarray:
    """Return float64 [n_edges], the products of the factors of those members that flip an edge."""
    found = flips[members].tocoo()
    odd = (found.data & 1).astype(bool)
    product = np.ones(flips.shape[1])
    np.multiply.at(product, found.col[odd], factors[members][found.row[odd]])
    return product


def _group_means(flips: sp.csr_matrix, factors: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the edges that a group's members flip, and the means of (-1)^edge for an even and an odd group."""
    found = flips.tocoo()
    odd = (found.data & 1).astype(bool)
    edges, column = np.unique(found.col[odd], return_inverse=True)
    hit = np.zeros((len(factors), len(edges)), bool)
    hit[found.row[odd], column] = True
    a = np.where(hit, factors[:, None], 1.0).prod(axis=0)
    b = np.where(hit, 1.0, factors[:, None]).prod(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        even, odd = (a + b) / (1 + a * b), (a - b) / (1 - a * b)
    return edges, np.where(np.isfinite(even), even, 1.0), np.where(np.isfinite(odd), odd, 1.0)
