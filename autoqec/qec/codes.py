"""From an env to a circuit with detectors, observables and noise."""

from __future__ import annotations

import stim

from autoqec.contracts.env import BicycleCode, EnvSpec, StimFileCode
from autoqec.errors import InputError
from autoqec.qec import bicycle


def build_circuit(env: EnvSpec, p: float | None) -> stim.Circuit:
    """The memory experiment of `env` at physical error rate `p` (None: the file's own noise).

    circuit_depolarizing sets all four noise parameters of `stim.Circuit.generated` to p.
    Raises InputError where stim can't read or build the circuit, or nothing can fail in it.
    """
    code = env.code
    try:
        if isinstance(code, StimFileCode):
            if code.text is None:
                raise InputError("the circuit's text is missing", where="code.text", mend="load the env from its file")
            circuit = stim.Circuit(code.text)
        elif isinstance(code, BicycleCode):
            assert p is not None  # only a file brings its own noise
            circuit = bicycle.memory_circuit(code.width, code.height, code.a, code.b, code.rounds, p, code.basis)
        else:
            circuit = stim.Circuit.generated(
                code.task,
                distance=code.distance,
                rounds=code.rounds,
                after_clifford_depolarization=p,
                before_measure_flip_probability=p,
                after_reset_flip_probability=p,
                before_round_data_depolarization=p,
            )
    except (ValueError, IndexError) as error:
        raise InputError(
            f"stim can't build this circuit ({str(error).strip().splitlines()[0]})",
            where=f"env `{env.name}`, field `code`",
            mend="check the file with `stim analyze_errors --in FILE`",
        ) from error
    if circuit.num_observables == 0 or circuit.num_detectors == 0:
        raise InputError(
            f"the circuit has {circuit.num_detectors} detectors and {circuit.num_observables} observables; "
            "a decoder needs at least one of each",
            where=f"env `{env.name}`, field `code`",
            mend="add DETECTOR and OBSERVABLE_INCLUDE lines to the circuit",
        )
    return circuit
