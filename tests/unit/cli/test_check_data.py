"""`autoqec check-data` and `autoqec add-env --recorded`."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from autoqec.cli.autoqec import group
from autoqec.cli.common import run_cli
from autoqec.contracts.recorded import RecordedManifest
from autoqec.qec.backends import make_backend
from autoqec.qec.sampling import sample
from autoqec.store.files import load_env
from tests.support.envs import problem
from tests.support.recorded import google_directory, plain_directory
from tests.support.shown import check_error


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_check_data_decodes_shots_that_fit(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain_directory(here / "data", 2000, 2)
    assert run_cli(group, ["check-data", "data", "--json"]) == 0
    shown = capsys.readouterr()
    figures = json.loads(shown.out)
    assert figures["shots"] == [2000, 2000] and figures["diagnoses"] == [[], []]
    expected = []
    for seed in (100, 101):
        shots = sample(problem(3), 2000, seed)
        wrong = make_backend("mwpm", problem(3)).decode(shots.detection_events) != shots.observables
        expected.append(int(wrong.any(1).sum()))
    assert figures["errors"]["mwpm"] == expected and set(figures["errors"]) == {"mwpm", "mwpm_correlated"}
    assert "block 0 (events0.b8), simulated, basis z: 2000 shots, fits the model" in shown.err


def test_predictions_of_others_are_scored(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    google_directory(here / "data")
    assert run_cli(group, ["check-data", "data", "--json"]) == 0
    errors = json.loads(capsys.readouterr().out)["errors"]
    assert errors["constant"][0] > errors["mwpm"][0] > 0


def test_mismatch_is_named_and_not_scored(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = plain_directory(here / "data", 2000, 1)
    flips = (directory / "flips0.01").read_bytes().translate(bytes.maketrans(b"01", b"10"))
    (directory / "flips0.01").write_bytes(flips)
    assert run_cli(group, ["check-data", "data", "--json"]) == 1
    shown = capsys.readouterr()
    figures = json.loads(shown.out)
    assert [diagnosis["name"] for diagnosis in figures["diagnoses"][0]] == ["inverted_observables"]
    assert figures["errors"] == {} and "likely cause" in shown.err
    assert run_cli(group, ["add-env", "mine", "--recorded", "data"]) == 2
    check_error(capsys.readouterr().err.splitlines()[-2] + "\nhint: x", "inverted_observables")
    assert not (here / "mine.yaml").exists()


def test_add_env_writes_env_and_manifest(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    google_directory(here / "data")
    assert run_cli(group, ["add-env", "mine", "--recorded", "data", "--shots", "200"]) == 0
    env, _ = load_env(here / "mine.yaml")
    assert env.code.kind == "stim_file" and env.code.rounds == 3 and env.noise.model == "from_file"
    manifest = RecordedManifest.read(json.loads((here / "mine.recorded.json").read_text()))
    assert manifest.shots == (4000,) and manifest.directory == "data"
    assert "detection_events.b8" in {file.path for file in manifest.files}
    assert run_cli(group, ["check-data", "data", "--manifest", "mine.recorded.json", "--no-decode"]) == 0
    events = here / "data" / "detection_events.b8"
    events.write_bytes(np.roll(np.frombuffer(events.read_bytes(), np.uint8), 3).tobytes())
    capsys.readouterr()
    assert run_cli(group, ["check-data", "data", "--manifest", "mine.recorded.json"]) == 2
    check_error(capsys.readouterr().err, "detection_events.b8", "manifest", hint=True)


@pytest.mark.parametrize("option", ["--code", "--basis", "--rounds", "--hx"])
def test_recorded_excludes_other_codes(here: Path, capsys: pytest.CaptureFixture[str], option: str) -> None:
    plain_directory(here / "data", 64, 1)
    value = {"--basis": "z", "--rounds": "3"}.get(option, "surface_code:rotated_memory_z")
    assert run_cli(group, ["add-env", "mine", "--recorded", "data", option, value]) == 2
    check_error(capsys.readouterr().err, option, "cannot be combined", hint=True)
