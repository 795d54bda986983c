"""Circuits (or detector error models) of an env, with detectors, observables and noise."""

from __future__ import annotations

import hashlib
from typing import TypeAlias

import numpy as np
import stim

from autoqec.contracts.code_source import FileCode
from autoqec.contracts.env import (
    BiasedNoise,
    BicycleCode,
    CssFileCode,
    DemFileCode,
    EnvSpec,
    Si1000Noise,
    StimFileCode,
    StimGeneratorCode,
)
from autoqec.errors import UsageError
from autoqec.qec import bicycle
from autoqec.qec.generated import generated_circuit
from autoqec.qec.si1000 import si1000
from autoqec.store.files import load_yaml

Source: TypeAlias = stim.Circuit | stim.DetectorErrorModel


def circuit_sha256(source: Source) -> str:
    """Return the SHA-256 of the text of a circuit or detector error model."""
    return hashlib.sha256(str(source).encode()).hexdigest()


def build_source(env: EnvSpec, p: float | None) -> Source:
    """Build the circuit of an env, or read the detector error model of an env of kind `dem_file`.

    Args:
        env: The env.
        p: Physical error rate; None for the noise of the env's file.

    Raises:
        UsageError: stim cannot read or build the circuit, or it has no detectors or no observables.
    """
    try:
        source = _build(env, p)
    except (ValueError, IndexError) as error:
        raise UsageError(
            f"stim cannot build this circuit ({str(error).strip().splitlines()[0]})",
            location=f"env `{env.name}`, field `code`",
            hint="check the file with `stim analyze_errors --in FILE`"
            if isinstance(env.code, FileCode)
            else "choose another distance or number of rounds",
        ) from error
    if source.num_observables == 0 or source.num_detectors == 0:
        raise UsageError(
            f"the circuit has {source.num_detectors} detectors and {source.num_observables} observables; "
            "a decoder needs at least one of each",
            location=f"env `{env.name}`, field `code`",
            hint="add DETECTOR and OBSERVABLE_INCLUDE lines to the circuit",
        )
    return source


def _build(env: EnvSpec, p: float | None) -> Source:
    code = env.code
    if isinstance(code, FileCode) and code.text is None:
        raise UsageError("the file's text is missing", location="code.text", hint="load the env from its file")
    if isinstance(code, DemFileCode):
        return stim.DetectorErrorModel(code.text)
    if isinstance(code, StimFileCode):
        return stim.Circuit(code.text)
    if type(code) not in (BicycleCode, CssFileCode, StimGeneratorCode):
        source: Source = code.build(env, p)
        return source
    assert p is not None  # these kinds have no noise of their own
    if isinstance(code, BicycleCode):
        circuit = bicycle.memory_circuit(code.width, code.height, code.a, code.b, code.rounds, p, code.basis)
    elif isinstance(code, CssFileCode):
        circuit = css_circuit(code, p)
    else:
        circuit = generated_circuit(code, env.noise, p)
    if isinstance(env.noise, BiasedNoise):
        return biased(circuit, env.noise.eta)
    return si1000(circuit, p) if isinstance(env.noise, Si1000Noise) else circuit


def biased(circuit: stim.Circuit, eta: float) -> stim.Circuit:
    """Replace every depolarizing channel by a Z-biased Pauli channel of the same strength; eta is the bias."""
    out = stim.Circuit()
    for instruction in circuit:
        if isinstance(instruction, stim.CircuitRepeatBlock):
            out.append(stim.CircuitRepeatBlock(instruction.repeat_count, biased(instruction.body_copy(), eta)))
        elif instruction.name == "DEPOLARIZE1":
            (p,) = instruction.gate_args_copy()
            flips = p / (eta + 1) / 2
            out.append("PAULI_CHANNEL_1", instruction.targets_copy(), [flips, flips, p * eta / (eta + 1)])
        elif instruction.name == "DEPOLARIZE2":
            (p,) = instruction.gate_args_copy()
            phases, rest = p * eta / (eta + 1) / 3, p / (eta + 1) / 12
            # stim's order is IX IY IZ XI ... ZZ: entries 3, 12 and 15, counted from 1, are the pure phase errors.
            out.append(
                "PAULI_CHANNEL_2",
                instruction.targets_copy(),
                [phases if index in (3, 12, 15) else rest for index in range(1, 16)],
            )
        else:
            out.append(instruction)
    return out


def css_circuit(code: CssFileCode, p: float) -> stim.Circuit:
    """Build a code-capacity experiment: DEPOLARIZE1(p) on the data qubits between noiseless check measurements."""
    matrices = css_matrices(code.text or "", code.path)
    hx, hz = matrices["hx"], matrices["hz"]
    basis_checks, kind = (hz, "Z") if code.basis == "z" else (hx, "X")
    other_checks = hx if code.basis == "z" else hz
    logical = matrices.get("lz" if code.basis == "z" else "lx")
    if logical is None:
        logical = bicycle.logicals(other_checks, basis_checks)
    if (other_checks @ logical.T % 2).any() or len(logical) == 0:
        raise UsageError(
            "a logical operator does not commute with the checks, or there is none",
            location=code.path,
            hint=f"correct {code.path}",
        )
    qubits = range(basis_checks.shape[1])
    circuit = stim.Circuit()
    circuit.append("R" if kind == "Z" else "RX", qubits)
    cross = "X" if kind == "Z" else "Z"
    _measure(circuit, other_checks, cross)  # projects into the code space: the other sector's first values are random
    circuit.append("DEPOLARIZE1", qubits, p)
    _measure(circuit, other_checks, cross)
    for row in range(len(other_checks)):
        last = -len(other_checks) + row
        circuit.append("DETECTOR", [stim.target_rec(last), stim.target_rec(last - len(other_checks))], (row, 0, 0))
    circuit.append("M" if kind == "Z" else "MX", qubits)
    n = len(qubits)
    for row, check in enumerate(basis_checks):
        circuit.append("DETECTOR", [stim.target_rec(int(q) - n) for q in np.nonzero(check)[0]], (row, 1, 0))
    for index, row_bits in enumerate(logical):
        circuit.append("OBSERVABLE_INCLUDE", [stim.target_rec(int(q) - n) for q in np.nonzero(row_bits)[0]], index)
    return circuit


def _measure(circuit: stim.Circuit, checks: np.ndarray, pauli: str) -> None:
    """Append one noiseless product measurement per row of `checks`."""
    for check in checks:
        targets: list[stim.GateTarget] = []
        for qubit in np.nonzero(check)[0]:
            targets += [stim.target_pauli(int(qubit), pauli), stim.target_combiner()]
        circuit.append("MPP", targets[:-1])


def css_matrices(text: str, location: str) -> dict[str, np.ndarray]:
    """Read hx, hz and optionally lx, lz, uint8 [rows, n_qubits], from the text of a CSS file.

    Raises:
        UsageError: A matrix is missing or malformed, or the checks do not commute.
    """
    data = load_yaml(text, location=location)
    if not isinstance(data, dict) or not {"hx", "hz"} <= set(data) <= {"hx", "hz", "lx", "lz"}:
        raise UsageError(
            "expected the keys hx and hz, and optionally lx and lz", location=location, hint=f"edit {location}"
        )
    matrices: dict[str, np.ndarray] = {}
    for name, rows in data.items():
        rows = rows if isinstance(rows, list) else []
        if not rows or any(not isinstance(row, str) or set(row) - {"0", "1"} or "1" not in row for row in rows):
            raise UsageError(
                'must be a list of rows such as "0110", each with a 1',
                location=f"{location}, key {name}",
                hint=f"edit {location}",
            )
        if len({len(row) for row in rows}) != 1:
            raise UsageError("rows differ in length", location=f"{location}, key {name}", hint=f"edit {location}")
        matrices[name] = np.array([[int(bit) for bit in row] for row in rows], np.uint8)
    widths = {name: matrix.shape[1] for name, matrix in matrices.items()}
    if len(set(widths.values())) != 1:
        raise UsageError(f"matrices differ in width: {widths}", location=location, hint=f"edit {location}")
    if (matrices["hx"] @ matrices["hz"].T % 2).any():
        raise UsageError("the checks of hx and hz do not commute", location=location, hint=f"edit {location}")
    return matrices
