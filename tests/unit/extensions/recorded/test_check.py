"""Diagnoses of recorded shots: planted faults are named, and shots that fit raise no alarm."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from autoqec.contracts.env import Si1000Noise
from autoqec.errors import UsageError
from autoqec.extensions.recorded.check import check_blocks, diagnose_observables
from autoqec.extensions.recorded.shots import RecordedShots
from autoqec.qec.backends import Mwpm
from autoqec.qec.diagnosis import (
    Diagnosis,
    diagnose_events,
)
from autoqec.qec.event_statistics import (
    count_events,
)
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import Shots, sample
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


def test_another_noise_model_of_the_same_circuit_raises_no_alarm() -> None:
    env = surface(3, 0.004)
    other = env.model_copy(update={"noise": Si1000Noise(p=(0.004,), target_p=0.004)})
    shots = sample(Problem.from_env(other), SHOTS, 5)
    assert diagnoses(Problem.from_env(env), shots) == []


def test_much_stronger_noise_is_noted_but_no_error() -> None:
    found = diagnoses(problem(3, 0.001), sample(problem(3, 0.01), SHOTS, 5))
    assert [(diagnosis.name, diagnosis.error) for diagnosis in found] == [("other_noise_strength", False)]


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
