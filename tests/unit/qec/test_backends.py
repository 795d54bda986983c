"""Matching from bit-packed shots to observables in one call, against matching by way of the edges."""

from __future__ import annotations

import numpy as np
import pytest
import stim

from autoqec.contracts.env import DemFileCode, EnvSpec, FileNoise
from autoqec.qec import backends, sampling
from autoqec.qec.backends import SoftMatching
from autoqec.qec.problem import Problem
from autoqec.qec.weighted_mwpm import compiled_soft_matcher
from tests.support.envs import BANDS, problem

needs_c = pytest.mark.skipif(compiled_soft_matcher() is None, reason="the C extension is not built: pip install -e .")


def two_observables() -> Problem:
    text = "error(0.1) D0 L0\nerror(0.2) D0 D1\nerror(0.1) D1 D2 L1\nerror(0.15) D2 L0 L1\nerror(0.1) D9"
    return Problem.from_env(
        EnvSpec(name="two", code=DemFileCode(path="two.dem", text=text), noise=FileNoise(), seed_policy=BANDS)
    )


def drawn(prob: Problem, n: int, spread: float) -> tuple[SoftMatching, np.ndarray, np.ndarray]:
    """Return the matcher, detection events of all detectors, and log-odds of both signs, some beyond the clip."""
    graph = prob.matching_graph
    noise = np.random.default_rng(3).normal(0, spread, (n, graph.n_edges))
    log_odds = (graph.log_odds + noise).astype(np.float32)
    return SoftMatching(graph, prob.n_detectors), sampling.sample(prob, n, 5).detection_events, log_odds


@needs_c
@pytest.mark.parametrize(
    ("name", "n", "spread"),
    [("d3", 3000, 1.0), ("d3", 3000, 15.0), ("d5", 2000, 1.5), ("d7", 60, 4.0), ("two", 3000, 1.0)],
)
def test_predictions_equal_those_by_way_of_the_edges(name: str, n: int, spread: float) -> None:
    prob = two_observables() if name == "two" else problem(int(name[1:]))
    matching, events, log_odds = drawn(prob, n, spread)
    expected = matching._decode_edges(events, log_odds)
    before = events.copy(), log_odds.copy()
    assert np.array_equal(matching.decode(events, log_odds), expected) and expected.any(axis=0).all()
    assert np.array_equal(events, before[0]) and np.array_equal(log_odds, before[1])


def test_arrays_of_other_layout_and_dtype_are_converted() -> None:
    matching, events, log_odds = drawn(problem(3), 200, 1.0)
    expected = matching.decode(events, log_odds)
    strided, fortran = np.repeat(events, 2, axis=0)[::2], np.asfortranarray(log_odds.astype(float))
    assert np.array_equal(matching.decode(strided, fortran), expected)


@pytest.mark.parametrize("built", [pytest.param(True, marks=needs_c), False])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_that_are_not_finite_are_rejected(built: bool, value: float, monkeypatch: pytest.MonkeyPatch) -> None:
    if not built:
        monkeypatch.setattr(backends, "compiled_soft_matcher", lambda: None)
    matching, events, log_odds = drawn(problem(3), 20, 1.0)
    log_odds[7, 3] = value
    with pytest.raises(ValueError, match="not finite"):
        matching.decode(events, log_odds)


def test_shots_of_another_circuit_are_rejected() -> None:
    matching, events, log_odds = drawn(problem(3), 20, 1.0)
    for shots, values in ((events[:, :-1], log_odds), (events, log_odds[:, 1:]), (events, log_odds[1:])):
        with pytest.raises(ValueError, match="have shape .* expected"):
            matching.decode(shots, values)


@needs_c
def test_unexplainable_shot_and_missing_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    matching, events, log_odds = drawn(problem(3), 200, 1.0)
    expected = matching.decode(events, log_odds)
    monkeypatch.setattr(backends, "compiled_soft_matcher", lambda: lambda *_: -1)
    assert np.array_equal(matching.decode(events, log_odds), expected), "PyMatching decodes them"
    ring = stim.DetectorErrorModel("error(0.1) D0 D1 L0\nerror(0.1) D1 D2\nerror(0.1) D0 D2")
    code = DemFileCode(path="ring.dem", text=str(ring))
    prob = Problem.from_env(EnvSpec(name="ring", code=code, noise=FileNoise(), seed_policy=BANDS))
    with pytest.raises(ValueError, match="parity"):
        SoftMatching(prob.matching_graph, 3).decode(np.full((1, 1), 7, np.uint8), np.full((1, 3), -1, np.float32))
