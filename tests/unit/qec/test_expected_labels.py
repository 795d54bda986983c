"""Expected labels: conditional probabilities of the edges, checked by enumeration."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import scipy.sparse as sp
import stim

from autoqec.contracts.dsl import OutputMode
from autoqec.qec.expected_labels import ExpectedLabels
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import LabelledSampler
from tests.support.envs import problem, repetition

# Detectors 0 and 1 decode the observable. Groups of the others: {2}, {3} and {2, 3}, with one to four members.
MODEL = """
    error(0.1) D0 L0
    error(0.2) D0 D1
    error(0.15) D1
    error(0.1) D0 L0 ^ D2
    error(0.05) D0 D1 ^ D2
    error(0.12) D2
    error(0.3) D0 D1 ^ D2 D3
    error(0.07) D1 ^ D2 D3
    error(0.6) D1 ^ D3
    error(0.08) D0 L0 ^ D1 ^ D3
    error(0.04) D3
"""

# As above, and the mean of an edge is 0 for an even number of errors in a group: 1 - 2p is .8 and -.8, or 0.
UNDECIDED_MODEL = """
    error(0.1) D0 L0
    error(0.2) D0 D1
    error(0.1) D0 L0 ^ D2
    error(0.9) D1 ^ D2
    error(0.25) D0 D1 ^ D2 D3
    error(0.75) D2 D3
    error(0.5) D0 D1 ^ D3
    error(0.3) D1 ^ D3
"""


def small(model: str = MODEL) -> Problem:
    return problem(3).with_other_dem(stim.DetectorErrorModel(model))


@pytest.mark.parametrize("output_mode", ["soft_priors", "hard_flip"])
@pytest.mark.parametrize("model", [MODEL, UNDECIDED_MODEL])
def test_labels_equal_conditional_probabilities_by_enumeration(model: str, output_mode: OutputMode) -> None:
    prob = small(model)
    assert prob.graph.in_sector.tolist() == [0, 1] and prob.n_mechanisms == model.count("error(")
    errors = np.array(list(itertools.product((0, 1), repeat=prob.n_mechanisms)), np.int32)
    chance = np.where(errors == 1, prob.mechanism_probs, 1 - prob.mechanism_probs).prod(axis=1)
    edges = errors @ prob.variables(output_mode).mechanism_to_edge.toarray() % 2
    outside = prob.H[prob.graph.out_of_sector].toarray()
    kinds, kind_of = np.unique(outside, axis=1, return_inverse=True)
    groups = np.stack(
        [errors[:, kind_of == kind].sum(axis=1) % 2 for kind in range(kinds.shape[1]) if kinds[:, kind].any()]
    )
    assert len(groups) == 3
    labels = ExpectedLabels(prob, output_mode)(sp.csr_matrix(errors))
    assert labels.dtype == np.float32 and labels.shape == edges.shape
    for parities in itertools.product((0, 1), repeat=3):
        same = (parities == groups.T).all(axis=1)
        by_hand = np.average(edges[same], axis=0, weights=chance[same])
        assert np.allclose(labels[same], by_hand, atol=1e-5), parities


def test_labels_have_the_mean_of_sampled_labels_and_a_smaller_variance() -> None:
    prob, n = problem(3, 0.01), 100_000
    sampled, expected = (LabelledSampler(prob, 5, labels=labels).draw(n) for labels in ("sampled", "expected"))
    assert np.array_equal(sampled.detections, expected.detections)
    assert np.array_equal(sampled.observables, expected.observables)
    fired = expected.detections[:, prob.graph.out_of_sector] == 1
    difference = sampled.edges - expected.edges
    for shots in (np.ones(n, bool), *fired.T):
        sigma = np.sqrt(difference[shots].var(axis=0) / np.count_nonzero(shots))
        assert (np.abs(difference[shots].mean(axis=0)) < 5 * sigma + 1e-6).all()
    assert expected.edges.var(axis=0).sum() < 0.2 * sampled.edges.var(axis=0).sum()


def test_without_another_sector_labels_are_the_priors() -> None:
    prob = Problem.from_env(repetition())
    labels = LabelledSampler(prob, 5, labels="expected").draw(3).edges
    assert np.allclose(labels, prob.graph.prior, rtol=1e-4)
