"""Estimation of error probabilities from detection events alone."""

from __future__ import annotations

import numpy as np
import pytest
import stim

from autoqec.errors import UsageError
from autoqec.qec.problem import Problem
from autoqec.qec.recorded.estimation import estimate_dem, with_probabilities
from autoqec.qec.recorded.statistics import EventCounts, count_events
from tests.support.envs import problem, repetition

SHOTS = 60_000


def counted(model: Problem, seed: int, shots: int = SHOTS) -> EventCounts:
    events = model.dem.compile_sampler(seed=seed).sample(shots, bit_packed=True)[0]
    parts = [events[start : start + 8192] for start in range(0, shots, 8192)]
    return count_events(parts, model.n_detectors)


def uneven(model: Problem, spread: float) -> Problem:
    factors = np.exp(np.random.default_rng(1).normal(0, spread, model.n_mechanisms))
    return model.with_dem(with_probabilities(model.dem, np.minimum(model.mechanism_probs * factors, 0.3)))


def test_probabilities_of_a_graph_like_model_are_recovered() -> None:
    nominal = Problem.from_env(repetition(5))
    device = uneven(nominal, 0.7)
    found = nominal.with_dem(estimate_dem(nominal, counted(device, 4)))
    # mechanisms with the same detectors and observables are indistinguishable: compare edges
    error = np.abs(np.log(found.matching_graph.prior / device.matching_graph.prior))
    nominal_error = np.abs(np.log(nominal.matching_graph.prior / device.matching_graph.prior))
    assert np.median(error) < 0.05 < 0.3 < np.median(nominal_error)


def test_estimates_of_hyperedges_move_towards_the_device() -> None:
    nominal = problem(3)
    device = uneven(nominal, 1.0)
    found = nominal.with_dem(estimate_dem(nominal, counted(device, 4)))
    edges = [np.log(model.matching_graph.prior) for model in (found, nominal, device)]
    assert np.sqrt(((edges[0] - edges[2]) ** 2).mean()) < 0.6 * np.sqrt(((edges[1] - edges[2]) ** 2).mean())


@pytest.mark.parametrize("shots", [1, 20, 500])
def test_few_shots_stay_near_the_model(shots: int) -> None:
    nominal = problem(3)
    probs = nominal.with_dem(estimate_dem(nominal, counted(nominal, 2, shots))).mechanism_probs
    assert np.isfinite(probs).all() and (probs > 0).all() and (probs < 0.5).all()


def test_structure_of_the_model_is_kept() -> None:
    nominal = problem(3)
    estimated = estimate_dem(nominal, counted(nominal, 2))
    assert estimated.num_errors == nominal.dem.num_errors
    assert with_probabilities(estimated, nominal.mechanism_probs) == nominal.dem
    assert estimated.get_detector_coordinates() == nominal.dem.get_detector_coordinates()


def test_mechanisms_without_probability_keep_none() -> None:
    dem = stim.DetectorErrorModel("error(0.1) D0 L0\nerror(0.1) D0 D1\nerror(0) D1")
    nominal = problem(3).with_other_dem(dem)
    assert nominal.with_other_dem(estimate_dem(nominal, counted(nominal, 2))).mechanism_probs[2] == 0


def test_shots_without_events_are_rejected() -> None:
    with pytest.raises(UsageError, match="no detection events"):
        estimate_dem(problem(3), count_events([np.zeros((5, 3), np.uint8)], 24))
