"""Diagnoses of recorded shots: planted faults are named, and shots that fit raise no alarm."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from autoqec.contracts.env import Si1000Noise
from autoqec.errors import UsageError
from autoqec.extensions.recorded.check import check_blocks, diagnose_observables
from autoqec.extensions.recorded.shots import RecordedShots
from autoqec.qec import diagnosis as diagnosis_module
from autoqec.qec.backends import Mwpm
from autoqec.qec.diagnosis import (
    CHECKED_EVENTS,
    MIN_SHOTS,
    Diagnosis,
    EventModel,
    diagnose_events,
    diagnose_first_shots,
)
from autoqec.qec.error_stream import ErrorStream
from autoqec.qec.event_statistics import (
    MAX_PAIR_DETECTORS,
    ModelStatistics,
    count_events,
    model_statistics,
    statistics_of_first,
)
from autoqec.qec.problem import Problem, error_model
from autoqec.qec.sampling import LabelledSampler, Shots, sample
from tests.support.envs import problem, surface
from tests.support.planted import DEVICES, SHOTS, device, planted
from tests.support.recorded import google_directory, plain_directory, unpacked, write_shots


def diagnoses(model: Problem, shots: Shots) -> list[Diagnosis]:
    found = diagnose_events(model, count_events([shots.detection_events], model.n_detectors))
    if not any(diagnosis.error for diagnosis in found):
        found += diagnose_observables(model, shots, Mwpm(model).decode)
    return found


def test_a_hundred_planted_faults_are_named() -> None:
    cases = list(planted())
    wrong = {}
    for case in cases:
        names = [diagnosis.name for diagnosis in diagnoses(case.model, case.shots)]
        if case.name not in names:
            wrong[case.label] = (case.name, names)
    assert not wrong
    assert len(cases) >= 100
    assert len({case.name for case in cases}) >= 17


@pytest.mark.parametrize("key", DEVICES)
@pytest.mark.parametrize("seed", [21, 22, 23, 24])
def test_shots_of_another_noise_strength_raise_no_alarm(key: str, seed: int) -> None:
    assert diagnoses(*device(key, seed)) == []


@pytest.mark.parametrize("shots", [1, 10, 100, 500])
def test_few_shots_raise_no_alarm(shots: int) -> None:
    assert diagnoses(problem(3), sample(problem(3), shots, 3)) == []


@pytest.mark.parametrize("shots", [200, 300, 1000])
def test_few_first_shots_of_the_model_raise_no_alarm(shots: int) -> None:
    drawn = sample(problem(3, 0.001), 60 * shots, 3).detection_events
    for start in range(0, len(drawn), shots):
        assert diagnose_first_shots(partial(EventModel.of_first, problem(3, 0.001)), drawn[start : start + shots]) == []


def test_check_of_the_first_shots_computes_the_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    computed = []

    def statistics(*args: Any) -> ModelStatistics:
        computed.append(model_statistics(*args))
        return computed[-1]

    monkeypatch.setattr("autoqec.qec.diagnosis.model_statistics", statistics)
    assert (
        diagnose_first_shots(partial(EventModel.of_first, problem(3)), sample(problem(3), 10, 3).detection_events)
        is None
    )
    assert len(computed) == 0
    assert (
        diagnose_first_shots(partial(EventModel.of_first, problem(3)), sample(problem(3), 4000, 3).detection_events)
        == []
    )
    assert len(computed) == 1


def test_another_noise_model_of_the_same_circuit_raises_no_alarm() -> None:
    env = surface(3, 0.004)
    other = env.model_copy(update={"noise": Si1000Noise(p=(0.004,), target_p=0.004)})
    shots = sample(Problem.from_env(other), SHOTS, 5)
    assert diagnoses(Problem.from_env(env), shots) == []


def test_much_stronger_noise_is_noted_but_no_error() -> None:
    found = diagnoses(problem(3, 0.001), sample(problem(3, 0.01), SHOTS, 5))
    assert [(diagnosis.name, diagnosis.error) for diagnosis in found] == [("other_noise_strength", False)]


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


def names(directory: Path) -> list[list[str]]:
    recorded = RecordedShots.open(directory)
    return [[diagnosis.name for diagnosis in check.diagnoses] for check in check_blocks(recorded, problem(3))]


def test_blocks_that_fit_have_no_diagnosis(tmp_path: Path) -> None:
    assert names(plain_directory(tmp_path / "plain")) == [[], []]
    assert names(google_directory(tmp_path / "google")) == [[]]


def test_exchanged_and_duplicated_files_are_named(tmp_path: Path) -> None:
    directory = plain_directory(tmp_path / "exchanged", blocks=3)
    first, second = directory / "flips0.01", directory / "flips1.01"
    content = first.read_bytes()
    first.write_bytes(second.read_bytes())
    second.write_bytes(content)
    assert names(directory) == [["exchanged_files"], ["exchanged_files"], []]
    directory = plain_directory(tmp_path / "copied", blocks=2)
    for name in ("events{}.b8", "flips{}.01"):
        (directory / name.format(1)).write_bytes((directory / name.format(0)).read_bytes())
    assert names(directory) == [[], ["duplicated_block"]]


@pytest.mark.parametrize(("rounds", "name"), [(4, "wrong_rounds"), (6, "wrong_rounds"), (2, "wrong_rounds")])
def test_other_number_of_rounds_is_named(tmp_path: Path, rounds: int, name: str) -> None:
    directory = plain_directory(tmp_path, 2000, 1)
    other = Problem.from_env(surface(3, rounds=rounds))
    shots = sample(other, 2000, 8)
    write_shots(directory / "events0.b8", unpacked(shots, other.n_detectors))
    write_shots(directory / "flips0.01", shots.observables, "observables")
    assert names(directory) == [[name]]


def test_text_and_empty_files_are_not_taken_for_other_rounds(tmp_path: Path) -> None:
    directory = plain_directory(tmp_path, 640, 1)
    events = directory / "events0.b8"
    write_shots(directory / "text.01", unpacked(sample(problem(3), 640, 1), 24))
    (directory / "text.01").replace(events)
    with pytest.raises(UsageError, match="text of 0 and 1"):
        names(directory)
    events.write_bytes(b"")
    with pytest.raises(UsageError, match="has 0 shots, but flips0.01 has 640"):
        names(directory)


def test_measurements_in_place_of_events_are_named(tmp_path: Path) -> None:
    directory = google_directory(tmp_path)
    (directory / "measurements.b8").replace(directory / "detection_events.b8")
    assert names(directory) == [["measurements_instead_of_events"]]


def test_missing_sweep_bits_show_in_the_first_round(tmp_path: Path) -> None:
    directory = google_directory(tmp_path)
    sweep = directory / "sweep_bits.b8"
    sweep.write_bytes(b"\0" * sweep.stat().st_size)
    (directory / "detection_events.b8").unlink()
    recorded = RecordedShots.open(directory)
    found = check_blocks(recorded, problem(3))[0].diagnoses
    assert "random_first_round" in [diagnosis.name for diagnosis in found]


def test_measurements_that_disagree_with_the_events_are_named(tmp_path: Path) -> None:
    directory = google_directory(tmp_path)
    path = directory / "measurements.b8"
    path.write_bytes(path.read_bytes()[::-1])
    content = bytearray(path.read_bytes())
    recorded = RecordedShots.open(directory)
    width = -(-recorded.source.num_measurements // 8)  # type: ignore[union-attr]
    content[width - 1 :: width] = bytes(len(content) // width)  # keep the padding bits clear
    path.write_bytes(bytes(content))
    assert names(directory) == [["measurements_disagree"]]


def test_dem_of_another_circuit_is_named(tmp_path: Path) -> None:
    directory = plain_directory(tmp_path, 4000, 1)
    layout = yaml.safe_load((directory / "recorded.yaml").read_text()) | {"model": "model.dem"}
    (directory / "recorded.yaml").write_text(yaml.safe_dump(layout))
    other = problem(3, basis="x").dem
    (directory / "model.dem").write_text(str(other))
    recorded = RecordedShots.open(directory)
    found = check_blocks(recorded, problem(3).with_other_dem(other))[0].diagnoses
    assert found and all(diagnosis.error for diagnosis in found)


@pytest.mark.parametrize(("basis", "rounds"), [("x", 3), ("z", 3), ("x", 2), ("z", 2)])
def test_other_basis_is_not_taken_for_another_order(basis: str, rounds: int) -> None:
    model = Problem.from_env(surface(3, 0.008, basis, rounds))
    other = Problem.from_env(surface(3, 0.008, "z" if basis == "x" else "x", rounds))
    (found,) = diagnoses(model, sample(other, 6000, 3))
    assert found.name == "wrong_model" and "basis" in found.cause
