"""Matching for both logical classes: against plain matching, brute force, and unsupported circuits."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from autoqec.contracts.env import CircuitDepolarizing, EnvSpec, FileNoise, SeedPolicy, StimFileCode, StimGeneratorCode
from autoqec.errors import UsageError
from autoqec.qec import backends, logical_classes, sampling, weighted_mwpm
from autoqec.qec.logical_classes import LogicalClassMatcher
from autoqec.qec.problem import Problem

BANDS = SeedPolicy(train=(0, 99), val=(100, 199), holdout=(200, 299))


def generated(task: str, distance: int, rounds: int, p: float = 0.01) -> Problem:
    code = StimGeneratorCode(task=task, distance=distance, rounds=rounds)
    noise = CircuitDepolarizing(p=(p,), target_p=p)
    return Problem.from_env(EnvSpec(name="t", code=code, noise=noise, seed_policy=BANDS))


def from_text(text: str) -> Problem:
    code = StimFileCode(path="t.stim", text=text)
    return Problem.from_env(EnvSpec(name="t", code=code, noise=FileNoise(), seed_policy=BANDS))


@pytest.mark.parametrize(
    ("task", "distance", "rounds"),
    [
        ("surface_code:rotated_memory_z", 3, 3),
        ("surface_code:rotated_memory_x", 5, 2),
        ("surface_code:unrotated_memory_z", 3, 2),
        ("repetition_code:memory", 5, 4),
    ],
)
def test_sign_of_the_gap_is_the_prediction_of_plain_matching(task: str, distance: int, rounds: int) -> None:
    problem = generated(task, distance, rounds)
    shots = sampling.sample(problem, 4000, seed=5)
    complementary_gap = LogicalClassMatcher(problem).complementary_gap(shots.detection_events)
    plain = backends.make_backend("mwpm", problem).decode(shots.detection_events)[:, 0]
    clear = np.abs(complementary_gap) > 1e-2  # ties may fall either way
    assert clear.mean() > 0.9
    assert np.array_equal((complementary_gap < 0)[clear], plain[clear])


def test_solutions_explain_the_syndrome_in_their_class_with_minimum_weight() -> None:
    problem = generated("repetition_code:memory", 3, 1, p=0.03)
    graph = problem.graph
    detections = np.array(list(itertools.product((0, 1), repeat=problem.n_detectors)), np.uint8)
    log_odds = np.random.default_rng(3).normal(-1.5, 1.5, (len(detections), graph.n_edges))
    found = LogicalClassMatcher(problem).match_both_classes(detections, log_odds)
    subsets = np.array(list(itertools.product((0, 1), repeat=graph.n_edges)), np.uint8)
    syndrome = (subsets @ graph.check_matrix.toarray().T) & 1
    flipped = (subsets @ graph.observables[:, 0]) & 1
    for observable, edges in enumerate(found):
        assert np.array_equal(edges @ graph.check_matrix.toarray().T & 1, detections[:, graph.in_sector])
        assert (edges @ graph.observables[:, 0] & 1 == observable).all()
        for shot, row in enumerate(detections[:, graph.in_sector]):
            allowed = (syndrome == row).all(axis=1) & (flipped == observable)
            best = (subsets[allowed] @ -log_odds[shot]).min()
            assert edges[shot] @ -log_odds[shot] == pytest.approx(best, abs=2e-2)


def test_gap_is_the_difference_of_the_solutions_under_the_priors() -> None:
    problem = generated("surface_code:rotated_memory_z", 3, 2)
    detections = sampling.LabelledSampler(problem, 1).draw(200).detections
    matcher = LogicalClassMatcher(problem)
    weights = -problem.graph.log_odds
    unflipped, flipped = matcher.match_both_classes(detections, np.tile(-weights, (200, 1)))
    gap = matcher.complementary_gap(sampling.pack(detections))
    assert gap == pytest.approx(flipped @ weights - unflipped @ weights, abs=2e-2)


def test_cap_clips_the_gap_and_changes_nothing_below_it() -> None:
    problem = generated("surface_code:rotated_memory_z", 3, 3)
    events = sampling.sample(problem, 2000, 1).detection_events
    matcher = LogicalClassMatcher(problem)
    free, capped = matcher.complementary_gap(events), matcher.complementary_gap(events, cap=3.0)
    assert np.abs(capped).max() <= 3.0 + 1e-2
    assert capped == pytest.approx(np.clip(free, -3, 3), abs=2e-2)


@pytest.mark.skipif(weighted_mwpm.compiled_gap() is None, reason="the C extension is not built: pip install -e .")
@pytest.mark.parametrize(
    ("task", "distance", "rounds", "p", "cap"),
    [
        ("surface_code:rotated_memory_z", 5, 5, 0.005, 4.5),
        ("surface_code:rotated_memory_x", 3, 3, 0.01, 30.0),
        ("surface_code:unrotated_memory_z", 3, 2, 0.02, 4.5),
        ("repetition_code:memory", 5, 4, 0.05, 30.0),
    ],
)
def test_gaps_in_c_equal_those_of_pymatching(
    task: str, distance: int, rounds: int, p: float, cap: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = generated(task, distance, rounds, p)
    events = sampling.sample(problem, 20_000, 7).detection_events
    in_c = LogicalClassMatcher(problem)
    gap = in_c.complementary_gap(events, cap)
    assert in_c._capped is not None and in_c._capped.gap(events)[1].mean() > 0.99, "C computed them"
    monkeypatch.setattr(logical_classes, "compiled_gap", lambda: None)
    assert gap == pytest.approx(LogicalClassMatcher(problem).complementary_gap(events, cap), abs=1e-2)
    assert (np.abs(gap) < cap - 0.1).any() and (gap < 0).any()


def test_shots_beyond_the_search_budget_are_matched_by_pymatching(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shots with an event at every detector have clusters that are too large for C."""
    problem = generated("surface_code:rotated_memory_z", 7, 7)
    events = sampling.sample(problem, 20, 1).detection_events
    events[::2] = sampling.pack(np.ones((10, problem.n_detectors), np.uint8))
    matcher = LogicalClassMatcher(problem)
    gap = matcher.complementary_gap(events)
    assert matcher._capped is not None and not matcher._capped.gap(events)[1].all()
    monkeypatch.setattr(logical_classes, "compiled_gap", lambda: None)
    assert gap == pytest.approx(LogicalClassMatcher(problem).complementary_gap(events), abs=1e-2)


INNER_OBSERVABLE = """
X_ERROR(0.1) 0 1
X_ERROR(0.15) 2
X_ERROR(0.2) 3
M 0 1 2 3
DETECTOR rec[-4] rec[-3]
DETECTOR rec[-3] rec[-2]
DETECTOR rec[-2] rec[-1]
OBSERVABLE_INCLUDE(0) rec[-2]
"""


@pytest.mark.parametrize("compiled", [True, False])
def test_gap_of_an_observable_on_an_inner_edge(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """All syndromes of a repetition code whose observable is an inner qubit, against all error sets."""
    if not compiled:
        monkeypatch.setattr(logical_classes, "compiled_gap", lambda: None)
    problem = from_text(INNER_OBSERVABLE)
    matcher, graph = LogicalClassMatcher(problem), problem.matching_graph
    assert matcher._gauge.any()
    syndromes = np.array(list(itertools.product((0, 1), repeat=3)), np.uint8)
    subsets = np.array(list(itertools.product((0, 1), repeat=graph.n_edges)), np.uint8)
    explained, flipped = subsets @ graph.check_matrix.toarray().T & 1, subsets @ graph.observables[:, 0] & 1
    weights = subsets @ -graph.log_odds
    for syndrome, gap in zip(syndromes, matcher.complementary_gap(sampling.pack(syndromes)), strict=True):
        fits = (explained == syndrome[graph.in_sector]).all(axis=1)
        expected = weights[fits & (flipped == 1)].min() - weights[fits & (flipped == 0)].min()
        assert gap == pytest.approx(expected, abs=1e-2)


TWO_OBSERVABLES = """
X_ERROR(0.1) 0 1 2
M 0 1 2
DETECTOR rec[-3] rec[-2]
DETECTOR rec[-2] rec[-1]
OBSERVABLE_INCLUDE(0) rec[-1]
OBSERVABLE_INCLUDE(1) rec[-3]
"""
RING = """
X_ERROR(0.1) 0 1 2
M 0 1 2
DETECTOR rec[-3] rec[-2]
DETECTOR rec[-2] rec[-1]
DETECTOR rec[-1] rec[-3]
OBSERVABLE_INCLUDE(0) rec[-1]
"""
ONE_BOUNDARY = """
X_ERROR(0.1) 0 1
M 0 1
DETECTOR rec[-2] rec[-1]
DETECTOR rec[-1]
OBSERVABLE_INCLUDE(0) rec[-1]
"""


@pytest.mark.parametrize(
    ("text", "says"), [(TWO_OBSERVABLES, "has 2"), (RING, "closed loop"), (ONE_BOUNDARY, "one boundary")]
)
def test_circuits_without_two_separable_classes_are_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says) as refusal:
        LogicalClassMatcher(from_text(text))
    assert "finetune_share" in str(refusal.value)
