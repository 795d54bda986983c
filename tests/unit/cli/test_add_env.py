"""`autoqec add-env`: each kind of code becomes one checked env file; invalid input writes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import scipy.sparse as sp
from click.testing import CliRunner
from scipy.io import mmwrite

from autoqec.cli.autoqec import group
from autoqec.cli.commands import add_env
from autoqec.cli.common import run_cli
from autoqec.contracts.noise import ChannelNoise, Nvidia25Noise, Nvidia25Parameters
from autoqec.errors import UsageError
from autoqec.qec.bicycle import checks
from autoqec.qec.matrices import read_matrix
from autoqec.qec.problem import Problem
from autoqec.store.files import load_env
from tests.support.envs import problem
from tests.support.shown import check_error

STEANE = np.array([[0, 0, 0, 1, 1, 1, 1], [0, 1, 1, 0, 0, 1, 1], [1, 0, 1, 0, 1, 0, 1]], np.uint8)
FEW = ("--shots", "200")
TASK = ("--code", "surface_code:rotated_memory_z", "--distance", "3")


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def made(*argv: str) -> int:
    return run_cli(group, ["add-env", *argv, *FEW])


def test_stim_task_becomes_env(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("mine", "--code", "surface_code:rotated_memory_x", "--distance", "3", "--p", "0.005,0.01,0.02")
    assert made(*argv, "--json") == 0
    figures = json.loads(capsys.readouterr().out)
    env, _ = load_env(here / "mine.yaml")
    assert env.target == 0.01 and env.code.rounds == 3 and env.baselines == ("mwpm", "mwpm_correlated")
    assert figures["env"] == env.dump() and figures["n_detectors"] == 24 and figures["inputs"] == "other_sector"
    assert figures["distance_bound"] == 3 and figures["rates"]["mwpm"]["shots"] == 200
    assert env.seed_policy.train[0] <= figures["seed"] <= env.seed_policy.train[1]


def test_eta_rounds_and_target_are_written(here: Path) -> None:
    argv = ("b", "--code", "surface_code:rotated_memory_z", "--distance", "3", "--rounds", "2", "--p", "0.005,0.01")
    assert made(*argv, "--eta", "10", "--target", "0.005", "--out", "elsewhere.yaml") == 0
    env, _ = load_env(here / "elsewhere.yaml")
    assert (env.noise.model, env.noise.eta, env.target, env.code.rounds) == ("circuit_biased", 10, 0.005, 2)  # type: ignore[union-attr]


def test_noise_model_of_superconducting_qubits(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("s", "--code", "surface_code:rotated_memory_x", "--distance", "3", "--p", "0.002", "--noise", "si1000")
    assert made(*argv) == 0
    env, _ = load_env(here / "s.yaml")
    assert (env.noise.model, env.target) == ("si1000", 0.002)
    assert made("t", *argv[1:], "--eta", "10") == 2
    assert "leave --noise out" in capsys.readouterr().err


def test_noise_of_the_checks_alone_and_of_the_data_alone(here: Path) -> None:
    for name, rounds in (("phenomenological", 3), ("code_capacity", 1)):
        assert made(name, *TASK, "--p", "0.05", "--noise", name) == 0
        env, _ = load_env(here / f"{name}.yaml")
        assert (env.noise.model, env.target, env.code.rounds) == (name, 0.05, rounds)


def test_channels_have_factors(here: Path) -> None:
    assert made("c", *TASK, "--p", "0.001,0.002", "--channels", "gate=0.5,measurement=5") == 0
    env, _ = load_env(here / "c.yaml")
    assert isinstance(env.noise, ChannelNoise) and env.noise.factors == (0.5, 5, 1, 1)


@pytest.mark.parametrize("nested", [False, True])
def test_noise_file_of_25_parameters(here: Path, nested: bool) -> None:
    parameters = dict.fromkeys(Nvidia25Parameters.model_fields, 0.0002) | {"p_meas_Z": 0.004}
    content = {"noise_model": parameters} if nested else parameters
    (here / "noise.json").write_text(json.dumps(content))
    assert made("n", *TASK, "--noise-file", "noise.json") == 0
    env, _ = load_env(here / "n.yaml")
    assert isinstance(env.noise, Nvidia25Noise)
    assert env.noise.parameters.dump() == parameters and env.noise.p == (0.0042,)  # p_meas_X and p_meas_Z
    assert made("m", *TASK, "--noise-file", "noise.json", "--p", "0.002,0.003") == 0
    assert load_env(here / "m.yaml")[0].target == 0.003


@pytest.mark.parametrize("points", [(), ("--p", "0.003")])
@pytest.mark.parametrize(("value", "problem"), [(1e-320, "too small to be scaled to p"), (0, "is 0, outside (0, 1/2)")])
def test_noise_file_without_usable_noise_is_refused_by_name(
    here: Path, capsys: pytest.CaptureFixture[str], value: float, problem: str, points: tuple[str, ...]
) -> None:
    (here / "noise.json").write_text(json.dumps(dict.fromkeys(Nvidia25Parameters.model_fields, value)))
    assert made("n", *TASK, "--noise-file", "noise.json", *points) == 2
    message, hint = capsys.readouterr().err.splitlines()[-2:]
    assert message.startswith("error: noise.json: the largest total of a group of errors is ") and problem in message
    assert hint == "hint: the file has p_prep_X to p_cnot_ZZ, 25 probabilities" and not (here / "n.yaml").exists()


def test_noise_of_an_env_file_that_cannot_be_scaled_is_named(here: Path) -> None:
    (here / "noise.json").write_text(json.dumps(dict.fromkeys(Nvidia25Parameters.model_fields, 1e-300)))
    assert made("n", *TASK, "--noise-file", "noise.json", "--p", "0.003") == 0, "only ratios matter"
    text = (here / "n.yaml").read_text(encoding="utf-8")
    (here / "n.yaml").write_text(text.replace("1.0e-300", "1.0e-320"), encoding="utf-8")
    with pytest.raises(UsageError, match=r"n.yaml: field `noise.parameters.*too small to be scaled to p"):
        load_env(here / "n.yaml")


@pytest.mark.parametrize("ending", ["stim", "dem"])
def test_path_of_stim_file_is_relative_to_env(here: Path, ending: str) -> None:
    (here / "envs").mkdir()
    source = problem(3).circuit if ending == "stim" else problem(3).dem
    (here / f"code.{ending}").write_text(str(source), encoding="utf-8")
    assert made("mine", "--code", f"code.{ending}", "--rounds", "3", "--out", "envs/mine.yaml") == 0
    env, _ = load_env(here / "envs" / "mine.yaml")
    assert env.code.path == f"../code.{ending}" and env.noise.model == "from_file"  # type: ignore[union-attr]
    assert Problem.from_env(env).n_detectors == 24 and Problem.from_env(env).rounds == 3


def test_code_without_matching_graph_gets_bposd(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert made("colour", "--code", "color_code:memory_xyz", "--distance", "5", "--p", "0.003") == 0
    env, _ = load_env(here / "colour.yaml")
    assert env.backend == "bposd" and env.baselines == ("bposd_cs10",)
    assert "backend bposd: no matching graph" in capsys.readouterr().err


def test_matrices_are_copied_into_env(here: Path) -> None:
    np.save("hx.npy", STEANE)
    mmwrite("hz.mtx", sp.coo_matrix(STEANE))
    Path("lz.txt").write_text("# the logical\n1 1 1 1 1 1 1\n")
    assert made("steane", "--hx", "hx.npy", "--hz", "hz.mtx", "--lz", "lz.txt", "--p", "0.05") == 0
    for name in ("hx.npy", "hz.mtx", "lz.txt"):
        Path(name).unlink()
    env, _ = load_env(here / "steane.yaml")  # the file holds the matrices
    assert Problem.from_env(env).n_detectors == 6
    hx, hz = checks(6, 6, ((3, 0), (0, 1), (0, 2)), ((0, 3), (1, 0), (2, 0)))
    sp.save_npz("hx.npz", sp.csr_matrix(hx))
    Path("hz.txt").write_text("\n".join("".join(map(str, row)) for row in hz))
    assert np.array_equal(read_matrix(Path("hx.npz")), hx) and np.array_equal(read_matrix(Path("hz.txt")), hz)


def test_css_file_and_bivariate_bicycle(here: Path) -> None:
    rows = [f'"{"".join(map(str, row))}"' for row in STEANE]
    Path("steane.css.yaml").write_text(f"hx: [{', '.join(rows)}]\nhz: [{', '.join(rows)}]\n")
    assert made("steane", "--code", "steane.css.yaml", "--basis", "x", "--p", "0.05", "--backend", "bplsd") == 0
    env, _ = load_env(here / "steane.yaml")
    assert (env.code.basis, env.backend) == ("x", "bplsd")  # type: ignore[union-attr]
    argv = ("bb", "--code", "bivariate_bicycle", "--rounds", "1", "--p", "0.003", "--backend", "bposd")
    assert run_cli(group, ["add-env", *argv, "--shots", "5", "--baselines", "bposd0"]) == 0
    assert load_env(here / "bb.yaml")[0].baselines == ("bposd0",)


def test_missing_values_are_prompted_for(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(add_env, "is_interactive", lambda: True)
    answers = "asked\nsurface_code:rotated_memory_z\n3\n0.01\n"
    shown = CliRunner().invoke(group, ["add-env", *FEW], input=answers)
    assert shown.exit_code == 0, shown.output
    assert load_env(here / "asked.yaml")[0].code.distance == 3  # type: ignore[union-attr]


def test_existing_file_is_replaced_only_with_force(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = ("mine", "--code", "repetition_code:memory", "--distance", "3", "--p", "0.02")
    (here / "mine.yaml").write_text("older")
    assert made(*argv) == 2
    assert "--force" in capsys.readouterr().err and (here / "mine.yaml").read_text() == "older"
    assert made(*argv, "--force") == 0 and load_env(here / "mine.yaml")[0].name == "mine"


def test_few_baseline_errors_give_a_note(capsys: pytest.CaptureFixture[str]) -> None:
    assert made("mine", "--code", "repetition_code:memory", "--distance", "5", "--p", "0.001") == 0
    assert "fewer than 30 logical errors of mwpm" in capsys.readouterr().err


CASES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "missing name": ((), ("NAME", "missing")),
    "missing code": (("m",), ("--code", "missing")),
    "missing p": (("m", *TASK), ("--p", "missing")),
    "unknown kind of file": (("m", "--code", "code.qasm"), ("code.qasm", ".stim")),
    "missing file": (("m", "--code", "code.stim"), ("code.stim", "cannot be read")),
    "p that is not a number": (("m", *TASK, "--p", "0.01,x"), ("--p", "x")),
    "p of one half": (("m", *TASK, "--p", "0.5"), ("noise", "(0, 1/2)")),
    "a target that is not listed": (("m", *TASK, "--p", "0.01", "--target", "0.02"), ("target_p",)),
    "invalid name": (("M!", *TASK, "--p", "0.01"), ("name",)),
    "an unknown baseline": (("m", *TASK, "--p", "0.01", "--baselines", "mwpm,oracle"), ("oracle", "known")),
    "distance rejected by stim": (
        ("m", "--code", "color_code:memory_xyz", "--distance", "4", "--p", "0.01"),
        ("odd distance", "another distance"),
    ),
    "mwpm without matching graph": (
        ("m", "--code", "color_code:memory_xyz", "--distance", "5", "--p", "0.01", "--backend", "mwpm"),
        ("matching graph", "bposd"),
    ),
    "p with a file": (("m", "--code", "code.stim", "--p", "0.01"), ("--p", "its own noise")),
    "eta with a file": (("m", "--code", "code.stim", "--eta", "0"), ("--eta", "its own noise")),
    "channel that does not exist": (
        ("m", *TASK, "--p", "0.01", "--channels", "idle=1"),
        ("--channels", "unknown channel 'idle'; known: gate, measurement, reset, data"),
    ),
    "channel without a number": (("m", *TASK, "--p", "0.01", "--channels", "gate"), ("'gate' is not NAME=FACTOR",)),
    "no channel": (("m", *TASK, "--p", "0.01", "--channels", ","), ("--channels", "the list is empty")),
    "a channel above one half": (("m", *TASK, "--p", "0.1", "--channels", "data=5"), ("noise", "outside (0, 1/2)")),
    "two noise models": (
        ("m", *TASK, "--channels", "gate=2", "--noise", "si1000", "--p", "0.01"),
        ("--channels", "leave --noise out"),
    ),
    "missing noise file": (("m", *TASK, "--noise-file", "no.json"), ("no.json", "cannot be read")),
    "noise file with a file": (
        ("m", "--code", "code.stim", "--noise-file", "no.json"),
        ("--noise-file", "its own noise"),
    ),
    "code capacity over rounds": (
        ("m", *TASK, "--rounds", "3", "--noise", "code_capacity", "--p", "0.05"),
        ("`rounds` must be 1",),
    ),
    "phenomenological noise of bicycle codes": (
        ("m", "--code", "bivariate_bicycle", "--noise", "phenomenological", "--p", "0.01"),
        ("requires code kind `stim_generator`",),
    ),
    "a target of 0": (("m", *TASK, "--p", "0.01", "--target", "0"), ("target_p",)),
    "basis with a task": (("m", *TASK, "--basis", "x", "--p", "0.01"), ("--basis", "does not apply", "remove")),
    "distance with a file": (("m", "--code", "code.stim", "--distance", "3"), ("--distance", "does not apply")),
    "rounds with matrices": (
        ("m", "--hx", "a.npy", "--hz", "b.npy", "--rounds", "3", "--p", "0.01"),
        ("--rounds", "does not apply to check matrices"),
    ),
    "one matrix of two": (("m", "--hx", "hx.npy", "--p", "0.01"), ("--hz", "required with --hx")),
    "code and matrices": (("m", *TASK, "--hx", "a.npy", "--hz", "b.npy", "--p", "0.01"), ("--code", "combined")),
    "missing matrix": (("m", "--hx", "a.npy", "--hz", "b.npy", "--p", "0.01"), ("a.npy", "cannot be read")),
    "missing directory": (("m", *TASK, "--p", "0.01", "--out", "no/m.yaml"), ("no/m.yaml", "--out")),
}


@pytest.mark.parametrize("content", ["[1]", "{", '{"p_meas_Z": 0.01}', '{"p_meas_Z": "a"}'])
def test_bad_noise_file_is_named(here: Path, capsys: pytest.CaptureFixture[str], content: str) -> None:
    (here / "noise.json").write_text(content)
    assert made("m", *TASK, "--noise-file", "noise.json") == 2
    check_error(capsys.readouterr().err, "noise.json", hint=True)


@pytest.mark.parametrize("name", sorted(CASES))
def test_invalid_arguments_write_nothing(here: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    argv, parts = CASES[name]
    if "code.stim" in argv and "--p" in argv:
        (here / "code.stim").write_text(str(problem(3).circuit))
    before = sorted(here.iterdir())
    assert made(*argv) == 2
    printed = capsys.readouterr().err.strip().splitlines()
    check_error("\n".join(printed[-2:]), *parts, hint=True)  # notes may precede the error
    assert sorted(here.iterdir()) == before


@pytest.mark.parametrize(
    ("file", "data", "words"),
    [
        ("a.txt", b"012\n", "0s and 1s"),
        ("a.txt", b"01\n011\n", "cannot be read as a matrix"),
        ("a.txt", b"", "0s and 1s"),
        ("a.npy", b"not numpy", "cannot be read as a matrix"),
        ("a.mtx", b"%%MatrixMarket nothing\n", "cannot be read as a matrix"),
        ("a.npz", b"PK", "cannot be read as a matrix"),
        ("a.npz", b"PK\x03\x04cut off", "cannot be read as a matrix"),
        ("a.mtx", b"%%MatrixMarket matrix coordinate pattern general\n9000000 9000000 1\n1 1\n", "cannot be read as a"),
    ],
)
def test_invalid_matrix_file_is_rejected(here: Path, file: str, data: bytes, words: str) -> None:
    (here / file).write_bytes(data)
    with pytest.raises(UsageError, match=words):
        read_matrix(here / file)


def test_pickled_matrix_is_rejected(here: Path) -> None:
    np.save("a.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(UsageError, match="cannot be read as a matrix"):
        read_matrix(here / "a.npy")
