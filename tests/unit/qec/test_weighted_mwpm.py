"""Weighted matching against PyMatching and brute force, with and without the C implementation."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pymatching
import pytest
import scipy.sparse as sp

from autoqec.qec import c_library, sampling, weighted_mwpm
from autoqec.qec.weighted_mwpm import WeightedMatching
from tests.support.envs import problem

needs_c = pytest.mark.skipif(
    weighted_mwpm.compiled_matcher() is None, reason="the C extension is not built: pip install -e ."
)


def shots(distance: int, n: int, spread: float, p: float = 0.005) -> tuple[sp.csc_matrix, np.ndarray, np.ndarray]:
    """Return check matrix, detection events of n sampled shots, and weights near those of the priors."""
    prob = problem(distance, p)
    graph = prob.matching_graph
    events = sampling.unpack(sampling.sample(prob, n, 5).detection_events, prob.n_detectors)[:, graph.in_sector]
    noise = np.random.default_rng(distance).normal(0, spread, (n, graph.n_edges))
    return graph.check_matrix, events, -(graph.log_odds + noise).astype(np.float32)


def cost(weights: np.ndarray, edges: np.ndarray) -> np.ndarray:
    return (weights.astype(float) * edges).sum(axis=1)


def assert_weight_of_pymatching(distance: int, n: int, spread: float) -> None:
    """Every solution explains its shot, and its weight is that of PyMatching, which rounds weights to integers."""
    checks, events, weights = shots(distance, n, spread)
    edges = WeightedMatching(checks).decode_batch(events, weights)
    assert np.array_equal((edges @ checks.T.toarray()) & 1, events)
    rebuilt = np.stack(
        [
            pymatching.Matching.from_check_matrix(checks, weights=row).decode(shot)
            for row, shot in zip(weights.astype(float), events, strict=True)
        ]
    )
    excess = cost(weights, edges) - cost(weights, rebuilt)
    assert excess.max() < 1e-9
    assert excess.min() > -1e-3


@needs_c
@pytest.mark.parametrize(("distance", "spread"), [(3, 1.0), (3, 5.0), (5, 1.0), (5, 4.0), (7, 1.5)])
def test_weight_equals_that_of_a_matching_rebuilt_per_shot(distance: int, spread: float) -> None:
    assert_weight_of_pymatching(distance, 100, spread)


@needs_c
@pytest.mark.long
def test_weight_equals_that_of_a_rebuilt_matching_on_10000_shots() -> None:
    assert_weight_of_pymatching(5, 10_000, 1.5)


@pytest.mark.parametrize("built", [pytest.param(True, marks=needs_c), False])
@pytest.mark.parametrize("closed", [False, True])
def test_weight_is_minimal_among_all_edge_sets(built: bool, closed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Small graphs, every syndrome, weights of both signs, with and without a boundary."""
    if not built:
        monkeypatch.setattr(weighted_mwpm, "compiled_matcher", lambda: None)
    ends = [(0, 1), (1, 2), (2, 3), (0, 2)] + ([(3, 0)] if closed else [(0,), (3,), (1,)])
    checks = sp.csc_matrix(np.array([[node in edge for edge in ends] for node in range(4)], np.uint8))
    subsets = np.array(list(itertools.product((0, 1), repeat=len(ends))), np.uint8)
    syndromes = subsets @ checks.T.toarray() & 1
    events = np.unique(syndromes, axis=0)  # without a boundary only an even number can fire
    rng = np.random.default_rng(7)
    for _ in range(20):
        weights = rng.normal(0.5, 2, (len(events), len(ends))).astype(np.float32)
        edges = WeightedMatching(checks).decode_batch(events, weights)
        assert np.array_equal(edges @ checks.T.toarray() & 1, events)
        for shot, row in enumerate(weights):
            fitting = subsets[(syndromes == events[shot]).all(axis=1)]
            least = cost(row[None], fitting).min()
            assert cost(row[None], edges[shot][None])[0] == pytest.approx(least, abs=1e-3)


@needs_c
@pytest.mark.parametrize(("spread", "density"), [(4.0, None), (1.0, 0.5), (0.0, 0.3)])
def test_dense_shots_and_wild_weights_are_matched_exactly_in_c(spread: float, density: float | None) -> None:
    """Clusters of any size; two thirds of the first shots were beyond the search over pairings that came before."""
    checks, events, weights = shots(7, 60, spread)
    if density is not None:
        events = (np.random.default_rng(2).random(events.shape) < density).astype(np.uint8)
    matcher = WeightedMatching(checks)
    edges = np.empty(weights.shape, np.uint8)
    assert matcher._decode_compiled(events, -weights, edges, 1).all()
    assert np.array_equal((edges @ checks.T.toarray()) & 1, events)
    rebuilt = np.array([matcher._decode_with_pymatching(*shot) for shot in zip(events, -weights, strict=True)])
    assert (cost(weights, edges) <= cost(weights, rebuilt) + 1e-3).all()


@needs_c
def test_chain_far_from_the_boundary_is_decoded() -> None:
    """200 detection events in one cluster."""
    n = 200
    checks = sp.csc_matrix(np.array([[node in (edge, edge + 1) for edge in range(n)] for node in range(n)], np.uint8))
    weights = np.full((1, n), 1.0, np.float32)
    weights[0, -1] = 20.0
    edges = WeightedMatching(checks).decode_batch(np.ones((1, n), np.uint8), weights)
    assert edges[0].tolist() == [1, 0] * (n // 2)


@needs_c
@pytest.mark.parametrize("exponent", [-120, -40, 40, 100])
def test_blossoms_are_expanded_in_time_under_weights_of_every_size(exponent: int) -> None:
    """Powers of two scale every sum exactly: the very solutions of weights near 1."""
    rng = np.random.default_rng(3)
    place, pairs = rng.random((16, 2)), np.array(list(itertools.combinations(range(16), 2)))
    checks = sp.csc_matrix((np.arange(16)[:, None, None] == pairs).any(axis=2), dtype=np.uint8)
    events = (rng.random((500, 16)) < 0.9).astype(np.uint8)
    events[:, 0] ^= (events.sum(axis=1) % 2).astype(np.uint8)  # without a boundary only an even number can fire
    apart = np.linalg.norm(place[pairs[:, 0]] - place[pairs[:, 1]], axis=1)
    weights = (apart + rng.exponential(0.3, (500, len(pairs)))).astype(np.float32)
    matcher = WeightedMatching(checks)
    expected = matcher.decode_batch(events, weights)
    assert np.array_equal(matcher.decode_batch(events, weights * np.float32(2.0**exponent)), expected)


@needs_c
@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_solutions_do_not_depend_on_the_unit_of_weights(scale: float) -> None:
    """How far events are explored at first follows the mean weight."""
    checks, events, weights = shots(5, 200, 1.0)
    matcher = WeightedMatching(checks)
    expected = cost(weights, matcher.decode_batch(events, weights))
    assert cost(weights, matcher.decode_batch(events, weights * np.float32(scale))) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("built", [pytest.param(True, marks=needs_c), False])
def test_consecutive_shots_share_a_row_of_weights(built: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not built:
        monkeypatch.setattr(weighted_mwpm, "compiled_matcher", lambda: None)
    checks, events, weights = shots(3, 40, 1.0)
    matcher = WeightedMatching(checks)
    shared = matcher.decode_batch(events, weights[::2])
    assert np.array_equal(shared, matcher.decode_batch(events, np.repeat(weights[::2], 2, axis=0)))


@needs_c
def test_weights_may_be_stored_by_columns() -> None:
    checks, events, weights = shots(3, 20, 1.0)
    expected = WeightedMatching(checks).decode_batch(events, weights)
    found = WeightedMatching(checks).decode_batch(np.asfortranarray(events), np.asfortranarray(weights))
    assert np.array_equal(found, expected)


def test_inputs_are_not_modified() -> None:
    checks, events, weights = shots(3, 40, 5.0)
    before = events.copy(), weights.copy()
    WeightedMatching(checks).decode_batch(events, weights)
    assert np.array_equal(events, before[0]) and np.array_equal(weights, before[1])


@pytest.mark.parametrize("built", [pytest.param(True, marks=needs_c), False])
def test_parallel_edges_of_negative_weight_are_both_selected(built: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not built:
        monkeypatch.setattr(weighted_mwpm, "compiled_matcher", lambda: None)
    checks = sp.csc_matrix(np.array([[1, 1, 1, 0], [1, 1, 0, 1]], np.uint8))
    weights = np.array([[-2, -3, 1, 4]], np.float32)
    assert WeightedMatching(checks).decode_batch(np.zeros((1, 2), np.uint8), weights).tolist() == [[1, 1, 0, 0]]


@needs_c
def test_without_memory_in_c_pymatching_decodes_every_shot(monkeypatch: pytest.MonkeyPatch) -> None:
    checks, events, weights = shots(3, 40, 1.0)
    expected = WeightedMatching(checks).decode_batch(events, weights)
    monkeypatch.setattr(weighted_mwpm, "compiled_matcher", lambda: lambda *_: -1)
    edges = WeightedMatching(checks).decode_batch(events, weights)
    assert cost(weights, edges) == pytest.approx(cost(weights, expected), abs=1e-3)


@pytest.mark.parametrize(
    ("events", "weights"), [((4, 2), (4, 3)), ((4, 3), (4, 2)), ((2, 3), (4, 3)), ((5, 3), (2, 3)), ((4, 3), (0, 3))]
)
def test_wrong_shapes_are_rejected(events: tuple[int, int], weights: tuple[int, int]) -> None:
    checks = sp.csc_matrix(np.array([[1, 1, 0], [0, 1, 1], [1, 0, 1]], np.uint8))
    with pytest.raises(ValueError, match="have shape"):
        WeightedMatching(checks).decode_batch(np.zeros(events, np.uint8), np.zeros(weights, np.float32))


@pytest.mark.parametrize("built", [pytest.param(True, marks=needs_c), False])
def test_unexplainable_syndrome_is_rejected(built: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not built:
        monkeypatch.setattr(weighted_mwpm, "compiled_matcher", lambda: None)
    ring = sp.csc_matrix(np.array([[1, 1, 0], [0, 1, 1], [1, 0, 1]], np.uint8))
    with pytest.raises(ValueError, match="odd parity"):
        WeightedMatching(ring).decode_batch(np.array([[1, 1, 1]], np.uint8), np.full((1, 3), 1, np.float32))


def test_predictions_equal_those_of_pymatching_with_a_faults_matrix() -> None:
    """Same arguments and results as PyMatching, with weights that make the minimum unique."""
    checks, events, weights = shots(3, 200, 0.5)
    faults = problem(3, 0.005).matching_graph.observables.T
    predictions, totals = WeightedMatching(checks, faults).decode_batch(events, weights, return_weights=True)
    for shot in range(len(events)):
        matching = pymatching.Matching.from_check_matrix(checks, weights=weights[shot], faults_matrix=faults)
        expected, total = matching.decode(events[shot], return_weight=True)
        assert totals[shot] == pytest.approx(total, abs=1e-3)
        assert np.array_equal(predictions[shot], expected)
    assert predictions.any() and predictions.shape == (200, 1)


def test_one_row_of_weights_serves_all_shots() -> None:
    checks, events, weights = shots(3, 40, 1.0)
    matching = WeightedMatching(checks.toarray())
    shared = matching.decode_batch(events, weights[0])
    assert np.array_equal(shared, matching.decode_batch(events, np.tile(weights[0], (40, 1))))
    assert cost(weights[:1], shared) == pytest.approx(
        matching.decode_batch(events, weights[0], return_weights=True)[1], abs=1e-5
    )


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf, 1e300])
def test_weights_that_are_not_finite_in_float32_are_rejected(bad: float) -> None:
    checks, events, weights = shots(3, 2, 1.0)
    row = weights[0].astype(float)
    row[3] = bad
    with pytest.raises(ValueError, match="not finite .*row 0, edge 3"):
        WeightedMatching(checks).decode_batch(events, row)


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([[2, 0]], "other than 0 and 1"),
        ([[0.5, 0]], "other than 0 and 1"),
        ([[-1, 0]], "other than 0 and 1"),
        ([["1", "0"]], "other than 0 and 1"),
        (np.array([[255, 0]], np.uint8), "other than 0 and 1"),
        ([1, 0], "expected .shots, 2 nodes."),
        (np.array([[1]], np.uint8), "unpack bit-packed shots"),
    ],
)
def test_shots_that_are_no_detection_events_are_rejected(events: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WeightedMatching(np.array([[1, 1, 0], [0, 1, 1]])).decode_batch(events, np.ones((1, 3)))


@pytest.mark.parametrize("weights", [np.ones((1, 3), complex), [["a", "b", "c"]]])
def test_weights_that_are_no_real_numbers_are_rejected(weights: Any) -> None:
    with pytest.raises(ValueError, match="expected real numbers"):
        WeightedMatching(np.array([[1, 1, 0], [0, 1, 1]])).decode_batch(np.zeros((1, 2)), weights)


def test_lists_and_integers_are_arrays() -> None:
    matching = WeightedMatching(np.array([[1, 1, 0], [0, 1, 1]]))
    for events in ([[1, 0]], [[True, False]], np.array([[1.0, 0.0]]), np.array([[1, 0]], np.int64)):
        assert matching.decode_batch(events, [[1, 3, 3]]).tolist() == [[1, 0, 0]]  # type: ignore[arg-type]


@pytest.mark.parametrize("limit", [0.0, -1.0, np.nan])
def test_limits_of_weights_are_above_zero(limit: float) -> None:
    with pytest.raises(ValueError, match="max_weight"):
        WeightedMatching(np.array([[1, 1]]), max_weight=limit)


def test_max_weight_clips_weights() -> None:
    checks = np.array([[1, 1]], np.uint8)
    events, weights = np.ones((1, 1), np.uint8), np.array([[70.0, 40.0]])
    assert WeightedMatching(checks).decode_batch(events, weights, return_weights=True)[1] == [40.0]
    assert WeightedMatching(checks, max_weight=30).decode_batch(events, weights, return_weights=True)[1] == [30.0]


@pytest.mark.parametrize(
    ("checks", "faults", "message"),
    [
        ([[1], [1], [1]], None, "column 0 of check_matrix holds 3 nodes"),
        ([[1, 0]], None, "column 1 of check_matrix holds 0 nodes"),
        ([[2]], None, "other than 0 and 1"),
        ([[1, 1]], [[1]], "faults_matrix has 1 columns, check_matrix has 2"),
    ],
)
def test_malformed_matrices_are_rejected(checks: list[list[int]], faults: list[list[int]] | None, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        WeightedMatching(np.array(checks), None if faults is None else np.array(faults))


def graph_of(change: Callable[[list[Any]], None]) -> list[Any]:
    """Return the C arguments that describe a triangle with one boundary edge, after a change."""
    checks = np.array([[1, 1, 0, 1], [1, 0, 1, 0], [0, 1, 1, 0]])
    arguments = [part.copy() if isinstance(part, np.ndarray) else part for part in WeightedMatching(checks).adjacency]
    change(arguments)
    return arguments


def call(function: Any, *arguments: Any) -> int:
    """Call a C function that takes addresses; the arrays live until it returns."""
    where = [c_library.addresses(each)[0] if isinstance(each, np.ndarray) else each for each in arguments]
    return int(function(*where))


def put(part: int, index: int, value: int) -> Callable[[list[Any]], None]:
    return lambda arguments: arguments[part].reshape(-1).__setitem__(index, value)


@needs_c
@pytest.mark.parametrize(
    "change",
    [
        *(put(part, index, value) for part in (2, 3, 4, 5) for index in (0, -1) for value in (-2, 99, 2**31 - 1)),
        put(2, 1, 0),
        lambda arguments: arguments.__setitem__(0, 0),
        lambda arguments: arguments.__setitem__(0, 65537),
        lambda arguments: arguments.__setitem__(1, -1),
        lambda arguments: arguments.__setitem__(1, 3),
        lambda arguments: arguments[3].__setitem__(slice(None), 0),
    ],
)
def test_arrays_that_describe_no_graph_are_rejected_in_c(change: Callable[[list[Any]], None]) -> None:
    match, gap = weighted_mwpm.compiled_matcher(), weighted_mwpm.compiled_gap()
    assert match is not None and gap is not None
    graph = graph_of(change)
    events, edges, done = np.ones((1, 3), np.uint8), np.full((1, 4), 7, np.uint8), np.zeros(1, np.uint8)
    assert match(1, 1, *graph, -np.ones((1, 4), np.float32), events, edges, done) == -2
    assert call(gap[0], *graph, np.ones(4), np.empty(3), np.empty((3, 3))) == -2
    packed = (np.full(8, -1, np.int32), np.zeros(3, np.uint8), np.zeros((1, 1), np.uint8))
    found = (np.empty(1, np.float32), np.zeros(1, np.int64))
    assert call(gap[2], *graph, np.ones(4), 99, 1, 1, *packed, *found) == -2
    soft = weighted_mwpm.compiled_soft_matcher()
    node_of, flips = np.arange(8, dtype=np.int32) % 4 - 1, np.ones((4, 1), np.uint8)
    log_odds, shot, flipped = -np.ones((1, 4), np.float32), np.full((1, 1), 7, np.uint8), np.zeros((1, 1), np.uint8)
    assert call(soft, 0, 1, 1, *graph, 1, node_of, flips, 9.0, log_odds, shot, flipped, done) == -2
    assert (edges == 7).all() and not done.any()


@pytest.mark.parametrize("change", ["none", "read-only", "empty", "offset"])
def test_addresses_are_those_of_the_data(change: str) -> None:
    array = np.arange(0 if change == "empty" else 12, dtype=np.float32)
    array.flags.writeable = change != "read-only"
    if change == "offset":
        array = array[3:]
    assert c_library.addresses(array, array) == 2 * [array.__array_interface__["data"][0]]


@pytest.mark.parametrize("writeable", [True, False])
def test_arrays_that_are_not_contiguous_have_no_address(writeable: bool) -> None:
    array = np.zeros((3, 4))[:, ::2]
    array.flags.writeable = writeable
    with pytest.raises(ValueError, match="not contiguous"):
        c_library.addresses(array)


@needs_c
@pytest.mark.parametrize("node_of", [[0, 0], [2, -1], [-2, -1], [2**31 - 1, -1]])
def test_map_of_detectors_to_nodes_is_checked_in_c(node_of: list[int]) -> None:
    functions = weighted_mwpm.compiled_gap()
    assert functions is not None
    row = np.array([*node_of, *[-1] * 6], np.int32)
    arrays = (np.ones(3), np.ones((3, 3)), np.zeros(4, np.int64), np.zeros(1, np.int32), np.zeros(1))
    names = ("bound", "apart", "first_near", "near", "near_apart")
    table = weighted_mwpm.GapTable(nodes=3, reach=1.0, **dict(zip(names, c_library.addresses(*arrays), strict=True)))
    shot = (row, np.zeros(3, np.uint8), np.full((1, 1), 3, np.uint8), np.empty(1, np.float32), np.zeros(1, np.int64))
    assert call(functions[1], table, 99, 1, 1, *shot) == -2
    soft, graph = weighted_mwpm.compiled_soft_matcher(), graph_of(lambda _: None)
    assert call(functions[2], *graph, np.ones(4), 99, 1, 1, *shot) == -2
    result = (shot[2], np.zeros(1, np.uint8))
    row = np.where(row == 2, 3, row).astype(np.int32)  # here the last node may be named
    log_odds, flips, flipped = -np.ones((1, 4), np.float32), np.ones((4, 1), np.uint8), np.zeros((1, 1), np.uint8)
    assert call(soft, 0, 1, 1, *graph, 1, row, flips, 9.0, log_odds, result[0], flipped, result[1]) == -2


@needs_c
@pytest.mark.parametrize("weight", [-1.0, np.nan, np.inf])
def test_distances_reject_weights_without_shortest_paths(weight: float) -> None:
    functions = weighted_mwpm.compiled_gap()
    assert functions is not None
    weights = np.array([1, 1, weight, 1.0])
    graph = graph_of(lambda _: None)
    assert call(functions[0], *graph, weights, np.empty(3), np.empty((3, 3))) == -2
    shot = (np.full(8, -1, np.int32), np.zeros(3, np.uint8), np.zeros((1, 1), np.uint8))
    assert call(functions[2], *graph, weights, 99, 1, 1, *shot, np.empty(1, np.float32), np.zeros(1, np.int64)) == -2


@pytest.mark.parametrize("built", [pytest.param(True, marks=needs_c), False])
def test_weights_of_very_different_size_are_matched(built: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Distances that differ by less than the precision of a heap entry are still distinguished."""
    if not built:
        monkeypatch.setattr(weighted_mwpm, "compiled_matcher", lambda: None)
    checks = sp.csc_matrix(np.array([[1, 1, 0, 0, 0], [0, 1, 1, 0, 0], [0, 0, 1, 1, 1]], np.uint8))
    weights = np.array([[9, 1, 1e-30, 1, 0]], np.float32)
    assert WeightedMatching(checks).decode_batch(np.array([[1, 0, 0]]), weights).tolist() == [[0, 1, 1, 0, 1]]
