"""A checkpoint gives the same predictions in sinter as in autoqec."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sinter
import torch

from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.env import EnvSpec
from autoqec.decoders import checkpoint
from autoqec.decoders.dsl_compiler import compile_predecoder
from autoqec.errors import ContractError, UsageError
from autoqec.models import load_models
from autoqec.qec.backends import make_backend, make_soft_backend
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import sample, unpack
from autoqec.sinter import CompiledPredecoder, decoders
from autoqec.store.files import dump_config
from tests.support.envs import problem, surface


def make_checkpoint(tmp_path: Path, env: EnvSpec, mode: str = "soft_priors") -> tuple[Path, Path]:
    prob = Problem.from_env(env)
    dsl = parse_dsl({"type": "mlp", "output_mode": mode, "mlp": {"hidden": 8}})
    model = compile_predecoder(dsl, prob, seed=1)
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3))
    path = tmp_path / "checkpoint.pt"
    checkpoint.save(path, model, dsl)
    env_path = tmp_path / "env.yaml"
    env_path.write_text(dump_config(env.dump()), encoding="utf-8")
    return env_path, path


@pytest.mark.parametrize("mode", ["soft_priors", "hard_flip"])
def test_predictions_equal_those_of_autoqec(tmp_path: Path, mode: str) -> None:
    env = surface(3, 0.01)
    _, path = make_checkpoint(tmp_path, env, mode)
    prob = problem(3)
    shots = sample(prob, 3000, 1)
    model, dsl = checkpoint.load(path, prob)
    with torch.no_grad():
        log_odds = model(torch.from_numpy(unpack(shots.detection_events, prob.n_detectors)).float()).numpy()
    expected = make_soft_backend(prob, dsl.output_mode).decode_soft(shots.detection_events, log_odds)
    compiled = CompiledPredecoder.of(env, path, prob.dem)
    packed = compiled.decode_shots_bit_packed(bit_packed_detection_event_data=shots.detection_events)
    assert np.array_equal(unpack(packed, 1).astype(bool), expected)


def test_another_p_changes_the_priors(tmp_path: Path) -> None:
    env = surface(3, 0.01)
    _, path = make_checkpoint(tmp_path, env)
    other = Problem.from_env(surface(3, 0.02))
    compiled = CompiledPredecoder.of(env, path, other.dem)
    assert np.allclose(compiled.decoding.shift, other.graph.log_odds - problem(3).graph.log_odds, atol=1e-5)
    assert (compiled.decoding.shift > 0).all()


def test_other_circuit_is_refused_with_both_hashes(tmp_path: Path) -> None:
    env = surface(3, 0.01)
    _, path = make_checkpoint(tmp_path, env)
    with pytest.raises(ContractError, match=r"120 detectors.*24 detectors"):
        CompiledPredecoder.of(env, path, problem(5, 0.01).dem)


def test_translation_invariant_weights_take_another_distance(tmp_path: Path) -> None:
    dsl = parse_dsl({"type": "local", "local": {"hidden": 4}})
    checkpoint.save(tmp_path / "local.pt", compile_predecoder(dsl, problem(3), seed=0), dsl)
    other = problem(5, 0.01)
    compiled = CompiledPredecoder.of(surface(3, 0.01), tmp_path / "local.pt", other.dem)
    shots = sample(other, 500, 3)
    predictions = compiled.decode_shots_bit_packed(bit_packed_detection_event_data=shots.detection_events)
    assert np.array_equal(
        predictions[:, 0].astype(bool), make_backend("mwpm", other).decode(shots.detection_events)[:, 0]
    )


def test_decoders_are_named_after_checkpoints(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    env_path, path = make_checkpoint(tmp_path, surface(3, 0.01))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTOQEC_CHECKPOINTS", f"mine={env_path}={path}")
    found = decoders()
    models = {f"autoqec:{name}" for name in load_models()}
    assert set(found) == {"mwpm_correlated", "mine"} | models
    circuit = problem(3).circuit
    (stats,) = sinter.collect(
        num_workers=1, tasks=[sinter.Task(circuit=circuit)], decoders=["mine"], max_shots=500, custom_decoders=found
    )
    assert stats.shots == 500 and 0 < stats.errors < 100
    monkeypatch.setenv("AUTOQEC_CHECKPOINTS", "mine")
    with pytest.raises(UsageError, match="name=ENV.yaml=CHECKPOINT.pt"):
        decoders()


def test_sinter_command_finds_the_decoder(tmp_path: Path) -> None:
    env_path, path = make_checkpoint(tmp_path, surface(3, 0.01))
    circuit = tmp_path / "d=3,p=0.01.stim"
    circuit.write_text(str(problem(3).circuit))
    command = [
        *(str(Path(sys.executable).parent / "sinter"), "collect", "--circuits", str(circuit)),
        *("--decoders", "mine", "pymatching"),
        *("--custom_decoders_module_function", "autoqec.sinter:decoders", "--max_shots", "400"),
        *("--processes", "1", "--save_resume_filepath", str(tmp_path / "stats.csv"), "--quiet"),
    ]
    environment = {"AUTOQEC_CHECKPOINTS": f"mine={env_path}={path}", "PATH": "/usr/bin:/bin", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    stats = sinter.read_stats_from_csv_files(tmp_path / "stats.csv")
    assert {entry.decoder: entry.shots for entry in stats} == {"mine": 400, "pymatching": 400}
