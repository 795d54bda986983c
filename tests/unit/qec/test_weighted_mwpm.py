"""Matching under per-shot weights: the minimum, whoever finds it. Against PyMatching, brute force, and without C."""

from __future__ import annotations

import itertools

import numpy as np
import pymatching
import pytest
import scipy.sparse as sp

from autoqec.qec import sampling, weighted_mwpm
from autoqec.qec.weighted_mwpm import MAX_LOG_ODDS, WeightedMatcher
from tests.support.envs import problem

needs_c = pytest.mark.skipif(
    weighted_mwpm.compiled_matcher() is None, reason="match.c is not built here: pip install -e ."
)


def shots(distance: int, n: int, spread: float, p: float = 0.005) -> tuple[sp.csc_matrix, np.ndarray, np.ndarray]:
    """Check matrix, events of n sampled shots, and log-odds about the priors."""
    prob = problem(distance, p)
    graph = prob.matching_graph
    events = sampling.unpack(sampling.sample(prob, n, 5).detection_events, prob.n_detectors)[:, graph.in_sector]
    noise = np.random.default_rng(distance).normal(0, spread, (n, graph.n_edges))
    return graph.check_matrix, events, (graph.log_odds + noise).astype(np.float32)


def cost(log_odds: np.ndarray, selected: np.ndarray) -> np.ndarray:
    return -(np.clip(log_odds, -MAX_LOG_ODDS, MAX_LOG_ODDS).astype(float) * selected).sum(axis=1)


def same_minimum(distance: int, n: int, spread: float) -> None:
    """Every solution explains its shot, and none is dearer than PyMatching's, which rounds its weights, nor cheaper."""
    checks, events, log_odds = shots(distance, n, spread)
    selected = WeightedMatcher(checks).solve(events, log_odds)
    assert np.array_equal((selected @ checks.T.toarray()) & 1, events)
    clipped = np.clip(log_odds, -MAX_LOG_ODDS, MAX_LOG_ODDS).astype(float)
    rebuilt = np.stack(
        [
            pymatching.Matching.from_check_matrix(checks, weights=-row).decode(shot)
            for row, shot in zip(clipped, events, strict=True)
        ]
    )
    excess = cost(log_odds, selected) - cost(log_odds, rebuilt)
    assert excess.max() < 1e-9
    assert excess.min() > -1e-3


@needs_c
@pytest.mark.parametrize(("distance", "spread"), [(3, 1.0), (3, 5.0), (5, 1.0), (5, 4.0), (7, 1.5)])
def test_the_same_minimum_weight_as_a_matching_built_for_the_shot(distance: int, spread: float) -> None:
    same_minimum(distance, 100, spread)


@needs_c
@pytest.mark.long
def test_the_same_minimum_weight_on_ten_thousand_shots() -> None:
    same_minimum(5, 10_000, 1.5)


@pytest.mark.parametrize("built", [pytest.param(True, marks=needs_c), False])
@pytest.mark.parametrize("closed", [False, True])
def test_the_minimum_of_all_edge_sets(built: bool, closed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small graphs, every syndrome, weights of either sign: with a boundary, and a ring without one."""
    if not built:
        monkeypatch.setattr(weighted_mwpm, "compiled_matcher", lambda: None)
    ends = [(0, 1), (1, 2), (2, 3), (0, 2)] + ([(3, 0)] if closed else [(0,), (3,), (1,)])
    checks = sp.csc_matrix(np.array([[node in edge for edge in ends] for node in range(4)], np.uint8))
    subsets = np.array(list(itertools.product((0, 1), repeat=len(ends))), np.uint8)
    syndromes = subsets @ checks.T.toarray() & 1
    events = np.unique(syndromes, axis=0)  # without a boundary only an even number can fire
    rng = np.random.default_rng(7)
    for _ in range(20):
        log_odds = rng.normal(-0.5, 2, (len(events), len(ends))).astype(np.float32)
        selected = WeightedMatcher(checks).solve(events, log_odds)
        assert np.array_equal(selected @ checks.T.toarray() & 1, events)
        for shot, row in enumerate(log_odds):
            fitting = subsets[(syndromes == events[shot]).all(axis=1)]
            least = cost(row[None], fitting).min()
            assert cost(row[None], selected[shot][None])[0] == pytest.approx(least, abs=1e-3)


@needs_c
def test_a_search_too_long_is_left_to_pymatching() -> None:
    checks, events, log_odds = shots(7, 60, 4.0)
    matcher = WeightedMatcher(checks)
    done = matcher._solve_compiled(events, log_odds, np.empty(log_odds.shape, np.uint8), 1)
    assert not done.all()
    left = ~done
    selected = matcher.solve(events[left], log_odds[left])
    assert np.array_equal((selected @ checks.T.toarray()) & 1, events[left])


@needs_c
def test_more_fired_nodes_than_a_cluster_holds() -> None:
    """A chain of 200 fired nodes, no boundary near: C leaves it, and the answer is right."""
    n = 200
    checks = sp.csc_matrix(np.array([[node in (edge, edge + 1) for edge in range(n)] for node in range(n)], np.uint8))
    log_odds = np.full((1, n), -1.0, np.float32)
    log_odds[0, -1] = -20.0
    selected = WeightedMatcher(checks).solve(np.ones((1, n), np.uint8), log_odds)
    assert selected[0].tolist() == [1, 0] * (n // 2)


@pytest.mark.parametrize("built", [pytest.param(True, marks=needs_c), False])
def test_shots_in_a_row_share_log_odds(built: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not built:
        monkeypatch.setattr(weighted_mwpm, "compiled_matcher", lambda: None)
    checks, events, log_odds = shots(3, 40, 1.0)
    matcher = WeightedMatcher(checks)
    shared = matcher.solve(events, log_odds[::2])
    assert np.array_equal(shared, matcher.solve(events, np.repeat(log_odds[::2], 2, axis=0)))


@needs_c
def test_inputs_are_left_as_they_were() -> None:
    checks, events, log_odds = shots(3, 40, 5.0)
    before = events.copy(), log_odds.copy()
    WeightedMatcher(checks).solve(events, log_odds)
    assert np.array_equal(events, before[0]) and np.array_equal(log_odds, before[1])


@pytest.mark.parametrize("built", [pytest.param(True, marks=needs_c), False])
def test_parallel_edges_are_both_taken_where_both_are_likelier_flipped(
    built: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not built:
        monkeypatch.setattr(weighted_mwpm, "compiled_matcher", lambda: None)
    checks = sp.csc_matrix(np.array([[1, 1, 1, 0], [1, 1, 0, 1]], np.uint8))
    log_odds = np.array([[2, 3, -1, -4]], np.float32)
    assert WeightedMatcher(checks).solve(np.zeros((1, 2), np.uint8), log_odds).tolist() == [[1, 1, 0, 0]]


@needs_c
def test_where_c_has_no_memory_every_shot_is_pymatchings(monkeypatch: pytest.MonkeyPatch) -> None:
    checks, events, log_odds = shots(3, 40, 1.0)
    wanted = WeightedMatcher(checks).solve(events, log_odds)
    monkeypatch.setattr(weighted_mwpm, "compiled_matcher", lambda: lambda *_: -1)
    found = WeightedMatcher(checks).solve(events, log_odds)
    assert cost(log_odds, found) == pytest.approx(cost(log_odds, wanted), abs=1e-3)


@pytest.mark.parametrize(
    ("events", "log_odds"), [((4, 2), (4, 3)), ((4, 3), (4, 2)), ((2, 3), (4, 3)), ((5, 3), (2, 3)), ((4, 3), (0, 3))]
)
def test_shapes_that_do_not_fit_never_reach_c(events: tuple[int, int], log_odds: tuple[int, int]) -> None:
    checks = sp.csc_matrix(np.array([[1, 1, 0], [0, 1, 1], [1, 0, 1]], np.uint8))
    with pytest.raises(ValueError, match="log-odds"):
        WeightedMatcher(checks).solve(np.zeros(events, np.uint8), np.zeros(log_odds, np.float32))


@pytest.mark.parametrize("built", [pytest.param(True, marks=needs_c), False])
def test_a_shot_that_no_edges_explain(built: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not built:
        monkeypatch.setattr(weighted_mwpm, "compiled_matcher", lambda: None)
    ring = sp.csc_matrix(np.array([[1, 1, 0], [0, 1, 1], [1, 0, 1]], np.uint8))
    with pytest.raises(ValueError, match="odd parity"):
        WeightedMatcher(ring).solve(np.array([[1, 1, 1]], np.uint8), np.full((1, 3), -1, np.float32))
