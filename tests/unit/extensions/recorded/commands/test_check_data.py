"""`autoqec check-data` and `autoqec add-env --recorded`."""

from __future__ import annotations

import io
import json
from pathlib import Path

import numpy as np
import pytest
import stim
from rich.console import Console

from autoqec.cli.autoqec import group
from autoqec.cli.common import run_cli
from autoqec.extensions.recorded import estimation
from autoqec.extensions.recorded.code import RecordedManifest, RecordedShotsCode
from autoqec.extensions.recorded.estimation import with_probabilities
from autoqec.qec.backends import make_backend
from autoqec.qec.sampling import sample
from autoqec.reporting import terminal
from autoqec.store.files import load_env
from tests.support.envs import problem
from tests.support.recorded import google_directory, plain_directory, write_predictions, write_shots
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
    shots = sample(problem(3), 2000, 101)  # the second block: the first half trains the estimate
    wrong = make_backend("mwpm", problem(3)).decode(shots.detection_events) != shots.observables
    assert (
        figures["errors"]["mwpm"] == wrong.any(1).sum() and figures["decoded_shots"] == figures["train_shots"] == 2000
    )
    assert set(figures["errors"]) == {"mwpm", "mwpm_correlated", "mwpm_estimated", "mwpm_correlated_estimated"}
    assert set(figures["gains"]) == set(figures["errors"]) - {"mwpm"} and figures["block_shots"] == 50
    effect = figures["gains"]["mwpm_estimated"]
    assert effect["low"] <= effect["relative"] <= effect["high"] and effect["blocks"] == 40
    assert "block 0 (events0.b8), simulated, basis z: 2000 shots, fits the model" in shown.err


def test_few_shots_are_not_said_to_fit(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain_directory(here / "data", 128, 1)
    assert run_cli(group, ["check-data", "data", "--no-decode"]) == 0
    shown = capsys.readouterr().out
    assert "128 shots, too few to compare with the model (less than 200)" in shown and "fits" not in shown


@pytest.mark.parametrize("quiet", [True, False])
def test_reading_is_shown_on_a_terminal(here: Path, monkeypatch: pytest.MonkeyPatch, quiet: bool) -> None:
    plain_directory(here / "data", 2000, 2)
    written = io.StringIO()
    target = Console(file=written, force_terminal=True, width=120)
    monkeypatch.setattr(terminal, "console", lambda err: target)
    assert run_cli(group, ["check-data", "data", *(["-q"] if quiet else [])]) == 0
    assert ("reading recorded shots" in written.getvalue()) != quiet


def test_predictions_of_others_are_scored(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    google_directory(here / "data")
    assert run_cli(group, ["check-data", "data", "--json"]) == 0
    errors = json.loads(capsys.readouterr().out)["errors"]
    assert errors["constant"] > errors["mwpm"] > 0


@pytest.mark.parametrize("moved_by", [0, 1])
def test_predictions_in_another_order_are_named(here: Path, capsys: pytest.CaptureFixture[str], moved_by: int) -> None:
    plain_directory(here / "data", 2000, 2)
    write_predictions(here / "data", "other", 20)
    for path in (here / "data").glob("other*.b8"):
        np.roll(np.fromfile(path, np.uint8), moved_by).tofile(path)
    assert run_cli(group, ["check-data", "data"]) == 0
    warning = "warning: the predictions of other have more than twice the errors of mwpm"
    assert (warning in capsys.readouterr().err) is (moved_by > 0)


@pytest.mark.parametrize("flips", [True, False])
def test_predictions_without_errors_are_named(here: Path, capsys: pytest.CaptureFixture[str], flips: bool) -> None:
    """A copy of the recorded flips; predictions that are wrong in the first shot of a file have an error."""
    plain_directory(here / "data", 2000, 1)
    write_predictions(here / "data", "other", 2000)
    if flips:
        recorded = stim.read_shot_data_file(path=here / "data/flips0.01", format="01", num_observables=1)
        write_shots(here / "data/other0.b8", recorded, "observables")
    assert run_cli(group, ["check-data", "data"]) == 0
    warning = "warning: the predictions of other have no errors, those of mwpm "
    assert warning in capsys.readouterr().err, "the first half, which trains the estimate, is not decoded"
    assert run_cli(group, ["add-env", "mine", "--recorded", "data", "--shots", "200"]) == 0
    warning = "warning: recorded:other makes no errors on the 1200 training and validation shots: no gain over it"
    assert (warning in capsys.readouterr().err) is flips
    chosen = ["add-env", "chosen", "--recorded", "data", "--shots", "200", "--baselines", "mwpm"]
    assert run_cli(group, chosen) == 0
    assert "warning" not in capsys.readouterr().err


def test_predictions_of_others_become_baselines_of_an_env(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    google_directory(here / "data")
    assert run_cli(group, ["add-env", "mine", "--recorded", "data", "--shots", "200"]) == 0
    assert "which a verified gain must beat: recorded:constant" in capsys.readouterr().out
    env, _ = load_env(here / "mine.yaml")
    assert env.predicted_by == ("constant",)
    assert "obs_flips_predicted_by_constant.01" in {file.path for file in RecordedShotsCode.of(env).files.files}
    chosen = ["add-env", "chosen", "--recorded", "data", "--shots", "200", "--baselines", "mwpm"]
    assert run_cli(group, chosen) == 0
    assert load_env(here / "chosen.yaml")[0].baselines == ("mwpm",)


@pytest.mark.parametrize("command", [["check-data", "data"], ["add-env", "mine", "--recorded", "data"]])
def test_predictions_of_other_shots_are_refused_before_anything_is_estimated(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    path = google_directory(here / "data") / "obs_flips_predicted_by_constant.01"
    path.write_bytes(path.read_bytes()[:-20])
    monkeypatch.setattr(estimation, "estimate_dem", lambda *given, **more: pytest.fail("estimated"))
    capsys.readouterr()
    assert run_cli(group, [*command, "-q"]) == 2
    shown = capsys.readouterr().err
    check_error(shown, "obs_flips_predicted_by_constant.01", hint=True)
    assert "holds 3990 predictions of constant, but its block has 4000 shots" in shown
    assert not list(here.glob("mine*"))


def test_estimated_model_decodes_a_device_better_than_the_model_given(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = problem(3)
    uneven = model.mechanism_probs * np.exp(np.random.default_rng(2).normal(0, 1.2, model.n_mechanisms))
    device = model.with_dem(with_probabilities(model.dem, np.minimum(uneven, 0.3)))
    shots = device.dem.compile_sampler(seed=3).sample(40_000)
    directory = plain_directory(here / "data", 64, 1)
    write_shots(directory / "events0.b8", shots[0])
    write_shots(directory / "flips0.01", shots[1], "observables")
    assert run_cli(group, ["check-data", "data", "--dem-out", "device.dem", "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    gain = figures["gains"]["mwpm_correlated_estimated"]
    assert gain["low"] > 0 and gain["e_value"] > 20
    assert figures["errors"]["mwpm_estimated"] < figures["errors"]["mwpm"]
    found = model.with_dem(stim.DetectorErrorModel.from_file("device.dem"))
    assert found.n_mechanisms == model.n_mechanisms


@pytest.mark.parametrize(("option", "value"), [("--train-shots", "640"), ("--block-shots", "400")])
def test_options_that_leave_nothing_to_decode(
    here: Path, capsys: pytest.CaptureFixture[str], option: str, value: str
) -> None:
    plain_directory(here / "data", 640, 1)
    capsys.readouterr()
    assert run_cli(group, ["check-data", "data", "-q", option, value]) == 2
    check_error(capsys.readouterr().err, option, hint=True)


def test_mismatch_is_named_and_not_scored(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = plain_directory(here / "data", 2000, 1)
    flips = (directory / "flips0.01").read_bytes().translate(bytes.maketrans(b"01", b"10"))
    (directory / "flips0.01").write_bytes(flips)
    assert run_cli(group, ["check-data", "data", "--json"]) == 1
    shown = capsys.readouterr()
    figures = json.loads(shown.out)
    assert [diagnosis["name"] for diagnosis in figures["diagnoses"][0]] == ["inverted_observables"]
    assert "errors" not in figures and "likely cause" in shown.err
    assert run_cli(group, ["add-env", "mine", "--recorded", "data"]) == 2
    check_error(capsys.readouterr().err.splitlines()[-2] + "\nhint: x", "inverted_observables")
    assert not (here / "mine.yaml").exists()


def test_add_env_writes_env_and_manifest(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    google_directory(here / "data")
    assert run_cli(group, ["add-env", "mine", "--recorded", "data", "--shots", "200"]) == 0
    env, _ = load_env(here / "mine.yaml")
    assert RecordedShotsCode.of(env).rounds == 3 and env.noise.model == "from_file"
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


def test_block_size_and_candidates_are_options(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plain_directory(here / "data", 1000, 2)
    options = ["--recorded", "data", "--shots", "100", "--block-shots", "20", "--candidates", "3"]
    assert run_cli(group, ["add-env", "mine", *options]) == 0
    env, _ = load_env(here / "mine.yaml")
    code = RecordedShotsCode.of(env)
    assert (code.block_shots, code.candidates, code.files.estimated_shots) == (20, 3, 1000)
    assert env.baselines == ("mwpm", "mwpm_correlated", "mwpm_estimated", "mwpm_correlated_estimated")
    capsys.readouterr()
    assert run_cli(group, ["add-env", "few", "--recorded", "data", "--block-shots", "200"]) == 2
    check_error(capsys.readouterr().err.splitlines()[-2] + "\nhint: x", "each of 4 candidates")
    assert not list(here.glob("few*"))
    generated = ["--code", "surface_code:rotated_memory_z", "--distance", "3", "--p", "0.01"]
    assert run_cli(group, ["add-env", "other", *generated, "--candidates", "3"]) == 2
    check_error(capsys.readouterr().err, "--candidates", "needs --recorded", hint=True)
