"""Estimation of error probabilities from detection events alone."""

from __future__ import annotations

import numpy as np
import pytest
import stim

from autoqec.errors import UsageError
from autoqec.extensions.recorded import estimation
from autoqec.extensions.recorded.estimation import estimate_dem, match_moments, with_probabilities
from autoqec.qec.event_statistics import count_events
from autoqec.qec.problem import Problem
from tests.support.envs import problem, repetition

SHOTS = 60_000


def drawn(model: Problem, seed: int, shots: int = SHOTS) -> list[np.ndarray]:
    events = model.dem.compile_sampler(seed=seed).sample(shots, bit_packed=True)[0]
    return [events[start : start + 8192] for start in range(0, shots, 8192)]


def estimated(nominal: Problem, device: Problem, seed: int, shots: int = SHOTS) -> Problem:
    return nominal.with_other_dem(estimate_dem(nominal, drawn(device, seed, shots), shots))


def uneven(model: Problem, spread: float) -> Problem:
    factors = np.exp(np.random.default_rng(1).normal(0, spread, model.n_mechanisms))
    return model.with_dem(with_probabilities(model.dem, np.minimum(model.mechanism_probs * factors, 0.3)))


def test_probabilities_of_a_graph_like_model_are_recovered() -> None:
    nominal = Problem.from_env(repetition(5))
    device = uneven(nominal, 0.7)
    found = estimated(nominal, device, 4)
    # mechanisms with the same detectors and observables are indistinguishable: compare edges
    error = np.abs(np.log(found.matching_graph.prior / device.matching_graph.prior))
    nominal_error = np.abs(np.log(nominal.matching_graph.prior / device.matching_graph.prior))
    assert np.median(error) < 0.05 < 0.3 < np.median(nominal_error)


def test_likelihood_is_nearer_to_the_device_than_moments() -> None:
    nominal = problem(3)
    device = uneven(nominal, 0.7)
    moments = match_moments(nominal, count_events(drawn(device, 4), nominal.n_detectors))[1]
    found = estimated(nominal, device, 4).mechanism_probs

    def error(probs: np.ndarray) -> float:
        return float(np.median(np.abs(np.log(probs / device.mechanism_probs))))

    assert error(found) < 0.7 * error((1 - np.exp(-moments)) / 2)


def test_shots_of_dependent_errors_keep_the_estimate_of_the_moments() -> None:
    nominal = problem(3)
    parts = drawn(nominal, 4, 30_000)
    leaked = np.random.default_rng(1).random(30_000) < 0.1  # every detector of a tenth of the shots is noisier
    noisier = nominal.with_dem(with_probabilities(nominal.dem, np.minimum(nominal.mechanism_probs * 4, 0.3)))
    other = np.concatenate(drawn(noisier, 5, 30_000))
    events = np.where(leaked[:, None], other, np.concatenate(parts))
    moments = match_moments(nominal, count_events([events], nominal.n_detectors))[1]
    found = nominal.with_dem(estimate_dem(nominal, [events], len(events)))
    assert np.allclose(found.mechanism_probs, (1 - np.exp(-moments)) / 2)


def test_estimates_of_hyperedges_move_towards_the_device() -> None:
    nominal = problem(3)
    device = uneven(nominal, 1.0)
    found = estimated(nominal, device, 4)
    edges = [np.log(model.matching_graph.prior) for model in (found, nominal, device)]
    assert np.sqrt(((edges[0] - edges[2]) ** 2).mean()) < 0.6 * np.sqrt(((edges[1] - edges[2]) ** 2).mean())


def test_mechanisms_larger_than_a_group_are_estimated() -> None:
    text = "error(0.02) " + " ^ ".join(f"D{first} D{first + 1}" for first in range(0, 8, 2)) + " L0\n"
    text += "".join(f"error(0.02) D{detector} D{(detector + 1) % 8}\n" for detector in range(8))
    nominal = problem(3).with_other_dem(stim.DetectorErrorModel(text))
    device = nominal.with_other_dem(with_probabilities(nominal.dem, np.array([0.1, *[0.04] * 4, *[0.01] * 4])))
    assert np.allclose(estimated(nominal, device, 4).mechanism_probs, device.mechanism_probs, rtol=0.15)


def test_every_detector_is_in_a_group_of_its_mechanisms() -> None:
    nominal = problem(3)
    groups = [set(group.tolist()) for group in estimation.detector_groups(nominal)]
    supports = [set(column.indices.tolist()) for column in nominal.H.T.tocsr()]
    assert all(any(support <= group for group in groups) for support in supports)


def test_patterns_of_very_many_shots_are_counted_in_parts_over_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(estimation, "MAX_SHOTS", 250)
    nominal = problem(3)
    parts = drawn(nominal, 4, 8192 * 4)[:1] * 4  # equal parts of 8192 shots
    marked = [np.where(index % 4 == 0, part[:100], 0).astype(np.uint8) for index, part in enumerate(parts * 2)]
    counter = estimation.PatternCounter(nominal, 800)
    assert all(seen is part for seen, part in zip(counter.watch(marked), marked, strict=True))
    assert (counter.counts.sum(1) == 200).all()  # parts 0 and 4
    assert (counter.counts[:, 0] < 200).all()


@pytest.mark.parametrize("shots", [1, 20, 500])
def test_few_shots_stay_near_the_model(shots: int) -> None:
    nominal = problem(3)
    probs = estimated(nominal, nominal, 2, shots).mechanism_probs
    assert np.isfinite(probs).all() and (probs > 0).all() and (probs < 0.5).all()


def test_structure_of_the_model_is_kept() -> None:
    nominal = problem(3)
    found = estimate_dem(nominal, drawn(nominal, 2), SHOTS)
    assert found.num_errors == nominal.dem.num_errors
    assert with_probabilities(found, nominal.mechanism_probs) == nominal.dem
    assert found.get_detector_coordinates() == nominal.dem.get_detector_coordinates()


def test_mechanisms_without_probability_keep_none() -> None:
    dem = stim.DetectorErrorModel("error(0.1) D0 L0\nerror(0.1) D0 D1\nerror(0) D1")
    nominal = problem(3).with_other_dem(dem)
    assert estimated(nominal, nominal, 2).mechanism_probs[2] == 0


def test_shots_without_events_are_rejected() -> None:
    with pytest.raises(UsageError, match="no detection events"):
        estimate_dem(problem(3), [np.zeros((5, 3), np.uint8)], 5)
