"""Circuits of SI1000 that an earlier version wrote without loops: checkpoints, rounds and runs made for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.env import EnvSpec, Si1000Noise
from autoqec.contracts.provenance import Manifest
from autoqec.decoders import checkpoint
from autoqec.decoders.decoding import CheckpointDecoder
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.errors import AutoqecError, ContractError, ManualInterventionRequired
from autoqec.orchestrator import run_checks
from autoqec.qec import problem as problem_module
from autoqec.qec import si1000
from autoqec.qec.circuit_hash import circuit_sha256, written_by_older_version
from autoqec.qec.codes import build_source
from autoqec.qec.problem import Problem
from autoqec.runner.child import load_parent_weights
from autoqec.store.files import dump_config
from autoqec.verification.verifier import run_verification
from tests.support.archives import git
from tests.support.envs import surface
from tests.support.runs import RUN_ID, make_run
from tests.support.starts import resume_run
from tests.support.verification import CONFIG, request

ROUNDS = si1000.MAX_UNROLLED + 2  # the loop has one repetition less


def long_env(rounds: int = ROUNDS) -> EnvSpec:
    noise = Si1000Noise(p=(0.001,), target_p=0.001)
    return surface(3, 0.001, rounds=rounds).model_copy(update={"noise": noise})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A checkpoint that an earlier version made, and the hash of its circuit."""
    path, env = tmp_path_factory.mktemp("older") / "checkpoint.pt", long_env()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(si1000, "MAX_UNROLLED", 10**6)
        problem = Problem.from_env(env)
        dsl = parse_dsl(CONFIG)
        checkpoint.save(path, compile_predecoder(dsl, problem, seed=1), dsl)
    problem_module._build.cache_clear()
    yield path, problem.circuit_sha256
    problem_module._build.cache_clear()


def check(error: AutoqecError, place: str) -> None:
    assert "earlier version of AutoQEC wrote this SI1000 circuit" in error.message
    assert "version that made it, or start a new run" in str(error.hint) and place in str(error.location)


def manifest(circuit: str) -> Manifest:
    sha: Any = "0" * 64
    return Manifest.model_validate(
        {
            "repo": {"commit_sha": None, "branch": None, "dirty": None, "code_sha256": sha, "surface_sha256": sha},
            "packages": {},
            "environment": {"env_yaml_sha256": sha, "circuit_sha256": circuit, "requirements_fingerprint": "x"},
            "round": {
                "run_id": RUN_ID, "round_idx": 1, "round_attempt_id": None, "fork_from": "baseline",
                "compose_mode": None, "dsl_config_sha256": sha, "profile": "smoke", "seed": 1, "command_line": (),
            },
            "sandbox": {},
            "artifacts": (),
        }
    )  # fmt: skip


def test_only_the_same_circuit_without_its_loop_is_of_an_older_version(made: tuple[Path, str]) -> None:
    assert written_by_older_version(made[1], long_env())
    assert not written_by_older_version(circuit_sha256(build_source(long_env(), 0.001)), long_env())
    assert not written_by_older_version(made[1], long_env(ROUNDS + 1))
    assert not written_by_older_version(made[1], surface(3, 0.001, rounds=ROUNDS))
    assert not written_by_older_version(None, long_env())


def test_decoding_with_its_checkpoint_names_cause_and_remedy(made: tuple[Path, str]) -> None:
    with pytest.raises(ContractError) as caught:
        CheckpointDecoder.of(long_env(), made[0])
    check(caught.value, "checkpoint.pt")
    with pytest.raises(ContractError) as caught:
        load_parent_weights(None, Problem.from_env(long_env()), str(made[0]))  # type: ignore[arg-type]
    check(caught.value, "checkpoint.pt")


def test_checkpoint_of_another_circuit_is_told_to_use_its_env(made: tuple[Path, str]) -> None:
    with pytest.raises(ContractError, match="checkpoint was made for circuit") as caught:
        CheckpointDecoder.of(long_env(ROUNDS + 1), made[0])
    assert caught.value.hint == "use the env the checkpoint was trained on"


def test_its_rounds_are_not_verified_or_replayed_on_another_text(made: tuple[Path, str], tmp_path: Path) -> None:
    path, circuit = made
    wanted = request(tmp_path / "round", long_env(), path)
    document = manifest(circuit).dump()
    document["environment"]["env_yaml_sha256"] = wanted.env_sha256
    wanted.round.manifest.write_text(json.dumps(document), encoding="utf-8")
    with pytest.raises(ContractError) as caught:
        run_verification(wanted)
    check(caught.value, "artifact_manifest.json")


def test_its_run_is_not_resumed(made: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git(tmp_path, "init", "-q")
    layout = make_run(tmp_path, 2)
    layout.env.write_text(dump_config(long_env().dump()), encoding="utf-8")
    monkeypatch.setattr(run_checks, "_require_unchanged", lambda *_: None)  # the env was replaced
    layout.round(2).dir.mkdir(exist_ok=True)
    layout.round(2).manifest.write_text(json.dumps(manifest(made[1]).dump()), encoding="utf-8")
    with pytest.raises(ManualInterventionRequired) as caught:
        resume_run(RUN_ID, tmp_path)
    check(caught.value, f"run {RUN_ID}, round 2")


def test_damaged_manifest_does_not_hide_the_next_one(
    made: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(tmp_path, "init", "-q")
    layout = make_run(tmp_path, 2)
    layout.env.write_text(dump_config(long_env().dump()), encoding="utf-8")
    monkeypatch.setattr(run_checks, "_require_unchanged", lambda *_: None)  # the env was replaced
    for number, text in ((1, "{"), (2, json.dumps(manifest(made[1]).dump()))):
        layout.round(number).dir.mkdir(exist_ok=True)
        layout.round(number).manifest.write_text(text, encoding="utf-8")
    with pytest.raises(ManualInterventionRequired) as caught:
        resume_run(RUN_ID, tmp_path)
    check(caught.value, f"run {RUN_ID}, round 2")
