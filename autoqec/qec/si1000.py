"""The noise model SI1000 of superconducting qubits, for circuits of Clifford gates, resets and measurements.

Gidney, Newman, Fowler, Broughton, "A fault-tolerant honeycomb memory", Quantum 5, 605 (2021), table 2. CZ is the only
two-qubit gate, so CNOTs are compiled to it. With strength p, and a layer of operations between two TICKs at a time:

    CZ: DEPOLARIZE2(p). Single-qubit gates and qubits that idle: DEPOLARIZE1(p/10).
    Reset: X_ERROR(2p). Measurement: result flipped with 5p, then DEPOLARIZE1(p).
    Idling while other qubits are reset or measured: also DEPOLARIZE1(2p).

Short experiments are written without loops: their text is pinned by hashes. Long ones keep the loop of their rounds.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import stim

from autoqec.errors import UsageError

MAX_P = 0.2  # measurements flip with 5p
ANNOTATIONS = ("DETECTOR", "OBSERVABLE_INCLUDE", "SHIFT_COORDS", "QUBIT_COORDS")
MAX_UNROLLED = 64  # repetitions; circuits with more keep their loop
SHORT = 4  # repetitions that are compiled to find the layers that each of them adds
BASIS_CHANGES = {"X": "H", "Y": "H_YZ"}  # gates that exchange the basis with Z


@dataclass
class Layer:
    """Operations of one time step.

    Attributes:
        kind: Gates, CZ, R or M.
        gates: Single-qubit gates, (name, qubit).
        qubits: Targets of CZ, R or M.
        annotations: Detectors and the like that follow the operations, each with the number of measurements before it
            in the original circuit.
    """

    kind: str
    gates: list[tuple[str, int]] = field(default_factory=list)
    qubits: list[int] = field(default_factory=list)
    annotations: list[tuple[stim.CircuitInstruction, int]] = field(default_factory=list)

    @property
    def busy(self) -> set[int]:
        """Return the qubits that do not idle."""
        return {qubit for _, qubit in self.gates} | set(self.qubits)


class Compiler:
    """Compiles layers of CNOTs to CZ and Hadamard gates, with few layers of single-qubit gates.

    A Hadamard gate is executed when the qubit's next operation needs it, in the last layer of gates since the qubit's
    previous operation if there is one; pairs of them cancel.
    """

    def __init__(self) -> None:
        self.layers: list[Layer] = []
        self._hadamard: set[int] = set()  # qubits with a Hadamard gate that was not executed yet
        self._last: dict[int, int] = {}  # layer of each qubit's last operation
        self._ticked = True

    def tick(self) -> None:
        """End a time step: the next operations form a new layer."""
        self._ticked = True

    def add(self, kind: str, qubits: list[int]) -> None:
        """Apply CZ, R or M, in the layer of the same operation on other qubits in this time step if there is one."""
        last = self.layers[-1] if self.layers and not self._ticked else Layer("gates")
        if last.kind != kind or last.annotations or last.busy & set(qubits):
            last = Layer(kind)
            self.layers.append(last)
        last.qubits += qubits
        self._last |= dict.fromkeys(qubits, len(self.layers) - 1)
        self._ticked = False

    def gate(self, name: str, qubits: list[int]) -> None:
        """Apply a single-qubit gate to each qubit."""
        if name == "H":
            self._hadamard ^= set(qubits)
            return
        self.flush(qubits)
        self._place(name, qubits)

    def cnot(self, controls: list[int], targets: list[int]) -> None:
        """Apply a layer of CNOTs: Hadamard gates on the targets before and after a layer of CZ."""
        self._hadamard ^= set(targets)
        self.flush([*controls, *targets])
        self.add("CZ", [qubit for pair in zip(controls, targets, strict=True) for qubit in pair])
        self._hadamard ^= set(targets)

    def reset(self, basis: str, qubits: list[int]) -> None:
        """Reset qubits to the +1 eigenstate of the basis."""
        self._hadamard -= set(qubits)
        self.add("R", qubits)
        if basis in BASIS_CHANGES:
            self.gate(BASIS_CHANGES[basis], qubits)

    def measure(self, basis: str, qubits: list[int]) -> None:
        """Measure qubits in the basis, together with the last measurement of others if they idled since then."""
        if basis in BASIS_CHANGES:
            self.gate(BASIS_CHANGES[basis], qubits)
        self.flush(qubits)
        previous = max((index for index, layer in enumerate(self.layers) if layer.kind == "M"), default=-1)
        if previous > max(self._last.get(qubit, -1) for qubit in qubits):
            self.layers[previous].qubits += qubits
            self._last |= dict.fromkeys(qubits, previous)
        else:
            self.add("M", qubits)

    def drop_last_resets(self) -> None:
        """Remove resets that no operation follows."""
        for index, layer in enumerate(self.layers):
            if layer.kind == "R":
                layer.qubits = [qubit for qubit in layer.qubits if self._last[qubit] > index]

    def flush(self, qubits: list[int]) -> None:
        """Execute the Hadamard gates that are due on `qubits`."""
        due = [qubit for qubit in qubits if qubit in self._hadamard]
        self._hadamard -= set(due)
        self._place("H", due)

    def _place(self, name: str, qubits: list[int]) -> None:
        for qubit in qubits:
            earliest = self._last.get(qubit, -1) + 1
            open_layers = [i for i in range(earliest, len(self.layers)) if self.layers[i].kind == "gates"]
            if not open_layers:
                self.layers.append(Layer("gates"))
                open_layers = [len(self.layers) - 1]
            self.layers[open_layers[-1]].gates.append((name, qubit))
            self._last[qubit] = open_layers[-1]


def si1000(circuit: stim.Circuit, p: float) -> stim.Circuit:
    """Compile a circuit to CZ gates and add the noise; noise that the circuit has is removed.

    Args:
        circuit: Single-qubit Clifford gates, CX, CZ, resets and measurements of single qubits, with TICKs.
        p: Strength, at most 0.2.

    Raises:
        UsageError: p is too large, or the circuit has another operation.
    """
    if p > MAX_P:
        raise UsageError(f"p = {p} is above {MAX_P}", location="noise.p", hint="measurements flip with probability 5p")
    plain = circuit.without_noise()
    out = _looped(plain, p)
    return _joined(_noisy_layers(plain.flattened(), p)) if out is None else out


def _looped(circuit: stim.Circuit, p: float) -> stim.Circuit | None:
    """Compile a circuit with one long loop to one with a loop; None if it has another form.

    Two circuits with few repetitions are compiled. They differ by the layers of one repetition, which equal those
    before them; where they do not, operations are moved across repetitions, and the loop cannot be kept.
    """
    loops = [each for each in circuit if isinstance(each, stim.CircuitRepeatBlock)]
    long = [each for each in loops if each.repeat_count > MAX_UNROLLED]
    if len(long) != 1:
        return None
    fewer, more = (_noisy_layers(_unrolled(circuit, count), p) for count in (SHORT, SHORT + 1))
    size = len(more) - len(fewer)
    if size < 1:
        return None
    for start in range(len(more) - 2 * size + 1):
        body, end = more[start : start + size], start + size
        if more[end : end + size] == body:
            break
    else:
        return None
    while more[end : end + size] == body:
        end += size
    if fewer != more[: end - size] + more[end:]:
        return None
    count = (end - start) // size + long[0].repeat_count - (SHORT + 1)
    out = _joined(more[:start])
    out.append(stim.CircuitRepeatBlock(count, _joined(body)))
    return out + _joined(more[end:])


def _unrolled(circuit: stim.Circuit, count: int) -> stim.Circuit:
    """Return the circuit without loops, with `count` repetitions of the long ones."""
    out = stim.Circuit()
    for each in circuit:
        if isinstance(each, stim.CircuitRepeatBlock):
            body = _unrolled(each.body_copy(), count)
            for _ in range(count if each.repeat_count > MAX_UNROLLED else each.repeat_count):
                out += body
        else:
            out.append(each)
    return out


def _joined(layers: list[stim.Circuit]) -> stim.Circuit:
    out = stim.Circuit()
    for each in layers:
        out += each
    return out


def _noisy_layers(circuit: stim.Circuit, p: float) -> list[stim.Circuit]:
    """Compile a circuit without noise and loops; return its layers with noise."""
    layers = compile_layers(circuit)
    qubits = {qubit for layer in layers for qubit in layer.busy}
    found = []
    n_records = 0
    for layer in layers:
        n_records += len(layer.qubits) if layer.kind == "M" else 0
        out = stim.Circuit()
        _append_layer(out, layer, sorted(qubits - layer.busy), p, n_records)
        out.append("TICK")
        found.append(out)
    return found


def compile_layers(circuit: stim.Circuit) -> list[Layer]:
    """Return the layers of a circuit without noise and loops."""
    compiler = Compiler()
    n_records = 0
    for instruction in circuit:
        name = instruction.name
        n_records += len(instruction.targets_copy()) if stim.gate_data(name).produces_measurements else 0
        if name in ANNOTATIONS:
            if not compiler.layers:
                compiler.layers.append(Layer("gates"))
            compiler.layers[-1].annotations.append((instruction, n_records))
        elif name == "TICK":
            compiler.tick()
        else:
            _add(compiler, instruction)
    compiler.drop_last_resets()
    return compiler.layers


def _add(compiler: Compiler, instruction: stim.CircuitInstruction) -> None:
    gate = stim.gate_data(instruction.name)
    targets = [target.value for target in instruction.targets_copy()]
    plain = all(target.is_qubit_target for target in instruction.targets_copy())
    basis = instruction.name[-1] if instruction.name[-1] in BASIS_CHANGES else "Z"
    if plain and gate.is_unitary and gate.is_single_qubit_gate:
        if instruction.name != "I":
            compiler.gate(instruction.name, targets)
    elif plain and instruction.name == "CX":
        compiler.cnot(targets[::2], targets[1::2])
    elif plain and instruction.name == "CZ":
        compiler.flush(targets)
        compiler.add("CZ", targets)
    elif plain and instruction.name in ("R", "RX", "RY"):
        compiler.reset(basis, targets)
    elif instruction.name in ("M", "MX", "MY", "MR", "MRX", "MRY") and plain:
        compiler.measure(basis, targets)
        if gate.is_reset:
            compiler.reset(basis, targets)
    else:
        raise UsageError(
            f"noise model `si1000` does not cover the operation {instruction.name}",
            location="field `noise`",
            hint="choose `circuit_depolarizing`, or a code whose circuit has CX, CZ, resets and measurements",
        )


def _append_layer(out: stim.Circuit, layer: Layer, idle: list[int], p: float, n_records: int) -> None:
    for name, qubit in layer.gates:
        out.append(name, qubit)
    if layer.kind == "M":
        out.append("M", layer.qubits, 5 * p)
    elif layer.qubits:
        out.append(layer.kind, layer.qubits)
    for instruction, original in layer.annotations:
        moved = [
            stim.target_rec(target.value + original - n_records) if target.is_measurement_record_target else target
            for target in instruction.targets_copy()
        ]
        out.append(instruction.name, moved, instruction.gate_args_copy())
    noise = {"CZ": ("DEPOLARIZE2", p), "R": ("X_ERROR", 2 * p), "M": ("DEPOLARIZE1", p)}
    if layer.kind in noise and layer.qubits:
        channel, strength = noise[layer.kind]
        out.append(channel, layer.qubits, strength)
    elif layer.gates:
        out.append("DEPOLARIZE1", [qubit for _, qubit in layer.gates], p / 10)
    if idle and layer.busy:
        out.append("DEPOLARIZE1", idle, p / 10)
        if layer.kind in ("R", "M"):
            out.append("DEPOLARIZE1", idle, 2 * p)
