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


needs_c = pytest.mark.skipif(
    weighted_mwpm.compiled_gap() is None, reason="the C extension is not built: pip install -e ."
)


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


@needs_c
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
    assert in_c._capped is not None and (in_c._capped.gap(events)[1] >= 0).all(), "C computed them"
    monkeypatch.setattr(logical_classes, "compiled_gap", lambda: None)
    assert gap == pytest.approx(LogicalClassMatcher(problem).complementary_gap(events, cap), abs=1e-2)
    assert (np.abs(gap) < cap - 0.1).any() and (gap < 0).any()


@needs_c
@pytest.mark.parametrize(("distance", "rounds"), [(7, 7), (3, 40)])
def test_gaps_of_large_clusters_equal_those_of_pymatching(
    distance: int, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many shots here have blossoms; dense ones are beyond the noise of a device."""
    problem = generated("surface_code:rotated_memory_z", distance, rounds, 0.01)
    events = sampling.sample(problem, 1000, 3).detection_events
    bits = (np.random.default_rng(1).random((40, problem.n_detectors)) < 0.3).astype(np.uint8)
    events = np.concatenate([events, sampling.pack(bits)])
    in_c = LogicalClassMatcher(problem)
    gap = in_c.complementary_gap(events, 6.5)
    assert in_c._capped is not None and (in_c._capped.gap(events)[1] >= 0).mean() > 0.95
    monkeypatch.setattr(logical_classes, "compiled_gap", lambda: None)
    assert gap == pytest.approx(LogicalClassMatcher(problem).complementary_gap(events, 6.5), abs=2e-2)


@needs_c
def test_shots_beyond_the_work_limit_are_matched_by_pymatching(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = generated("surface_code:rotated_memory_z", 7, 7)
    events = sampling.sample(problem, 200, 1).detection_events
    expected = LogicalClassMatcher(problem).complementary_gap(events)
    monkeypatch.setattr(logical_classes, "WORK_PER_EDGE", 0)
    limited = LogicalClassMatcher(problem)
    gap = limited.complementary_gap(events)
    assert limited._capped is not None and (limited._capped.gap(events)[1] < 0).mean() > 0.5
    assert gap == pytest.approx(expected, abs=1e-2)


@needs_c
def test_work_of_a_gap_is_bounded_and_does_not_depend_on_the_batch() -> None:
    """An event at every detector has many equal solutions; its search ends at the limit."""
    problem = generated("surface_code:rotated_memory_z", 7, 7)
    events = sampling.sample(problem, 50, 1).detection_events
    events[::10] = sampling.pack(np.ones((5, problem.n_detectors), np.uint8))
    matcher = LogicalClassMatcher(problem)
    matcher.complementary_gap(events, 6.5)
    assert matcher._capped is not None
    work = matcher._capped.gap(events)[1]
    assert (work[::10] == -1).all() and (np.delete(work, slice(None, None, 10)) >= 0).all()
    most = logical_classes.WORK_PER_EDGE * (problem.matching_graph.n_edges + 1)
    assert 0 < work.max() <= most
    assert [int(matcher._capped.gap(events[i : i + 1])[1][0]) for i in range(50)] == work.tolist()


@needs_c
@pytest.mark.parametrize(("task", "rounds"), [("surface_code:rotated_memory_z", 5), ("repetition_code:memory", 12)])
@pytest.mark.parametrize("cap", [6.5, 30.0])
def test_gaps_without_a_table_of_distances_are_the_same(
    task: str, rounds: int, cap: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = generated(task, 5, rounds, 0.02)
    events = sampling.sample(problem, 3000, 1).detection_events
    expected = LogicalClassMatcher(problem).complementary_gap(events, cap)
    monkeypatch.setattr(logical_classes, "MAX_TABLE_NODES", 0)
    matcher = LogicalClassMatcher(problem)
    gap = matcher.complementary_gap(events, cap)
    assert matcher._capped is not None and (matcher._capped.gap(events)[1] >= 0).all()
    assert gap == pytest.approx(expected, abs=1e-5)


def test_calls_with_another_cap_do_not_disturb_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """As from another thread, between the computation in C and that of the shots which are left to PyMatching."""
    problem = generated("repetition_code:memory", 5, 4)
    events = sampling.sample(problem, 200, 1).detection_events
    expected = LogicalClassMatcher(problem).complementary_gap(events, 30.0)
    matcher, compute = LogicalClassMatcher(problem), logical_classes._CappedGraph.gap

    def gap(graph: logical_classes._CappedGraph, shots: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if graph.cap == 30.0:
            matcher.complementary_gap(shots, 3.0)
        found, work = compute(graph, shots)
        return found, np.full_like(work, -1)

    monkeypatch.setattr(logical_classes._CappedGraph, "gap", gap)
    assert np.abs(expected).max() > 4
    assert matcher.complementary_gap(events, 30.0) == pytest.approx(expected, abs=1e-2)


@needs_c
def test_work_of_gaps_is_proportional_to_the_number_of_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches stay local, although any two events near one boundary could be joined along it."""
    monkeypatch.setattr(logical_classes, "MAX_TABLE_NODES", 0)
    per_round = []
    for rounds in (20, 160):
        problem = generated("surface_code:rotated_memory_z", 3, rounds, 0.005)
        matcher = LogicalClassMatcher(problem)
        events = sampling.sample(problem, 200, 1).detection_events
        matcher.complementary_gap(events, 6.5)
        assert matcher._capped is not None
        work = matcher._capped.gap(events)[1]
        assert (work >= 0).all()
        per_round.append(work.mean() / rounds)
    assert per_round[1] < 1.5 * per_round[0]


PART_WITHOUT_BOUNDARY = """
X_ERROR(0.1) 0 1 2 3
M 0 1 2 3
DETECTOR rec[-4] rec[-3]
DETECTOR rec[-3] rec[-2]
DETECTOR rec[-1]
DETECTOR rec[-1]
OBSERVABLE_INCLUDE(0) rec[-2] rec[-1]
"""


@pytest.mark.parametrize("compiled", [True, False])
def test_odd_number_of_events_without_boundary_has_no_gap(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """On graphs without a table of distances, where a shot is matched as a whole."""
    monkeypatch.setattr(logical_classes, "MAX_TABLE_NODES", 0)
    if not compiled:
        monkeypatch.setattr(logical_classes, "compiled_gap", lambda: None)
    problem = from_text(PART_WITHOUT_BOUNDARY)
    assert len(problem.matching_graph.in_sector) == 4
    matcher = LogicalClassMatcher(problem)
    for detections in itertools.product((0, 1), repeat=4):
        events = sampling.pack(np.array([detections], np.uint8))
        if detections[2] == detections[3]:
            assert np.isfinite(matcher.complementary_gap(events)).all()
        else:
            with pytest.raises(ValueError, match=r"(?i)no perfect matching"):
                matcher.complementary_gap(events)


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
