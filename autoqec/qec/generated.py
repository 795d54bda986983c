"""Circuits of stim's generator under the noise models that only they have."""

from __future__ import annotations

from collections.abc import Iterable

import stim

from autoqec.contracts.env import StimGeneratorCode
from autoqec.contracts.noise import (
    ChannelNoise,
    CodeCapacityNoise,
    Noise,
    Nvidia25Noise,
    Nvidia25Parameters,
    PhenomenologicalNoise,
)

FLIPS = {"X": "Z_ERROR", "Z": "X_ERROR"}  # basis -> channel that flips a preparation or measurement in it


def generated_circuit(code: StimGeneratorCode, noise: Noise, p: float) -> stim.Circuit:
    """Build a circuit of stim's generator with the channels that a noise model sets.

    Args:
        code: The code.
        noise: The noise model; models that rewrite the finished circuit get stim's four channels with strength p.
        p: Strength.

    Raises:
        ValueError: stim does not generate such a circuit.
    """
    gate, measurement, reset, data = 1.0, 1.0, 1.0, 1.0
    if isinstance(noise, ChannelNoise):
        gate, measurement, reset, data = noise.factors
    elif isinstance(noise, PhenomenologicalNoise):
        gate = reset = 0.0
    elif isinstance(noise, CodeCapacityNoise):
        gate = measurement = reset = 0.0
    circuit = stim.Circuit.generated(
        code.task,
        distance=code.distance,
        rounds=code.rounds,
        after_clifford_depolarization=gate * p,
        before_measure_flip_probability=measurement * p,
        after_reset_flip_probability=reset * p,
        before_round_data_depolarization=data * p,
    )
    if isinstance(noise, PhenomenologicalNoise):
        return _without_last_flips(circuit)
    return with_nvidia_25(circuit, noise.at(p)) if isinstance(noise, Nvidia25Noise) else circuit


def _without_last_flips(circuit: stim.Circuit) -> stim.Circuit:
    """Remove the flips before the final measurement of the data qubits."""
    last = max(index for index, each in enumerate(circuit) if each.name in FLIPS.values())
    return circuit[:last] + circuit[last + 1 :]


def with_nvidia_25(circuit: stim.Circuit, parameters: Nvidia25Parameters) -> stim.Circuit:
    """Add the 25-parameter noise to a surface-code circuit of stim's generator; noise that it has is removed.

    In each round: flips after the preparation and before the measurement of ancillas, CNOT errors, errors of qubits
    that idle in a layer of CNOTs, and errors of data qubits while ancillas are prepared. Data qubits do not idle while
    ancillas are measured, and in the first preparation they are prepared together with the ancillas.

    Args:
        circuit: The circuit; its ancillas are measured by `MR`, those of X checks between Hadamard gates.
        parameters: The probabilities.
    """
    plain = circuit.without_noise()
    flat = plain.flattened()
    return _Noisy(flat, parameters).build(plain, last=True)


class _Noisy:
    """Adds noise to the parts of one circuit."""

    def __init__(self, flat: stim.Circuit, parameters: Nvidia25Parameters) -> None:
        self._probabilities: dict[str, float] = dict(parameters)
        self._x_ancillas = _targets(flat, ("H",))  # prepared and measured in the X basis
        self._ancillas = _targets(flat, ("MR",))
        self._qubits = _targets(flat, ("CX",))

    def build(self, circuit: stim.Circuit, *, last: bool) -> stim.Circuit:
        """Return a part with noise; in the last part, ancillas are not prepared again after their last measurement."""
        out = stim.Circuit()
        rounds = [index for index, each in enumerate(circuit) if _has_ancilla_measurement(each)]
        for index, each in enumerate(circuit):
            final = last and bool(rounds) and index == rounds[-1]
            if not isinstance(each, stim.CircuitRepeatBlock):
                self._append(out, each, final=final)
            elif not final:
                out.append(stim.CircuitRepeatBlock(each.repeat_count, self.build(each.body_copy(), last=False)))
            else:
                if each.repeat_count > 1:
                    body = self.build(each.body_copy(), last=False)
                    out.append(stim.CircuitRepeatBlock(each.repeat_count - 1, body))
                out += self.build(each.body_copy(), last=True)
        return out

    def _append(self, out: stim.Circuit, instruction: stim.CircuitInstruction, *, final: bool) -> None:
        name, targets = instruction.name, [target.value for target in instruction.targets_copy()]
        if name == "MR":
            self._flip(out, "meas", targets)
            out.append(instruction)
            if not final:
                self._flip(out, "prep", targets)
                self._channel(out, "PAULI_CHANNEL_1", "idle_spam", self._qubits - self._ancillas)
        elif name in ("M", "MX"):
            self._flip(out, "meas", targets, "X" if name == "MX" else "Z")
            out.append(instruction)
        elif name in ("R", "RX"):
            out.append(instruction)
            self._flip(out, "prep", targets, "X" if name == "RX" else "Z")
        else:
            out.append(instruction)
            if name == "CX":
                self._channel(out, "PAULI_CHANNEL_2", "cnot", targets)
                self._channel(out, "PAULI_CHANNEL_1", "idle_cnot", self._qubits - set(targets))

    def _flip(self, out: stim.Circuit, kind: str, qubits: list[int], basis: str = "Z") -> None:
        """Flip qubits in their basis; the flip of an X ancilla is moved through its Hadamard gate."""
        for each in ("Z", "X"):
            chosen = [qubit for qubit in qubits if (qubit in self._x_ancillas) == (each != basis)]
            p = self._probabilities[f"p_{kind}_{each}"]
            if chosen and p:
                out.append(FLIPS[basis], chosen, p)

    def _channel(self, out: stim.Circuit, channel: str, group: str, qubits: Iterable[int]) -> None:
        probabilities = [p for name, p in self._probabilities.items() if name.startswith(f"p_{group}_")]
        chosen = qubits if isinstance(qubits, list) else sorted(qubits)
        if chosen and any(probabilities):
            out.append(channel, chosen, probabilities)


def _targets(circuit: stim.Circuit, names: tuple[str, ...]) -> set[int]:
    return {target.value for each in circuit if each.name in names for target in each.targets_copy()}


def _has_ancilla_measurement(each: stim.CircuitInstruction | stim.CircuitRepeatBlock) -> bool:
    return (
        bool(_targets(each.body_copy().flattened(), ("MR",)))
        if isinstance(each, stim.CircuitRepeatBlock)
        else (each.name == "MR")
    )
