"""`autoqec decode`: shot formats of stim, models other than that of the env, and invalid input."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stim
import torch

import autoqec
from autoqec.cli.autoqec import group
from autoqec.cli.commands.decode import FORMATS, first_shots
from autoqec.cli.common import run_cli
from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.env import DemFileCode, EnvSpec, FileNoise
from autoqec.decoders import checkpoint, decode_memory, threads, windows
from autoqec.decoders.decoding import CHUNK, CheckpointDecoder
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.decoders.latency import WARM_UP_SHOTS, measure_latency
from autoqec.decoders.shot_check import check_shots
from autoqec.errors import ContractError, UsageError
from autoqec.models import load_models, model_env, model_path
from autoqec.qec import backends, shotfiles, weighted_mwpm
from autoqec.qec.backends import make_backend
from autoqec.qec.problem import Problem, error_model
from autoqec.qec.problem_memory import ModelSize
from autoqec.qec.sampling import sample, unpack
from autoqec.store.files import dump_config
from autoqec.system import memory
from tests.support.envs import BANDS, problem, surface

SHOTS = CHUNK + 64  # more than a chunk, and whole groups of 64


def trained(place: Path, env: EnvSpec, mode: str = "soft_priors", **block: Any) -> Path:
    """Save a checkpoint with changed weights, so that its predictions differ from those of the inner decoder."""
    dsl = parse_dsl({"type": "mlp", "output_mode": mode, "mlp": {"hidden": 8, **block}})
    model = compile_predecoder(dsl, Problem.from_env(env), seed=1)
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3))
    checkpoint.save(place / "checkpoint.pt", model, dsl)
    (place / "env.yaml").write_text(dump_config(env.dump()), encoding="utf-8")
    return place / "checkpoint.pt"


def write(path: Path, detection_events: np.ndarray, form: str, n: int = 24) -> Path:
    stim.write_shot_data_file(data=detection_events, path=path, format=form, num_detectors=n)
    return path


def decode(place: Path, *more: str, out: str = "out.b8", shots: str = "shots.b8") -> int:
    env = () if "--env" in more else ("--env", str(place / "env.yaml"))
    files = ("--in", str(place / shots), "--out", str(place / out))
    return run_cli(group, ["decode", str(place / "checkpoint.pt"), *files, *env, *more])


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, np.ndarray]:
    """A directory with a checkpoint and shots, and the expected predictions; tests only add files to it."""
    place = tmp_path_factory.mktemp("decode")
    path = trained(place, surface(3))
    drawn = sample(problem(3), SHOTS, 5)
    write(place / "shots.b8", drawn.detection_events, "b8")
    return place, CheckpointDecoder.of(surface(3), path).decode(drawn.detection_events)


def test_formats_equal_those_of_shotfiles() -> None:
    assert FORMATS == shotfiles.FORMATS


@pytest.mark.parametrize("form", FORMATS)
def test_every_format_in_and_out(made: tuple[Path, np.ndarray], tmp_path: Path, form: str) -> None:
    place, expected = made
    write(tmp_path / f"shots.{form}", sample(problem(3), SHOTS, 5).detection_events, form)
    files = ("--in", str(tmp_path / f"shots.{form}"), "--out", str(tmp_path / f"out.{form}"))
    assert run_cli(group, ["decode", str(place / "checkpoint.pt"), *files, "--env", str(place / "env.yaml")]) == 0
    found = stim.read_shot_data_file(path=tmp_path / f"out.{form}", format=form, num_observables=1)
    assert np.array_equal(found, expected) and expected.any() and not expected.all()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"out.{form}", f"shots.{form}"]


def test_json_output(made: tuple[Path, np.ndarray], capsys: pytest.CaptureFixture[str]) -> None:
    place, expected = made
    assert decode(place, "--json", out="out.01", shots="shots.b8") == 0
    result = json.loads(capsys.readouterr().out)
    assert result == {
        "out": str(place / "out.01"), "shots": SHOTS, "env": "surface_d3_z", "unknown_edges": 0, "verified": False,
        "mismatches": [],
    }  # fmt: skip
    assert len((place / "out.01").read_text().splitlines()) == SHOTS


def test_shots_are_read_in_chunks(tmp_path: Path) -> None:
    detection_events = sample(problem(3), 3 * 128 + 5, 1).detection_events
    for form in ("b8", "01", "hits", "dets", "r8"):
        path = write(tmp_path / form, detection_events, form)
        sizes = [len(part) for part in shotfiles.read(path, form, 24, 128)]
        assert sizes == [128, 128, 128, 5], form


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_nonfinite_network_output_is_an_error(tmp_path: Path, value: float) -> None:
    decoding = CheckpointDecoder.of(surface(3), trained(tmp_path, surface(3)))
    decoding._model.body.head.bias.data[0] = value
    with pytest.raises(ContractError, match="checkpoint.pt: the network's outputs are not finite"):
        decoding.decode(sample(problem(3), 10, 1).detection_events)


def test_torch_runs_on_one_thread_with_any_number_of_decoding_threads(
    made: tuple[Path, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, _ = made
    counts: list[int] = []
    monkeypatch.setattr(torch, "set_num_threads", counts.append)
    monkeypatch.setattr("autoqec.decoders.threads.cpu_count", lambda: 2)
    assert decode(place, out="one.b8") == decode(place, "--threads", "2", out="two.b8") == 0
    assert set(counts) == {1} and (place / "one.b8").read_bytes() == (place / "two.b8").read_bytes()


def test_more_threads_than_cores_are_rejected(
    made: tuple[Path, np.ndarray], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, _ = made
    monkeypatch.setattr("autoqec.decoders.threads.cpu_count", lambda: 2)
    assert decode(place, "--threads", "3", out="no") == 2
    refused(capsys, "3 threads on 2 cores")
    assert not (place / "no").exists()


def test_missing_c_extension_is_named_once_and_changes_no_prediction(
    made: tuple[Path, np.ndarray], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, expected = made
    assert decode(place, out="in_c.b8") == 0
    assert "C extension" not in capsys.readouterr().err
    for name in ("compiled_matcher", "compiled_soft_matcher", "compiled_gap"):
        monkeypatch.setattr(weighted_mwpm, name, lambda: None)
    monkeypatch.setattr(backends, "compiled_soft_matcher", lambda: None)
    monkeypatch.setattr("autoqec.decoders.threads.cpu_count", lambda: 2)
    assert decode(place, "--threads", "2", out="slow.b8") == 0
    assert capsys.readouterr().err.count("the C extension is not built, so decoding is slower; see autoqec doctor") == 1
    found = np.frombuffer((place / "slow.b8").read_bytes(), np.uint8).astype(bool)
    assert (found == expected[:, 0]).mean() > 0.99, "ties may be broken differently"


def test_empty_input_gives_empty_output(made: tuple[Path, np.ndarray]) -> None:
    place, _ = made
    (place / "none.b8").write_bytes(b"")
    assert decode(place, shots="none.b8", out="none.out") == 0
    assert (place / "none.out").read_bytes() == b""


@pytest.mark.parametrize("form", FORMATS)
def test_size_of_a_file_shows_its_shots(tmp_path: Path, form: str) -> None:
    """Not in formats whose shots differ in length."""
    shots = write(tmp_path / f"shots.{form}", np.zeros((128, 3), np.uint8), form, 23)
    assert shotfiles.count_shots(shots, form, 23) == (128 if form in ("01", "b8", "ptb64") else None)
    assert shotfiles.count_shots(tmp_path / "missing", form, 23) is None


def refused(capsys: pytest.CaptureFixture[str], *parts: str) -> None:
    text = capsys.readouterr().err
    for part in ("error: ", *parts, "hint: "):
        assert part in text


def test_checkpoint_without_run_needs_env(made: tuple[Path, np.ndarray], capsys: pytest.CaptureFixture[str]) -> None:
    place, _ = made
    files = ["--in", str(place / "shots.b8"), "--out", str(place / "no")]
    assert run_cli(group, ["decode", str(place / "checkpoint.pt"), *files]) == 2
    refused(capsys, "checkpoint.pt", "does not belong to a run", "--env ENV")
    assert run_cli(group, ["decode", str(place), *files]) == 2
    refused(capsys, "not a round directory")


def test_env_with_other_circuit_is_rejected(made: tuple[Path, np.ndarray], capsys: pytest.CaptureFixture[str]) -> None:
    place, _ = made
    assert decode(place, "--env", "surface_d5_depol", out="no") == 2
    refused(capsys, problem(3).circuit_sha256[:12], "this env's circuit is")
    assert not (place / "no").exists()


def test_another_circuit_is_refused_before_its_problem_is_built(
    made: tuple[Path, np.ndarray], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place, _ = made
    larger = problem(5).dem
    monkeypatch.setattr(memory, "available_bytes", lambda: 0)
    monkeypatch.setattr(Problem, "_from_dem", None)
    monkeypatch.setattr(Problem, "from_env", None)
    assert decode(place, "--env", "surface_d7_depol", out="no") == 2
    refused(capsys, "this env's circuit is")
    (place / "larger.dem").write_text(str(larger), encoding="utf-8")
    assert decode(place, "--dem", str(place / "larger.dem"), out="no") == 2
    refused(capsys, "120 detectors", "24 detectors", "`local`")
    events = np.zeros((4, 120), bool)
    with pytest.raises(ContractError, match="this env's circuit is"):
        autoqec.decode(place / "checkpoint.pt", events, env="surface_d7_depol", unverified=True)


@pytest.mark.parametrize("name", sorted(load_models()))
def test_shots_of_the_circuit_of_a_model_give_no_warning(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor the check that the command makes of more shots, before it decodes them."""
    decoding = CheckpointDecoder.of(model_env(name), model_path(name))
    drawn = decoding.problem
    write(tmp_path / "in.b8", sample(drawn, 250, 0).detection_events, "b8", drawn.n_detectors)
    argv = ["decode", "--model", name, "--in", str(tmp_path / "in.b8"), "--out", str(tmp_path / "out.b8"), "--json"]
    assert run_cli(group, argv) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["mismatches"] == [] and "warning" not in shown.err
    for seed, shots in enumerate((1500, 6000), start=1):
        assert check_shots(decoding, sample(drawn, shots, seed).detection_events) == []


def test_one_shot_is_one_shot(made: tuple[Path, np.ndarray], capsys: pytest.CaptureFixture[str]) -> None:
    place, _ = made
    (place / "one.b8").write_bytes(bytes(3))
    assert decode(place, out="one.01", shots="one.b8") == 0
    assert "one.01: 1 shot decoded, 1 observable each" in capsys.readouterr().out


def test_too_few_shots_are_not_said_to_fit(made: tuple[Path, np.ndarray], capsys: pytest.CaptureFixture[str]) -> None:
    place, _ = made
    shots = sample(Problem.from_env(surface(3)), 100, 0)
    write(place / "few.b8", shots.detection_events, "b8", 24)
    assert decode(place, "--json", out="few.01", shots="few.b8") == 0
    assert json.loads(capsys.readouterr().out)["mismatches"] is None


OTHERS = {  # shots whose number of bytes those of the model divide
    "a smaller code": (("surface_d5_z", surface(3, 0.005)), "wrong_model"),
    "more rounds of a smaller code": (("surface_d5_z", surface(3, 0.005, rounds=15)), "wrong_model"),
    "more rounds": (("surface_d3_z", surface(3, 0.005, rounds=15)), "other_circuit"),
    "the other basis": (("surface_d5_z", surface(5, 0.005, "x")), "other_circuit"),
    "a larger code": (("surface_d3_x", surface(5, 0.005, "x")), "wrong_model"),
}


@pytest.mark.parametrize("other", sorted(OTHERS))
def test_shots_of_another_circuit_give_a_warning(
    other: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (model, env), name = OTHERS[other]
    drawn = Problem.from_env(env)
    write(tmp_path / "in.b8", sample(drawn, 20_000, 1).detection_events, "b8", drawn.n_detectors)
    argv = ["decode", "--model", model, "--in", str(tmp_path / "in.b8"), "--out", str(tmp_path / "out.b8"), "--json"]
    assert run_cli(group, argv) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["mismatches"] == [name]
    assert "warning: the shots do not look like shots of the model" in shown.err and "likely cause" in shown.err


@pytest.mark.parametrize(
    ("p", "strength"), [(0.001, "weaker"), (0.003, "weaker"), (0.008, "stronger"), (0.03, "stronger")]
)
def test_shots_of_other_noise_are_not_said_to_be_of_another_circuit(
    p: float, strength: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    drawn = Problem.from_env(surface(5, p))
    write(tmp_path / "in.b8", sample(drawn, 20_000, 1).detection_events, "b8", drawn.n_detectors)
    files = ["--in", str(tmp_path / "in.b8"), "--out", str(tmp_path / "out.b8"), "--json"]
    assert run_cli(group, ["decode", "--model", "surface_d5_z", *files]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["mismatches"] == ["other_noise_strength"]
    assert f"warning: the noise of the shots is {strength} than the model's" in shown.err
    assert "another circuit" not in shown.err and "do not look like" not in shown.err
    (tmp_path / "own.dem").write_text(str(drawn.dem), encoding="utf-8")
    assert run_cli(group, ["decode", "--model", "surface_d5_z", *files, "--dem", str(tmp_path / "own.dem")]) == 0
    assert json.loads(capsys.readouterr().out)["mismatches"] == []


def test_arrays_of_another_circuit_of_this_size_give_a_warning(made: tuple[Path, np.ndarray]) -> None:
    place, _ = made
    events = unpack(sample(problem(3, basis="x"), 20_000, 1).detection_events, 24).astype(bool)
    with pytest.warns(RuntimeWarning, match="do not look like shots of the model"):
        autoqec.decode(place / "checkpoint.pt", events, env=place / "env.yaml", unverified=True)


WRONG: dict[str, tuple[bytes, tuple[str, ...], tuple[str, ...]]] = {
    "incomplete shot": (b"\0" * 10, (), ("10 bytes", "24 detectors")),
    "text": (b"01x\n", ("--in-format", "01"), ("01 file",)),
    "wrong line length": (b"0101\n", ("--in-format", "01"), ("24 detectors",)),
    "detector beyond the last": (b"shot D24\n", ("--in-format", "dets"), ("24 detectors",)),
    "incomplete group": (b"\0" * 100, ("--in-format", "ptb64"), ("100 bytes", "64 shots")),
    "incomplete last shot": (b"\5", ("--in-format", "r8"), ("24 detectors",)),
}


@pytest.mark.parametrize("name", sorted(WRONG))
def test_invalid_shot_files_are_rejected(
    made: tuple[Path, np.ndarray], capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    place, _ = made
    data, more, parts = WRONG[name]
    (tmp_path / "bad").write_bytes(data)
    before = (place / "env.yaml").read_bytes()
    files = ("--in", str(tmp_path / "bad"), "--out", str(tmp_path / "out"), "--env", str(place / "env.yaml"))
    assert run_cli(group, ["decode", str(place / "checkpoint.pt"), *files, *more]) == 2
    refused(capsys, "bad", *parts)
    assert [path.name for path in tmp_path.iterdir()] == ["bad"] and (place / "env.yaml").read_bytes() == before


def test_set_padding_bits_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "wide").write_bytes(b"\0\0\0\x80")
    with pytest.raises(UsageError, match="beyond the last of the detectors"):
        list(shotfiles.read(tmp_path / "wide", "b8", 28, 64))


def test_late_error_keeps_existing_output(
    made: tuple[Path, np.ndarray], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    place, _ = made
    (tmp_path / "shots.01").write_text("0" * 24 + "\n" + ("0" * 24 + "\n") * CHUNK + "0101\n")
    (tmp_path / "out.b8").write_bytes(b"older")
    files = ("--in", str(tmp_path / "shots.01"), "--out", str(tmp_path / "out.b8"), "--env", str(place / "env.yaml"))
    assert run_cli(group, ["decode", str(place / "checkpoint.pt"), *files]) == 2
    refused(capsys, "shots.01")
    assert (tmp_path / "out.b8").read_bytes() == b"older" and len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize(
    ("shots", "out", "part"),
    [
        ("none", "x", "cannot be read"),
        ("shots.b8", "no/x", "not a file"),
        ("shots.b8", ".", "is a directory"),
        ("shots.b8", "shots.b8", "is the input file"),
        ("shots.b8", "pipe", "is not a regular file"),
        ("pipe", "x", "is not a regular file"),
    ],
)
def test_missing_or_conflicting_files_are_rejected(
    made: tuple[Path, np.ndarray], capsys: pytest.CaptureFixture[str], shots: str, out: str, part: str
) -> None:
    place, _ = made
    with suppress(FileExistsError):
        os.mkfifo(place / "pipe")
    assert decode(place, shots=shots, out=out) == 2
    refused(capsys, part)


def test_arrays_of_another_circuit_are_rejected_with_both_sizes(made: tuple[Path, np.ndarray]) -> None:
    decoder = CheckpointDecoder.of(surface(3), made[0] / "checkpoint.pt")
    for events in (sample(problem(5), 4, 5).detection_events, np.zeros((4, 24), bool)):
        with pytest.raises(UsageError, match=r"detection events: are .*, expected bit-packed uint8 \(4, 3\)"):
            decoder.decode(events)


def test_unexplainable_shot_is_rejected(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """On a ring without boundary, an odd number of detection events is impossible."""
    text = "error(0.1) D0 D1 L0\nerror(0.1) D1 D2\nerror(0.1) D0 D2"
    code = DemFileCode(path="ring.dem", text=text)
    trained(tmp_path, EnvSpec(name="ring", code=code, noise=FileNoise(), seed_policy=BANDS), inputs="all")
    (tmp_path / "ring.dem").write_text(text, encoding="utf-8")
    write(tmp_path / "shots.b8", np.full((3, 1), 7, np.uint8), "b8", 3)
    assert decode(tmp_path, out="no") == 2
    refused(capsys, "no errors of the model explain a shot", "odd parity")
    assert not (tmp_path / "no").exists()


class TestOtherDem:
    """--dem: the same error mechanisms with other probabilities are accepted, others need --allow-other-dem."""

    def write_dem(self, dem: Any, path: Path) -> Path:
        path.write_text(str(dem), encoding="utf-8")
        return path

    def test_order_of_mechanisms_does_not_matter(self, made: tuple[Path, np.ndarray]) -> None:
        place, _ = made
        dem = problem(3, 0.02).dem.flattened()
        shuffled = stim.DetectorErrorModel("\n".join(reversed(str(dem).splitlines())))
        detection_events = sample(problem(3), 2000, 5).detection_events
        same = CheckpointDecoder.of(surface(3), place / "checkpoint.pt", dem)
        assert not np.allclose(same.shift, 0)
        again = CheckpointDecoder.of(surface(3), place / "checkpoint.pt", shuffled)
        assert (
            np.array_equal(same.decode(detection_events), again.decode(detection_events)) and again.n_unknown_edges == 0
        )

    def test_other_mechanisms_need_permission(
        self, made: tuple[Path, np.ndarray], capsys: pytest.CaptureFixture[str]
    ) -> None:
        place, _ = made
        lines = str(problem(3).dem.flattened()).splitlines()
        in_sector = problem(3).graph.in_sector
        path = self.write_dem(
            "\n".join([*lines[3:], f"error(0.01) D{in_sector[0]} D{in_sector[-1]}"]), place / "device.dem"
        )
        assert decode(place, "--dem", str(path), out="no") == 2
        refused(capsys, "detectors", "unknown to the network", "--allow-other-dem")
        assert not (place / "no").exists()
        assert decode(place, "--dem", str(path), "--allow-other-dem", "--json", out="device.b8") == 0
        assert json.loads(capsys.readouterr().out)["unknown_edges"] == 1
        assert (place / "device.b8").stat().st_size == SHOTS

    @pytest.mark.parametrize("mode", ["soft_priors", "hard_flip"])
    def test_unknown_edges_keep_their_priors(self, tmp_path: Path, mode: str) -> None:
        """One more mechanism with a negligible probability does not change the predictions."""
        path = trained(tmp_path, surface(3), mode)
        detection_events = sample(problem(3), 2000, 5).detection_events
        in_sector = problem(3).graph.in_sector
        more = stim.DetectorErrorModel(f"{problem(3).dem}\nerror(1e-12) D{in_sector[0]} D{in_sector[-1]}")
        same, other = (CheckpointDecoder.of(surface(3), path, dem, allow_other_dem=True) for dem in (None, more))
        assert (same.n_unknown_edges, other.n_unknown_edges) == (0, 1)
        assert (same.decode(detection_events) == other.decode(detection_events)).mean() > 0.999

    def test_other_detector_count_is_rejected(
        self, made: tuple[Path, np.ndarray], capsys: pytest.CaptureFixture[str]
    ) -> None:
        place, _ = made
        path = self.write_dem(problem(5, 0.01).dem, place / "d5.dem")
        assert decode(place, "--dem", str(path), "--allow-other-dem", out="no") == 2
        refused(capsys, "120 detectors", "24 detectors")

    def test_translation_invariant_weights_decode_another_distance(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        dsl = parse_dsl({"type": "local", "local": {"hidden": 4}})
        checkpoint.save(tmp_path / "checkpoint.pt", compile_predecoder(dsl, problem(3), seed=0), dsl)
        (tmp_path / "env.yaml").write_text(dump_config(surface(3).dump()), encoding="utf-8")
        shots = sample(problem(5), 64, 5)
        write(tmp_path / "shots.b8", shots.detection_events, "b8", 120)
        path = self.write_dem(problem(5).circuit, tmp_path / "d5.stim")
        assert decode(tmp_path, "--dem", str(path)) == 0
        assert "trained on another circuit" in capsys.readouterr().err
        plain = make_backend("mwpm", problem(5)).decode(shots.detection_events)
        assert np.array_equal(np.frombuffer((tmp_path / "out.b8").read_bytes(), np.uint8).astype(bool), plain[:, 0])

    def test_long_experiments_are_decoded_in_windows(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        """An untrained network keeps the priors, so that one window over all rounds decodes like matching."""
        dsl = parse_dsl({"type": "local", "local": {"hidden": 4}})
        long = Problem.from_env(surface(3, 0.01, rounds=20))
        checkpoint.save(tmp_path / "checkpoint.pt", compile_predecoder(dsl, problem(3), seed=0), dsl)
        (tmp_path / "env.yaml").write_text(dump_config(surface(3).dump()), encoding="utf-8")
        shots = sample(long, 64, 5)
        write(tmp_path / "shots.b8", shots.detection_events, "b8", long.n_detectors)
        dem = ("--dem", str(self.write_dem(long.circuit, tmp_path / "long.stim")))
        plain = make_backend("mwpm", long).decode(shots.detection_events)[:, 0]
        found = {}
        for rounds in ("21", "8"):
            assert decode(tmp_path, *dem, "--window", rounds) == 0
            found[rounds] = np.frombuffer((tmp_path / "out.b8").read_bytes(), np.uint8).astype(bool)
        assert np.array_equal(found["21"], plain) and (found["8"] == plain).mean() > 0.9
        capsys.readouterr()
        assert decode(tmp_path, *dem, "--window", "8", "--latency", "3", out="no") == 2
        refused(capsys, "--window", "cannot be used with --latency")

    @pytest.mark.parametrize(
        ("drawn", "names"),
        [
            (surface(3, 0.01, rounds=20), []),
            (surface(3, 0.01, rounds=4), ["other_circuit"]),
            (surface(3, 0.005, rounds=20), ["other_noise_strength"]),
        ],
        ids=["the circuit", "fewer rounds", "weaker noise"],
    )
    def test_shots_that_are_decoded_in_windows_are_checked(
        self, drawn: EnvSpec, names: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        dsl = parse_dsl({"type": "local", "local": {"hidden": 4}})
        checkpoint.save(tmp_path / "checkpoint.pt", compile_predecoder(dsl, problem(3), seed=0), dsl)
        (tmp_path / "env.yaml").write_text(dump_config(surface(3).dump()), encoding="utf-8")
        long = Problem.from_env(surface(3, 0.01, rounds=20))
        (tmp_path / "shots.b8").write_bytes(sample(Problem.from_env(drawn), 20_000, 5).detection_events.tobytes())
        dem = ("--dem", str(self.write_dem(long.circuit, tmp_path / "long.stim")))
        assert decode(tmp_path, *dem, "--window", "8", "--json") == 0
        shown = capsys.readouterr()
        assert json.loads(shown.out)["mismatches"] == names
        assert ("of the shots" in shown.err or "the shots do not look like" in shown.err) == bool(names)

    def test_experiment_longer_than_memory_is_rejected(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """A model whose loops would need 10^9 rounds of memory is refused without being unrolled."""
        dsl = parse_dsl({"type": "local", "local": {"hidden": 4}})
        checkpoint.save(tmp_path / "checkpoint.pt", compile_predecoder(dsl, problem(3), seed=0), dsl)
        (tmp_path / "env.yaml").write_text(dump_config(surface(3).dump()), encoding="utf-8")
        long = stim.Circuit.generated(
            "surface_code:rotated_memory_z", distance=3, rounds=10**9, after_clifford_depolarization=0.01
        )
        dem = ("--dem", str(self.write_dem(long, tmp_path / "long.stim")))
        write(tmp_path / "shots.b8", np.zeros((1, 8), np.uint8), "b8", 64)
        assert decode(tmp_path, *dem, out="no") == 2
        refused(capsys, "experiment of 8,000,000,000 detectors", "model and graph", "available", "--window ROUNDS")
        assert not (tmp_path / "no").exists()
        monkeypatch.setattr(memory, "available_bytes", lambda: 1000)
        with pytest.raises(UsageError, match="needs about .* GB more than the 1e-06 GB available"):
            autoqec.decode(tmp_path / "checkpoint.pt", np.zeros((1, 24), bool), env=tmp_path / "env.yaml",
                           unverified=True)  # fmt: skip

    def test_windows_longer_than_memory_are_rejected_before_they_are_built(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Coordinates of 10^9 rounds never fit; a window over all of 200 rounds needs more than one of 8."""
        dsl = parse_dsl({"type": "local", "local": {"hidden": 4, "space": 1, "time": 1}})
        checkpoint.save(tmp_path / "checkpoint.pt", compile_predecoder(dsl, problem(3), seed=0), dsl)
        (tmp_path / "env.yaml").write_text(dump_config(surface(3).dump()), encoding="utf-8")
        write(tmp_path / "shots.b8", np.zeros((4, 200), np.uint8), "b8", 1600)
        models = {}
        for rounds in (200, 10**9):
            circuit = stim.Circuit.generated(
                "surface_code:rotated_memory_z", distance=3, rounds=rounds, after_clifford_depolarization=0.01
            )
            models[rounds] = self.write_dem(circuit, tmp_path / f"{rounds}.stim")
        dem = error_model(stim.Circuit(models[200].read_text()), surface(3))
        limit = 2 * sum(decode_memory.window_bytes(surface(3), dem, 8, 1, 4).values())
        monkeypatch.setattr(memory, "available_bytes", lambda: limit)
        assert decode(tmp_path, "--dem", str(models[200]), "--window", "8") == 0
        monkeypatch.setattr(windows.WindowedDecoder, "__init__", None)
        capsys.readouterr()
        for rounds, window, missing in ((200, "300", "graphs of windows"), (10**9, "8", "coordinates of detectors")):
            assert decode(tmp_path, "--dem", str(models[rounds]), "--window", window, out="no") == 2
            refused(capsys, f"experiment of {8 * rounds:,} detectors", missing, "available", "smaller --window")
        assert not (tmp_path / "no").exists()

    def test_few_shots_need_little_memory_with_many_threads(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """One thread decodes 20 shots: the others need no decoder, and their log-odds are no chunk of 2,048."""
        dsl = parse_dsl({"type": "local", "local": {"hidden": 4}})
        checkpoint.save(tmp_path / "checkpoint.pt", compile_predecoder(dsl, problem(3), seed=0), dsl)
        (tmp_path / "env.yaml").write_text(dump_config(surface(3).dump()), encoding="utf-8")
        size = ModelSize.of_env(surface(3), surface(3).target)
        enough = max(size.build_bytes, size.kept_bytes + 8 * 20 * size.n_edges)
        monkeypatch.setattr(memory, "available_bytes", lambda: enough)
        monkeypatch.setattr(threads, "cpu_count", lambda: 16)
        events = np.zeros((20, 24), bool)
        env = tmp_path / "env.yaml"
        found = autoqec.decode(tmp_path / "checkpoint.pt", events, env=env, unverified=True, threads=16)
        assert found.shape == (20, 1)
        for ending in ("b8", "01", "ptb64"):
            shots = tmp_path / f"shots.{ending}"
            write(shots, np.zeros((640 if ending == "ptb64" else 20, 3), np.uint8), ending, 24)
            assert (decode(tmp_path, "--threads", "16", shots=shots.name) == 2) == (ending == "ptb64")
        refused(capsys, "log-odds of shots", "available")
        with pytest.raises(UsageError, match="available"):
            autoqec.decode(tmp_path / "checkpoint.pt", np.zeros((2048, 24), bool), env=env, unverified=True)

    def test_circuit_file_is_accepted_as_model(self, made: tuple[Path, np.ndarray]) -> None:
        place, expected = made
        path = self.write_dem(problem(3).circuit, place / "same.stim")
        assert decode(place, "--dem", str(path), out="same.b8") == 0
        assert np.array_equal(np.frombuffer((place / "same.b8").read_bytes(), np.uint8).astype(bool), expected[:, 0])

    @pytest.mark.parametrize(
        ("text", "parts"),
        [
            ("nonsense", ("stim cannot read it",)),
            ("error(0.1) D0 D1 D2 L0\ndetector D23", ("3 detectors at once", "--decompose_errors")),
        ],
    )
    def test_invalid_models_are_rejected(
        self, made: tuple[Path, np.ndarray], capsys: pytest.CaptureFixture[str], text: str, parts: tuple[str, ...]
    ) -> None:
        place, _ = made
        path = self.write_dem(text, place / "bad.dem")
        assert decode(place, "--dem", str(path), out="no") == 2
        refused(capsys, *parts)

    def test_allow_other_dem_needs_dem(self, made: tuple[Path, np.ndarray], capsys: pytest.CaptureFixture[str]) -> None:
        place, _ = made
        assert decode(place, "--allow-other-dem", out="no") == 2
        refused(capsys, "--dem FILE")


def test_latency_covers_the_first_shots_and_names_the_machine(
    made: tuple[Path, np.ndarray], capsys: pytest.CaptureFixture[str]
) -> None:
    place, _ = made
    assert decode(place, "--unverified", "--latency", "50", "--json", out="latency.b8") == 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])["latency"]
    assert answer["processor"] and set(answer) == {"processor", "predecoder", "mwpm_correlated"}
    for name in ("predecoder", "mwpm_correlated"):
        found = answer[name]
        assert found["shots"] == 50 and 0 < found["p50_us"] <= found["p99_us"] <= found["p999_us"]
        assert found["batch_us_per_shot"] > 0


def test_first_shots_stop_reading_early() -> None:
    parts = iter([np.zeros((4, 1), np.uint8), np.ones((4, 1), np.uint8), np.full((4, 1), 2, np.uint8)])
    assert first_shots(parts, 6).ravel().tolist() == [0, 0, 0, 0, 1, 1] and next(parts)[0, 0] == 2
    assert len(first_shots(iter([np.zeros((3, 1), np.uint8)]), 10)) == 3


def test_latency_decodes_each_shot_alone_then_all_together() -> None:
    sizes: list[int] = []

    def decoded(events: np.ndarray) -> np.ndarray:
        sizes.append(len(events))
        return np.zeros((len(events), 1), bool)

    found = measure_latency(decoded, np.zeros((30, 3), np.uint8))
    assert sizes == [1] * (WARM_UP_SHOTS + 30) + [30] and found.shots == 30
