"""Noise model SI1000: compilation to CZ and the strength of every channel."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import stim

from autoqec.contracts.env import BicycleCode, CssFileCode, EnvSpec, Si1000Noise, StimGeneratorCode
from autoqec.errors import UsageError
from autoqec.qec import bicycle
from autoqec.qec import si1000 as si1000_module
from autoqec.qec.problem import Problem
from autoqec.qec.si1000 import si1000
from tests.support.envs import BANDS

TASKS = [
    "surface_code:rotated_memory_z",
    "surface_code:rotated_memory_x",
    "surface_code:unrotated_memory_z",
    "repetition_code:memory",
    "color_code:memory_xyz",
]


def env(code: Any, p: float = 0.002, **more: Any) -> EnvSpec:
    return EnvSpec(name="si", code=code, noise=Si1000Noise(p=(p,), target_p=p), seed_policy=BANDS, **more)


def channels(circuit: stim.Circuit) -> Counter[tuple[str, float]]:
    """Count targets by operation and strength."""
    found: Counter[tuple[str, float]] = Counter()
    for instruction in circuit:
        if instruction.name in ("H", "CZ", "R", "M", "DEPOLARIZE1", "DEPOLARIZE2", "X_ERROR"):
            strength = round(sum(instruction.gate_args_copy()), 9)
            found[instruction.name, strength] += len(instruction.targets_copy())
    return found


@pytest.mark.parametrize("task", TASKS)
def test_experiments_keep_their_detectors(task: str) -> None:
    """Without noise, no detector fires and no observable flips; stim refuses a detector that is random."""
    plain = stim.Circuit.generated(task, distance=3, rounds=3)
    circuit = si1000(plain, 0.001)
    assert circuit.without_noise().detector_error_model().num_errors == 0
    assert circuit.get_detector_coordinates() == plain.get_detector_coordinates()
    assert circuit.num_observables == plain.num_observables and circuit.num_measurements == plain.num_measurements
    assert circuit.detector_error_model().num_detectors == plain.num_detectors
    noiseless = circuit.without_noise().compile_detector_sampler(seed=1).sample(20, append_observables=True)
    assert not noiseless.any()


def long_experiment(task: str, rounds: int) -> stim.Circuit:
    if task == "bicycle":
        return bicycle.memory_circuit(3, 3, ((1, 0), (0, 1), (0, 2)), ((0, 1), (1, 0), (2, 0)), rounds, 0.001)
    return stim.Circuit.generated(task, distance=3, rounds=rounds)


def errors(circuit: stim.Circuit) -> dict[str, float]:
    """Return how likely an odd number of the errors with the same targets is; loops list some of them twice."""
    found: dict[str, float] = {}
    for each in circuit.detector_error_model(approximate_disjoint_errors=True).flattened():
        if each.type == "error":
            (p,), targets = each.args_copy(), " ".join(map(str, each.targets_copy()))
            q = found.get(targets, 0.0)
            found[targets] = p * (1 - q) + q * (1 - p)
    return found


@pytest.mark.parametrize("task", [*TASKS, "bicycle"])
def test_long_experiments_are_loops_with_the_errors_of_the_unrolled_circuit(
    task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = long_experiment(task, 9)
    unrolled = si1000(plain, 0.001)
    monkeypatch.setattr(si1000_module, "MAX_UNROLLED", 6)
    looped = si1000(plain, 0.001)
    kinds = [type(each) for each in looped]
    assert kinds.count(stim.CircuitRepeatBlock) == 1 and len(str(looped)) < len(str(unrolled))
    assert looped.flattened() == unrolled
    assert looped.get_detector_coordinates() == unrolled.get_detector_coordinates()
    found, expected = (errors(each) for each in (looped, unrolled))
    assert found.keys() == expected.keys() and found == pytest.approx(expected, abs=1e-12)


def test_size_of_a_circuit_does_not_grow_with_its_rounds() -> None:
    plain = [stim.Circuit.generated(TASKS[0], distance=3, rounds=rounds) for rounds in (100, 10**6)]
    short, long = (si1000(each, 0.001) for each in plain)
    assert len(str(long)) < len(str(short)) + 10
    assert long.num_detectors == 8 * 10**6 and long.num_ticks / short.num_ticks == pytest.approx(10**4, rel=0.01)


def test_circuits_of_few_rounds_have_no_loops() -> None:
    """Hashes of their text are stored: the longest circuit of the board with this noise has 12 rounds."""
    circuit = si1000(stim.Circuit.generated(TASKS[0], distance=3, rounds=si1000_module.MAX_UNROLLED), 0.001)
    assert "REPEAT" not in str(circuit)


def test_loop_whose_repetitions_are_compiled_differently_is_unrolled() -> None:
    """Hadamard gates of qubit 0 cancel in pairs, so that one is left after an odd number of repetitions."""
    text = "R 0 1\nTICK\nREPEAT %d {\nH 0\nTICK\nM 1\nTICK\n}\nM 0\nDETECTOR rec[-2]"
    for count, hadamards in ((100, 0), (101, 1)):
        circuit = si1000(stim.Circuit(text % count), 0.001)
        assert "REPEAT" not in str(circuit) and channels(circuit)["H", 0] == hadamards


def test_gates_are_cz_and_hadamard_in_few_layers() -> None:
    """Two layers of Hadamard gates between the four of CZ, one before and one after them; one measurement."""
    circuit = si1000(stim.Circuit.generated("surface_code:rotated_memory_z", distance=3, rounds=1), 0.001)
    layers = [name for name, _ in channels(circuit) if name not in ("X_ERROR", "DEPOLARIZE1", "DEPOLARIZE2")]
    assert set(layers) == {"H", "CZ", "R", "M"}
    order = [each.name for each in circuit if each.name in ("H", "CZ", "R", "M")]
    assert "".join(name[0] for name in order) == "RHCHCCHCHM"


def test_layers_of_a_small_circuit_by_hand() -> None:
    circuit = si1000(stim.Circuit("R 0 1\nTICK\nH 0\nTICK\nCX 0 1\nTICK\nM 0 1"), 0.01)
    expected = stim.Circuit(
        """
        R 0 1
        X_ERROR(0.02) 0 1
        TICK
        H 0 1
        DEPOLARIZE1(0.001) 0 1
        TICK
        CZ 0 1
        DEPOLARIZE2(0.01) 0 1
        TICK
        H 1
        DEPOLARIZE1(0.001) 1
        DEPOLARIZE1(0.001) 0
        TICK
        M(0.05) 0 1
        DEPOLARIZE1(0.01) 0 1
        TICK
        """
    )
    assert circuit.approx_equals(expected, atol=1e-12), str(circuit)


def test_qubits_that_idle_during_a_measurement_or_reset_are_noisier() -> None:
    found = channels(si1000(stim.Circuit("R 0 1\nTICK\nMR 0\nTICK\nCZ 0 1\nTICK\nM 0 1"), 0.01))
    assert found == {
        ("R", 0): 3, ("X_ERROR", 0.02): 3, ("M", 0.05): 3, ("DEPOLARIZE1", 0.01): 3, ("DEPOLARIZE1", 0.001): 2,
        ("DEPOLARIZE1", 0.02): 2, ("CZ", 0): 2, ("DEPOLARIZE2", 0.01): 2,
    }  # fmt: skip


def test_pairs_of_hadamard_gates_cancel() -> None:
    """A target of two CNOTs in a row stays in the other basis between them."""
    found = channels(si1000(stim.Circuit("R 0 1 2\nTICK\nCX 0 2\nTICK\nCX 1 2\nTICK\nM 0 1 2"), 0.01))
    assert found["H", 0] == 2 and found["CZ", 0] == 4


def test_last_measurements_are_one_layer_and_last_resets_are_dropped() -> None:
    """The data qubit idled since the CNOT, so it is measured with the check qubit."""
    text = "R 0 1\nTICK\nCX 0 1\nTICK\nMR 1\nDETECTOR(1, 0) rec[-1]\nM 0\nDETECTOR(1, 1) rec[-1] rec[-2]"
    circuit = si1000(stim.Circuit(text), 0.01)
    found = channels(circuit)
    assert found["R", 0] == 2 and found["M", 0.05] == 2 and ("DEPOLARIZE1", 0.02) not in found
    errors = {str(each) for each in stim.Circuit(text).without_noise().detector_error_model()}
    assert errors == {str(each) for each in circuit.without_noise().detector_error_model()}
    flipped = stim.Circuit(str(circuit.without_noise()).replace("M 1 0", "X_ERROR(1) 0\nM 1 0"))
    assert flipped.compile_detector_sampler().sample(1).tolist() == [[False, True]]


def test_consecutive_resets_are_one_layer() -> None:
    circuit = si1000(stim.Circuit("RX 0\nR 1\nTICK\nCX 0 1\nTICK\nMX 0\nM 1"), 0.01)
    assert [each.name for each in circuit if each.name in "RM"] == ["R", "M"]
    assert ("DEPOLARIZE1", 0.02) not in channels(circuit)


@pytest.mark.parametrize("basis", ["z", "x"])
def test_bicycle_experiment(basis: str) -> None:
    code = BicycleCode(rounds=2, basis=basis)  # type: ignore[arg-type]
    prob = Problem.from_env(env(code, backend="bposd", baselines=("bposd0",)))
    assert prob.n_observables == 12 and prob.n_mechanisms > 1000


def test_matching_graph_of_the_surface_code() -> None:
    code = StimGeneratorCode(task="surface_code:rotated_memory_x", distance=3, rounds=3)
    prob = Problem.from_env(env(code))
    assert (len(prob.graph.in_sector), len(prob.graph.out_of_sector)) == (16, 8)


def test_what_the_model_does_not_cover_is_refused() -> None:
    with pytest.raises(UsageError, match="does not cover the operation MPP"):
        Problem.from_env(env(CssFileCode(path="c.yaml", text='hx: ["1111"]\nhz: ["1111"]'), backend="bposd",
                             baselines=("bposd0",)))  # fmt: skip
    with pytest.raises(UsageError, match="above 0.2"):
        si1000(stim.Circuit("R 0\nM 0"), 0.3)
    with pytest.raises(UsageError, match="operation SWAP"):
        si1000(stim.Circuit("SWAP 0 1"), 0.01)
