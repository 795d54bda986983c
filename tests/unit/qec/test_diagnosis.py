"""Diagnoses of the first shots of a model, and the statistics that they compare."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest

from autoqec.qec import diagnosis as diagnosis_module
from autoqec.qec.diagnosis import (
    CHECKED_EVENTS,
    MIN_SHOTS,
    EventModel,
    diagnose_first_shots,
)
from autoqec.qec.error_stream import ErrorStream
from autoqec.qec.event_statistics import (
    MAX_PAIR_DETECTORS,
    count_events,
    model_statistics,
    statistics_of_first,
)
from autoqec.qec.problem import Problem, error_model
from autoqec.qec.sampling import LabelledSampler, sample
from tests.support.envs import problem, surface


@pytest.mark.parametrize("shots", [200, 300, 1000])
def test_few_first_shots_of_the_model_raise_no_alarm(shots: int) -> None:
    drawn = sample(problem(3, 0.001), 60 * shots, 3).detection_events
    for start in range(0, len(drawn), shots):
        assert diagnose_first_shots(partial(EventModel.of_first, problem(3, 0.001)), drawn[start : start + shots]) == []


def test_model_statistics_equal_those_of_sampled_shots() -> None:
    model = problem(3)
    labelled = LabelledSampler(model, 9).draw(40_000)
    counts = count_events([np.packbits(labelled.detections, axis=1, bitorder="little")], model.n_detectors)
    expected = model_statistics(model.H, model.mechanism_probs)
    assert np.abs(counts.fractions - expected.fractions).max() < 0.01
    assert np.abs(counts.correlations - expected.correlations).max() < 0.03


@pytest.mark.parametrize("n_detectors", [24, 17])
def test_statistics_of_the_first_detectors_need_no_matrix_of_all_errors(n_detectors: int) -> None:
    model = Problem.from_env(surface(3, rounds=12))
    loops = error_model(model.circuit, model.env)
    assert "repeat" in str(loops)
    found = statistics_of_first(ErrorStream(loops), n_detectors)
    expected = model_statistics(model.H[:n_detectors], model.mechanism_probs)
    assert np.allclose(found.fractions, expected.fractions) and np.allclose(found.correlations, expected.correlations)


def test_experiments_too_long_to_count_all_detectors_are_checked_by_their_first_ones(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With a lower bound, which 340 rounds exceed as 2700 rounds exceed that of the package."""
    monkeypatch.setattr(diagnosis_module, "CHECKED_EVENTS", CHECKED_EVENTS // 8)
    model = Problem.from_env(surface(3, rounds=340))
    assert MIN_SHOTS * model.n_detectors > CHECKED_EVENTS // 8 and model.n_detectors > MAX_PAIR_DETECTORS
    width = model.n_detectors // 8
    for drawn, names in ((model, []), (Problem.from_env(surface(5, rounds=4)), ["wrong_model"])):
        n = 400 * -(-model.n_detectors // drawn.n_detectors)
        packed = sample(drawn, n, 1).detection_events.reshape(-1)[: 400 * width].reshape(400, width)
        found = diagnose_first_shots(partial(EventModel.of_first, model), packed)
        assert found is not None and [each.name for each in found] == names


def test_too_few_first_shots_need_no_model() -> None:
    few = sample(problem(3), MIN_SHOTS - 1, 3).detection_events
    assert diagnose_first_shots(lambda: pytest.fail("the model was computed"), few) is None
