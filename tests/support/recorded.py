"""Directories of recorded shots for tests: shots of a simulated device, written in stim's formats."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stim
import yaml

from autoqec.cli.env_defaults import SEED_BANDS
from autoqec.contracts.env import ESTIMATED, EnvSpec
from autoqec.extensions.recorded.code import RecordedBlock
from autoqec.extensions.recorded.env import write_models
from autoqec.extensions.recorded.shot_source import check_start
from autoqec.extensions.recorded.shots import RecordedShots
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import Shots, sample
from autoqec.store.files import dump_config, load_env
from tests.support.envs import problem


def write_shots(path: Path, bits: np.ndarray, kind: str = "detectors") -> None:
    shot_format = path.suffix.removeprefix(".")
    stim.write_shot_data_file(data=bits.astype(bool), path=path, format=shot_format, **{f"num_{kind}": bits.shape[1]})


def unpacked(shots: Shots, n_detectors: int) -> np.ndarray:
    return np.unpackbits(shots.detection_events, axis=1, count=n_detectors, bitorder="little").astype(bool)


def plain_directory(
    directory: Path, shots: int = 4000, blocks: int = 2, event_format: str = "b8", source: Problem | None = None
) -> Path:
    """Write blocks of shots of the surface code of distance 3, with a recorded.yaml."""
    directory.mkdir(parents=True, exist_ok=True)
    model = problem(3)
    (directory / "circuit.stim").write_text(str(model.circuit), encoding="utf-8")
    layout: dict[str, Any] = {"model": "circuit.stim", "rounds": 3, "blocks": []}
    for index in range(blocks):
        drawn = sample(source or model, shots, 100 + index)
        events, flips = f"events{index}.{event_format}", f"flips{index}.01"
        write_shots(directory / events, unpacked(drawn, model.n_detectors))
        write_shots(directory / flips, drawn.observables, "observables")
        block = {"detection_events": events, "observables": flips, "device": "simulated", "basis": "z"}
        layout["blocks"].append(block)
    (directory / "recorded.yaml").write_text(yaml.safe_dump(layout), encoding="utf-8")
    return directory


def google_directory(directory: Path, shots: int = 4000) -> Path:
    """Write one experiment in the layout of Google's data sets, with random initial states from sweep bits."""
    directory.mkdir(parents=True, exist_ok=True)
    noisy = with_sweep_bits(problem(3).circuit)
    (directory / "circuit_noisy.stim").write_text(str(noisy), encoding="utf-8")
    (directory / "circuit_ideal.stim").write_text(str(noisy.without_noise()), encoding="utf-8")
    # stim samples measurements without sweep bits, so each of a few initial states is sampled by its own circuit
    rng = np.random.default_rng(5)
    states = rng.random((4, noisy.num_sweep_bits)) < 0.5
    index = rng.integers(len(states), size=shots)
    sweep = states[index]
    measured = np.zeros((shots, noisy.num_measurements), bool)
    for number, state in enumerate(states):
        part = np.nonzero(index == number)[0]
        fixed = stim.Circuit(fill_sweep_bits(str(noisy), state))
        measured[part] = fixed.compile_sampler(seed=7 + number).sample(len(part))
    events, flips = noisy.compile_m2d_converter().convert(
        measurements=measured, sweep_bits=sweep, separate_observables=True
    )
    write_shots(directory / "measurements.b8", measured, "measurements")
    write_shots(directory / "sweep_bits.b8", sweep, "measurements")
    write_shots(directory / "detection_events.b8", events)
    write_shots(directory / "obs_flips_actual.01", flips, "observables")
    write_shots(directory / "obs_flips_predicted_by_constant.01", np.zeros_like(flips), "observables")
    (directory / "properties.yml").write_text("rounds: 3\nbasis: Z\ncenter: 3_5\n", encoding="utf-8")
    return directory


def with_sweep_bits(circuit: stim.Circuit) -> stim.Circuit:
    """Flip each data qubit of a surface code's initial state by a sweep bit of its own."""
    lines = str(circuit).splitlines()
    data = next(line for line in reversed(lines) if line.startswith(("M ", "M("))).split()[1:]
    first = next(index for index, line in enumerate(lines) if line.startswith("TICK"))
    swept = " ".join(f"sweep[{bit}] {qubit}" for bit, qubit in enumerate(data))
    return stim.Circuit("\n".join([*lines[:first], f"CX {swept}", *lines[first:]]))


def fill_sweep_bits(text: str, state: np.ndarray) -> str:
    """Replace the gates that sweep bits control by X gates on the qubits whose bit is set."""
    lines = []
    for line in text.splitlines():
        if "sweep[" in line:
            qubits = line.split()[2::2]
            line = "X " + " ".join(qubit for qubit, bit in zip(qubits, state, strict=True) if bit)
        lines.append(line if line != "X " else "")
    return "\n".join(lines)


def recorded_env(directory: Path, shots: int = 3500, block_shots: int = 100, device: Problem | None = None) -> Path:
    """Write two files of shots and an env of them with two candidates; return the env file."""
    plain_directory(directory / "data", shots, 2, source=device)
    return write_recorded_env(directory, block_shots)


def write_recorded_env(directory: Path, block_shots: int = 100, others: tuple[str, ...] = (), **changes: Any) -> Path:
    """Write an env of the shots in `directory / "data"`, with other baselines too; return the env file."""
    recorded = RecordedShots.open(directory / "data")
    counts = tuple(sum(len(part) for part in recorded.chunks(block)) for block in recorded.layout.blocks)
    env_file = directory / "env.yaml"
    code = write_models(recorded, problem(3), counts, env_file, block_shots, 2)
    contents = {"manifest", "text", "estimated"}
    spec = {"name": "device", "code": {**code.model_dump(exclude=contents), **changes}, "noise": {"model": "from_file"}}
    spec |= {"seed_policy": SEED_BANDS, "baselines": ["mwpm", "mwpm_correlated", *ESTIMATED, *others]}
    env_file.write_text(dump_config(spec), encoding="utf-8")
    return env_file


def write_predictions(directory: Path, name: str, wrong_every: int) -> None:
    """Write predictions that are wrong at every n-th shot, and name them in every block of `recorded.yaml`."""
    layout = yaml.safe_load((directory / "recorded.yaml").read_text(encoding="utf-8"))
    for index, block in enumerate(layout["blocks"]):
        path = directory / block["observables"]
        flips = stim.read_shot_data_file(path=path, format="01", num_observables=1)
        flips[::wrong_every] ^= True
        block["predictions"] = block.get("predictions", {}) | {name: f"{name}{index}.b8"}
        write_shots(directory / f"{name}{index}.b8", flips, "observables")
    (directory / "recorded.yaml").write_text(yaml.safe_dump(layout), encoding="utf-8")


def provided(env_file: Path, round_dir: Path) -> EnvSpec:
    """Return the env after a run's start has provided its shots to rounds beside `round_dir`."""
    env, _ = load_env(env_file)
    round_dir.mkdir(parents=True, exist_ok=True)
    check_start(env, env_file.parent).provide(round_dir)
    return env


def note_chunks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the length of each chunk of recorded shots when it is read."""
    lengths: list[int] = []
    chunks = RecordedShots.chunks

    def noted(recorded: RecordedShots, block: RecordedBlock) -> Iterator[Shots]:
        for chunk in chunks(recorded, block):
            lengths.append(len(chunk))
            yield chunk

    monkeypatch.setattr(RecordedShots, "chunks", noted)
    return lengths
