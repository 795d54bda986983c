"""Envs of recorded shots: the frozen env, its models, and files that are rejected before a run."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from autoqec.contracts.env import EnvSpec
from autoqec.errors import UsageError
from autoqec.extensions.recorded.code import RecordedShotsCode
from autoqec.extensions.recorded.env import preflight
from autoqec.qec.backends import make_baseline
from autoqec.qec.problem import Problem
from autoqec.store.files import load_env, parse_env
from tests.support.recorded import plain_directory, recorded_env, write_recorded_env


@pytest.fixture(scope="module")
def env_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded_env(tmp_path_factory.mktemp("env"))


def test_frozen_env_needs_no_files_and_holds_no_shots(env_file: Path) -> None:
    env, text = load_env(env_file)
    assert parse_env(text, location="env") == env
    assert {file.path for file in RecordedShotsCode.of(env).files.files} >= {"events0.b8", "flips1.01", "circuit.stim"}
    assert len(text) < 100_000
    preflight(env, env_file.parent / "data")


def test_priors_select_the_model_of_the_inner_decoder(env_file: Path) -> None:
    env, _ = load_env(env_file)
    estimated = Problem.from_env(env)
    given = Problem.from_env(env.model_copy(update={"code": env.code.model_copy(update={"priors": "given"})}))
    assert str(estimated.dem) == str(given.estimated.dem) and str(given.dem) == str(estimated.given.dem)
    assert str(estimated.dem) != str(given.dem)
    events = np.random.default_rng(1).integers(0, 256, (4000, 3), np.uint8)
    answers = {name: make_baseline(name, estimated).decode(events) for name in env.baselines}
    same = {name: make_baseline(name, given).decode(events) for name in env.baselines}
    assert all((answers[name] == same[name]).all() for name in env.baselines)
    assert (answers["mwpm"] != answers["mwpm_estimated"]).any()


def test_estimated_baselines_need_recorded_shots(env_file: Path) -> None:
    env, _ = load_env(env_file)
    data = env.dump() | {"code": {"kind": "stim_file", "path": "circuit.stim"}}
    with pytest.raises(ValueError, match="require a code kind with shots of its own"):
        EnvSpec.model_validate(data)
    with pytest.raises(ValueError, match="requires backend mwpm"):
        EnvSpec.model_validate(env.dump() | {"backend": "bposd", "baselines": []})


def change(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def changed_shots(directory: Path) -> None:
    change(directory / "data" / "events1.b8")


def truncated(directory: Path) -> None:
    path = directory / "data" / "flips0.01"
    path.write_bytes(path.read_bytes()[:-10])


def removed(directory: Path) -> None:
    (directory / "data" / "events0.b8").unlink()


def changed_model(directory: Path) -> None:
    change(directory / "data" / "circuit.stim")


def other_estimate(directory: Path) -> None:
    (directory / "env.estimated.dem").write_text("error(0.1) D0 L0\n")


def other_counts(directory: Path) -> None:
    path = directory / "env.recorded.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"shots": [3400, 3600]}))


def outside(directory: Path) -> None:
    path = directory / "env.recorded.json"
    manifest = json.loads(path.read_text())
    manifest["layout"]["blocks"][0]["detection_events"] = "../env.yaml"
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (changed_shots, "is not the file of the manifest"),
        (truncated, "is not the file of the manifest"),
        (removed, "is not a file"),
        (changed_model, "is not the model of the manifest"),
        (other_estimate, "is not the model of the manifest"),
        (other_counts, "the manifest counts"),
        (outside, "is outside the directory"),
    ],
)
def test_files_that_changed_are_rejected(tmp_path: Path, fault: Callable[[Path], None], message: str) -> None:
    env_file = recorded_env(tmp_path)
    fault(tmp_path)
    with pytest.raises(UsageError, match=message) as caught:
        preflight(load_env(env_file)[0], tmp_path / "data")
    assert caught.value.hint


def test_estimate_of_another_circuit_is_rejected(env_file: Path) -> None:
    env, _ = load_env(env_file)
    other = env.model_copy(update={"code": env.code.model_copy(update={"estimated": "error(0.1) D0 L0"})})
    with pytest.raises(UsageError, match="has 1 detectors and 1 observables, the given one 24 and 1"):
        Problem.from_env(other)


def test_mismatch_is_named_before_a_run(tmp_path: Path) -> None:
    directory = plain_directory(tmp_path / "data", 3500)
    for index in (0, 1):
        flips = directory / f"flips{index}.01"
        flips.write_bytes(flips.read_bytes().translate(bytes.maketrans(b"01", b"10")))
    env, _ = load_env(write_recorded_env(tmp_path))
    with pytest.raises(UsageError, match="inverted_observables"):
        preflight(env, directory)


def test_sealed_shots_are_not_diagnosed_before_a_run(tmp_path: Path) -> None:
    directory = plain_directory(tmp_path / "data", 3500, 3)
    flips, events = directory / "flips2.01", directory / "events1.b8"
    flips.write_bytes(flips.read_bytes().translate(bytes.maketrans(b"01", b"10")))
    visible = 3 * 2800  # of the second file; 24 detectors are 3 bytes
    events.write_bytes(events.read_bytes()[:visible].ljust(3 * 3500, b"\xff"))
    env, _ = load_env(write_recorded_env(tmp_path))
    preflight(env, directory)
    events.write_bytes(events.read_bytes()[: visible // 2].ljust(3 * 3500, b"\xff"))
    env, _ = load_env(write_recorded_env(tmp_path))
    with pytest.raises(UsageError, match="do not fit their model"):
        preflight(env, directory)


def test_sizes_are_compared_before_any_file_is_hashed(tmp_path: Path) -> None:
    env_file = recorded_env(tmp_path)
    first, last = tmp_path / "data" / "events0.b8", tmp_path / "data" / "flips1.01"
    first.write_bytes(bytes(first.stat().st_size))
    last.write_bytes(last.read_bytes()[:-2])
    with pytest.raises(UsageError, match="6998 bytes, not 7000") as caught:
        preflight(load_env(env_file)[0], tmp_path / "data")
    assert caught.value.location == str(last)
