"""Noise models of generated circuits: channels of their own, phenomenological, code capacity, 25 parameters."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import stim
from pydantic import ValidationError

from autoqec.contracts.base import first_validation_error
from autoqec.contracts.env import CircuitDepolarizing, EnvSpec, StimGeneratorCode
from autoqec.contracts.noise import Noise, Nvidia25Noise, Nvidia25Parameters
from autoqec.errors import UsageError
from autoqec.qec.backends import make_backend
from autoqec.qec.generated import generated_circuit, with_nvidia_25
from autoqec.qec.problem import Problem
from autoqec.qec.sampling import sample
from autoqec.store.files import env_from_data
from tests.support.envs import BANDS

NAMES = tuple(Nvidia25Parameters.model_fields)


def env(noise: dict[str, Any], d: int = 3, rounds: int = 3, task: str = "surface_code:rotated_memory_z") -> EnvSpec:
    code = {"kind": "stim_generator", "task": task, "distance": d, "rounds": rounds}
    fields = {"p": [0.01], "target_p": 0.01} | noise
    return EnvSpec.model_validate({"name": "mine", "code": code, "noise": fields, "seed_policy": BANDS.dump()})


def circuit(noise: dict[str, Any], **code: Any) -> stim.Circuit:
    spec = env(noise, **code)
    assert isinstance(spec.code, StimGeneratorCode) and spec.target is not None
    return generated_circuit(spec.code, spec.noise, spec.target)


def channels(found: stim.Circuit) -> Counter[tuple[str, tuple[float, ...]]]:
    """Return (channel, probabilities) -> its number of targets, without loops."""
    counts: Counter[tuple[str, tuple[float, ...]]] = Counter()
    for each in found.flattened():
        gate = stim.gate_data(each.name)
        if gate.is_noisy_gate and not gate.produces_measurements:
            counts[each.name, tuple(each.gate_args_copy())] += len(each.targets_copy())
    return counts


def parameters(**given: float) -> dict[str, float]:
    return dict.fromkeys(NAMES, 0.0) | given


def nvidia(task: str = "surface_code:rotated_memory_z", rounds: int = 3, **given: float) -> stim.Circuit:
    plain = stim.Circuit.generated(task, distance=3, rounds=rounds)
    return with_nvidia_25(plain, Nvidia25Parameters(**parameters(**given)))


def test_each_channel_has_a_strength_of_its_own() -> None:
    noise = {"model": "circuit_channels", "gate": 0.5, "measurement": 5, "reset": 2, "data": 0}
    expected = stim.Circuit.generated(
        "surface_code:rotated_memory_z",
        distance=3,
        rounds=3,
        after_clifford_depolarization=0.005,
        before_measure_flip_probability=0.05,
        after_reset_flip_probability=0.02,
    )
    assert circuit(noise) == expected
    code = StimGeneratorCode(task="surface_code:rotated_memory_z", distance=3, rounds=3)
    same = generated_circuit(code, CircuitDepolarizing(p=(0.01,), target_p=0.01), 0.01)
    assert circuit({"model": "circuit_channels"}) == same


@pytest.mark.parametrize("task", ["surface_code:rotated_memory_z", "surface_code:rotated_memory_x"])
def test_phenomenological_noise_is_on_data_and_checks_alone(task: str) -> None:
    found = circuit({"model": "phenomenological"}, task=task, rounds=4)
    assert channels(found) == {("DEPOLARIZE1", (0.01,)): 4 * 9, ("X_ERROR", (0.01,)): 4 * 8}
    final = found[-1 - max(index for index, each in enumerate(reversed(list(found))) if each.name in ("M", "MX"))]
    assert len(final.targets_copy()) == 9  # the data qubits, without a flip before them


def test_phenomenological_noise_of_other_codes() -> None:
    repetition = circuit({"model": "phenomenological"}, task="repetition_code:memory", d=5, rounds=4)
    assert channels(repetition) == {("DEPOLARIZE1", (0.01,)): 4 * 5, ("X_ERROR", (0.01,)): 4 * 4}
    color = circuit({"model": "phenomenological"}, task="color_code:memory_xyz", rounds=2)
    assert channels(color) == {("DEPOLARIZE1", (0.01,)): 2 * 7, ("X_ERROR", (0.01,)): 2 * 3}


def test_code_capacity_decodes_single_errors_exactly() -> None:
    spec = env({"model": "code_capacity", "p": [0.1], "target_p": 0.1}, d=3, rounds=1)
    problem = Problem.from_env(spec)
    assert channels(problem.circuit) == {("DEPOLARIZE1", (0.1,)): 9}
    decode = make_backend("mwpm", problem).decode
    shots = sample(problem, 20_000, 5)
    rate = (decode(shots.detection_events) != shots.observables).mean()
    assert 0.01 < rate < 0.06  # about 17 weight-2 patterns of 2p/3 each at d=3
    single = problem.H.toarray().T.astype(bool)
    assert (decode(np.packbits(single, 1, bitorder="little")) == problem.L.toarray().T.astype(bool)).all()


@pytest.mark.parametrize(
    ("noise", "code", "message"),
    [
        ({"model": "code_capacity"}, {"rounds": 3}, "`rounds` must be 1"),
        ({"model": "circuit_channels", "measurement": 60}, {}, r"0.6, outside \(0, 1/2\)"),
        ({"model": "circuit_channels", "gate": 0, "measurement": 0, "reset": 0, "data": 0}, {}, "no noise"),
        ({"model": "circuit_channels", "gate": -1}, {}, "greater than or equal to 0"),
        (
            {"model": "nvidia_25", "parameters": parameters(p_meas_Z=0.01)},
            {"task": "repetition_code:memory"},
            "surface",
        ),
        ({"model": "nvidia_25", "parameters": {"p_meas_Z": 0.01}}, {}, "p_prep_X: Field required"),
        ({"model": "nvidia_25", "parameters": parameters()}, {}, r"is 0, outside"),
        ({"model": "nvidia_25", "parameters": parameters(p_meas_Z=1e-320)}, {}, "too small to be scaled to p"),
        ({"model": "nvidia_25", "parameters": parameters(p_idle_X=0.1)}, {}, "p_idle_X: Extra inputs"),
        ({"model": "nvidia_25", "parameters": parameters(p_cnot_XX=0.4, p_cnot_ZZ=0.2)}, {}, "is 0.6, outside"),
    ],
)
def test_noise_that_cannot_be_is_refused(noise: dict[str, Any], code: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message.replace("p_prep_X: ", "").replace("p_idle_X: ", "")):
        env(noise, **code)


@pytest.mark.parametrize("model", ["circuit_channels", "phenomenological", "code_capacity", "nvidia_25"])
def test_noise_of_the_generator_needs_its_circuits(model: str) -> None:
    noise = {"model": model, "p": [0.01], "target_p": 0.01}
    noise |= {"parameters": parameters(p_meas_Z=0.01)} if model == "nvidia_25" else {}
    fields = {"name": "mine", "noise": noise, "seed_policy": BANDS.dump(), "backend": "bposd", "baselines": ["bposd0"]}
    with pytest.raises(ValidationError, match="requires code kind `stim_generator`"):
        EnvSpec.model_validate(fields | {"code": {"kind": "bivariate_bicycle"}})


def test_message_on_several_fields_names_no_field() -> None:
    with pytest.raises(ValidationError) as error:
        env({"model": "code_capacity"}, rounds=3)
    assert first_validation_error(error.value).startswith("noise model `code_capacity` has perfect checks")


@pytest.mark.parametrize("rounds", [1, 2, 5])
def test_each_of_the_25_parameters_has_its_place(rounds: int) -> None:
    """d=3: 9 data qubits, 4 ancillas of each basis, 24 CNOTs per round in 4 layers of 6, which leave 5 qubits idle."""
    places = {name: sum(channels(nvidia(rounds=rounds, **{name: 0.01})).values()) for name in NAMES}
    expected = dict.fromkeys((name for name in NAMES if "cnot" in name), rounds * 48)
    expected |= {f"p_idle_cnot_{pauli}": rounds * 20 for pauli in "XYZ"}
    expected |= {f"p_idle_spam_{pauli}": (rounds - 1) * 9 for pauli in "XYZ"}
    expected |= {"p_prep_X": rounds * 4, "p_prep_Z": 9 + rounds * 4, "p_meas_X": rounds * 4, "p_meas_Z": 9 + rounds * 4}
    assert places == expected


def test_data_qubits_of_an_x_memory_are_prepared_and_measured_in_x() -> None:
    for name, count in (("p_prep_X", 13), ("p_prep_Z", 4), ("p_meas_X", 13), ("p_meas_Z", 4)):
        assert sum(channels(nvidia("surface_code:rotated_memory_x", 1, **{name: 0.01})).values()) == count


def test_flips_of_an_ancilla_change_its_measurement_alone() -> None:
    """A flip before the measurement of an ancilla, in its basis, flips its two detectors and no observable."""
    for name in ("p_meas_X", "p_prep_X"):
        model = nvidia(rounds=3, **{name: 0.01}).detector_error_model()
        errors = [each.targets_copy() for each in model.flattened() if each.type == "error"]
        assert errors and all(target.is_relative_detector_id() for targets in errors for target in targets)
        assert max(len(targets) for targets in errors) == 2


def test_pauli_pairs_are_those_of_control_and_target() -> None:
    found = nvidia(rounds=1, p_cnot_ZI=0.01, p_cnot_IX=0.02)
    (args,) = {args for name, args in channels(found) if name == "PAULI_CHANNEL_2"}
    assert args[11] == 0.01 and args[0] == 0.02 and sum(args) == pytest.approx(0.03)
    cnots = [each.targets_copy() for each in found if each.name == "CX"]
    assert [each.targets_copy() for each in found if each.name == "PAULI_CHANNEL_2"] == cnots


def test_equal_parameters_are_depolarizing_noise() -> None:
    """CNOT errors of p/15 each are DEPOLARIZE2(p): the same detector error model as stim's."""
    plain = stim.Circuit.generated("surface_code:rotated_memory_z", distance=3, rounds=3)
    pairs = {name: 0.01 / 15 for name in NAMES if "p_cnot" in name}
    found = with_nvidia_25(plain, Nvidia25Parameters(**parameters(**pairs)))
    expected = stim.Circuit()
    for each in plain.flattened():
        expected.append(each)
        if each.name == "CX":
            expected.append("DEPOLARIZE2", each.targets_copy(), 0.01)
    model = found.flattened().detector_error_model(approximate_disjoint_errors=True)
    assert model.approx_equals(expected.detector_error_model(), atol=1e-4)


def test_loops_are_kept_and_change_nothing() -> None:
    noise = {name: 0.001 * (index + 1) / 25 for index, name in enumerate(NAMES)}
    for rounds in (2, 3, 6):
        plain = stim.Circuit.generated("surface_code:rotated_memory_z", distance=3, rounds=rounds)
        looped = with_nvidia_25(plain, Nvidia25Parameters(**noise))
        assert looped.flattened() == with_nvidia_25(plain.flattened(), Nvidia25Parameters(**noise)).flattened()
    assert len(str(nvidia(rounds=1000, **noise))) < 2 * len(str(nvidia(rounds=3, **noise)))


def test_strength_scales_all_parameters() -> None:
    given = parameters(p_prep_X=0.001, p_meas_Z=0.004, p_cnot_XX=0.002, p_cnot_ZZ=0.003)
    noise: Noise = Nvidia25Noise(p=(0.005, 0.01), target_p=0.005, parameters=Nvidia25Parameters(**given))
    assert noise.parameters.strength == 0.005 and noise.at(0.005) is noise.parameters
    assert noise.at(0.01).p_prep_X == pytest.approx(0.002) and noise.at(0.01).strength == pytest.approx(0.01)


@pytest.mark.parametrize("model", ["circuit_channels", "phenomenological", "nvidia_25"])
def test_matching_decodes_shots_of_the_models(model: str) -> None:
    noise = {"model": model}
    noise |= {"parameters": dict.fromkeys(NAMES, 0.0005)} if model == "nvidia_25" else {}  # type: ignore[dict-item]
    problem = Problem.from_env(env(noise))
    shots = sample(problem, 5000, 7)
    wrong = (make_backend("mwpm", problem).decode(shots.detection_events) != shots.observables).mean()
    assert 0 < wrong < shots.observables.mean() / 2


@pytest.mark.parametrize(
    ("noise", "message"),
    [
        ({"model": "circuit_channels", "gate": -1}, "field `noise.gate`: Input should be greater than or equal to 0"),
        ({"model": "circuit_channels", "gate": 60}, "field `noise`: the largest factor times the largest p is 0.6"),
        ({"model": "nvidia_25", "parameters": {}}, "field `noise.parameters.p_prep_X`: Field required"),
        ({"model": "nvidia_25", "parameters": {"p_prep_X": "x"}}, "field `noise.parameters.p_prep_X`: Input should be"),
    ],
)
def test_errors_name_the_field_of_the_file(noise: dict[str, Any], message: str) -> None:
    data: dict[str, Any] = {"name": "mine", "seed_policy": BANDS.dump(), "baselines": ["mwpm"]}
    data |= {"code": {"kind": "stim_generator", "task": "surface_code:rotated_memory_z", "distance": 3, "rounds": 3}}
    data["noise"] = {"p": [0.01], "target_p": 0.01, **noise}
    with pytest.raises(UsageError) as refused:
        env_from_data(data, location="env.yaml", directory=Path())
    assert refused.value.message.startswith(message)
