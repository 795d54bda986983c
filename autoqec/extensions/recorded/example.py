"""The builtin env `recorded_example`: shots of a simulated device whose noise its model only approximates.

The model has equal error rates everywhere. The device measures worse than it computes, its error rates drift, and
sometimes a data qubit is leaked for a few rounds, in which its state is random: errors that are correlated in time,
which no detector error model of independent errors describes.
"""

from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path

import numpy as np
import stim
import yaml

from autoqec.extensions.recorded.code import RecordedShotsCode
from autoqec.extensions.recorded.env import model_code, write_models
from autoqec.extensions.recorded.shots import RecordedShots
from autoqec.qec.problem import Problem
from autoqec.store import atomic
from autoqec.store.files import dump_config, env_from_data

SEED = 20_261_123
DISTANCE, ROUNDS = 3, 5
FILES, SLICES, SLICE_SHOTS = 4, 12, 10_000  # files of slices; the error rates change between slices
MODEL_P, DEVICE_P = 0.004, 0.005
DRIFT = 0.06  # standard deviation of a step of the logarithm of the error rates
LEAKED_SHARE, LEAKED_ROUNDS, LEAKED_QUBITS = 0.15, 3, 3  # share of shots, duration, and qubits per slice
SEED_BANDS = {
    "train": [0, 999_999_999],
    "val": [1_000_000_000, 1_999_999_999],
    "holdout": [2_000_000_000, 2_999_999_999],
}
BASELINES = ["mwpm", "mwpm_correlated", "mwpm_estimated", "mwpm_correlated_estimated"]


def write_example(directory: Path, slices: int = SLICES) -> Path:
    """Generate the shots, the estimated model and the env file, unless they exist; return the env file.

    Args:
        directory: Created with all its files at once.
        slices: Slices per file.
    """
    env_file = directory / "env.yaml"
    if env_file.is_file():
        return env_file
    atomic.make_dir(directory.parent)
    with (
        atomic.storage_errors(directory),
        tempfile.TemporaryDirectory(dir=directory.parent, prefix=".example-") as temp,
    ):
        partial = Path(temp) / directory.name
        write_shots(partial / "shots", slices)
        _write_env(partial, slices)
        shutil.rmtree(directory, ignore_errors=True)
        partial.rename(directory)
    return env_file


def write_shots(directory: Path, slices: int) -> None:
    """Write the model, the shots of every file, and `recorded.yaml`."""
    directory.mkdir(parents=True)
    (directory / "circuit.stim").write_text(f"{_circuit(MODEL_P, MODEL_P)}\n", encoding="utf-8")
    rng = np.random.default_rng(SEED)
    strength = 0.0
    blocks = []
    for index in range(FILES):
        events, flips = f"detection_events_{index}.b8", f"obs_flips_{index}.b8"
        with (directory / events).open("wb") as event_file, (directory / flips).open("wb") as flip_file:
            for _ in range(slices):
                strength = 0.98 * strength + DRIFT * rng.standard_normal()
                for stream, bits in zip((event_file, flip_file), _slice(DEVICE_P * np.exp(strength), rng), strict=True):
                    stream.write(np.packbits(bits, axis=1, bitorder="little").tobytes())
        time = f"2026-01-01T{index:02d}:00:00Z"
        block = {"detection_events": events, "observables": flips, "device": "simulated", "time": time, "basis": "z"}
        blocks.append(block)
    layout = {"model": "circuit.stim", "rounds": ROUNDS, "blocks": blocks}
    (directory / "recorded.yaml").write_text(yaml.safe_dump(layout, sort_keys=False), encoding="utf-8")


def _write_env(directory: Path, slices: int) -> None:
    env_file = directory / "env.yaml"
    recorded = RecordedShots.open(directory / "shots")
    spec = {"name": "recorded_example", "code": model_code(recorded, directory), "noise": {"model": "from_file"}}
    spec |= {"seed_policy": SEED_BANDS, "backend": "mwpm", "baselines": BASELINES[:2]}
    problem = Problem.from_env(env_from_data(spec, location="recorded_example", directory=directory))
    code: RecordedShotsCode = write_models(recorded, problem, (slices * SLICE_SHOTS,) * FILES, env_file)
    spec |= {"code": code.model_dump(exclude={"manifest", "text", "estimated"}), "baselines": BASELINES}
    env_file.write_text(dump_config(spec), encoding="utf-8")


def _circuit(p: float, measure: float) -> stim.Circuit:
    return stim.Circuit.generated(
        "surface_code:rotated_memory_z",
        distance=DISTANCE,
        rounds=ROUNDS,
        after_clifford_depolarization=p,
        before_measure_flip_probability=measure,
        after_reset_flip_probability=p,
        before_round_data_depolarization=p,
    )


def _slice(p: float, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return bool [SLICE_SHOTS, n_detectors] and [SLICE_SHOTS, n_observables] at one strength of the noise."""
    circuit = _circuit(p, 2 * p)
    leaked_shots = int(SLICE_SHOTS * LEAKED_SHARE) // LEAKED_QUBITS
    circuits = [(circuit, SLICE_SHOTS - leaked_shots * LEAKED_QUBITS)]
    qubits = sorted(qubit for qubit, place in circuit.get_final_qubit_coordinates().items() if place[0] % 2)
    data = [qubit for qubit in qubits if circuit.get_final_qubit_coordinates()[qubit][1] % 2]
    for _ in range(LEAKED_QUBITS):
        first = int(rng.integers(ROUNDS))
        circuits.append((_with_leakage(circuit, int(rng.choice(data)), first), leaked_shots))
    parts = []
    for leaked, shots in circuits:
        sampler = leaked.compile_detector_sampler(seed=int(rng.integers(2**32)))
        parts.append(sampler.sample(shots, separate_observables=True))
    order = rng.permutation(SLICE_SHOTS)
    events, flips = (np.concatenate(part)[order] for part in zip(*parts, strict=True))
    return events, flips


def _with_leakage(circuit: stim.Circuit, qubit: int, first: int) -> stim.Circuit:
    """Make a qubit's state random at the start of a few rounds; a round starts with depolarization of the data."""
    result, starts = stim.Circuit(), itertools.count()
    for instruction in circuit.flattened():
        result.append(instruction)
        targets = [target.value for target in instruction.targets_copy()]
        if (
            instruction.name == "DEPOLARIZE1"
            and len(targets) == DISTANCE**2
            and first <= next(starts) < first + LEAKED_ROUNDS
        ):
            result.append("DEPOLARIZE1", [qubit], 0.75)
    return result
