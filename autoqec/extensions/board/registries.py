"""A board for public registries: result batches of Circuit Bench and measured error rates of qldpc-challenge.

Only what was measured is written. Ids that a registry gives out, and scores that only its own evaluator defines, are
absent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import stim
from scipy.stats import binomtest

from autoqec.errors import UsageError
from autoqec.extensions.board.circuits import load_circuit
from autoqec.extensions.board.contracts import BoardCircuit
from autoqec.extensions.board.results import Cell
from autoqec.extensions.board.summary import ENOUGH_FAILURES
from autoqec.qec.stats import per_round
from autoqec.store.layout import BoardLayout

MAX_RESULTS = 200  # of a batch of Circuit Bench
# The measured-LER tier of qldpc-challenge: its decoder by our and by its name, physical error rate and fewest shots
CHALLENGE_DECODER, CHALLENGE_NAME, CHALLENGE_P, CHALLENGE_SHOTS = "bposd_cs10_qldpc", "bposd-cs-10", 0.001, 10_000


def to_circuit_bench(table: Sequence[Cell]) -> str:
    """Return a `result-batch/0.1` manifest of results 0.6 for Circuit Bench.

    A conflicting cell, and one whose decoder failed, is left out: how many shots of the failed block were attempted is
    not known. The measured CPU times are those of blocks of shots, not latencies at the evaluator's boundary, and stay
    out too.

    Raises:
        UsageError: No cell can be exported, or more than a batch may have.
    """
    measured = [cell for cell in table if cell.state == "measured" and cell.rate is not None]
    if not 1 <= len(measured) <= MAX_RESULTS:
        raise UsageError(
            f"{len(measured)} results; a batch of Circuit Bench has 1 to {MAX_RESULTS}",
            location="--circuit",
            hint="autoqec board export --format circuit-bench --circuit 'surface_d3_*'",
        )
    batch = {
        "schema": "result-batch/0.1",
        "schema_version": "0.6",
        "defaults": {"visibility": "private"},
        "results": {f"{cell.circuit}--{cell.decoder}.json": _result(cell) for cell in measured},
    }
    return json.dumps(batch, indent=1, ensure_ascii=False) + "\n"


def _result(cell: Cell) -> dict[str, Any]:
    assert cell.rate is not None
    packages = {name: version for item in cell.measurements for name, version in (item.packages or {}).items()}
    known = {
        "circuit": cell.circuit,
        "circuit_sha256": cell.circuit_sha256,
        "decoder": cell.decoder,
        "seeds": sorted({item.seed for item in cell.measurements if item.seed is not None}),
        "commits": sorted({item.commit for item in cell.measurements if item.commit is not None}),
        "machines": [name for name in cell.machines if name is not None],
    }
    return {
        "description": f"Measured by autoqec board: {json.dumps(known)}",
        "hyperparameter_values": cell.version,
        "hyperparameter_values_artifact": None,
        "shots_total": cell.rate.shots,
        "successful_shots": cell.rate.shots - cell.rate.errors,
        "logical_failure_shots": cell.rate.errors,
        "timeout_shots": 0,
        "decoder_error_shots": 0,
        "failure_probability_shots": 0,
        "latency_shots": 0,
        "preparation_duration_seconds": None,
        "training_workload_description": None,
        "software_environment": json.dumps(packages) if packages else None,
        "t_1000_ns": None,
        "supersedes_result": None,
    }


def to_qldpc_challenge(circuits: Mapping[str, BoardCircuit], table: Sequence[Cell], board: BoardLayout) -> str:
    """Return the `circuit.ler` blocks of qldpc-challenge, by code.

    The memory circuits of a code are those called CODE_x and CODE_z. The tier pins the decoder, the physical error rate
    and the least number of shots and failures. It does not compare the seed with its own sampler's shots: it measures
    again with another one.

    Raises:
        UsageError: No code has both circuits measured as the tier demands; the message says why.
    """
    cells = {cell.circuit: cell for cell in table if cell.decoder == CHALLENGE_DECODER}
    blocks: dict[str, dict[str, Any]] = {}
    reasons: list[str] = []
    codes = [name[:-2] for name in circuits if name.endswith("_x") and f"{name[:-2]}_z" in circuits]
    for code in codes:
        sides = {basis: f"{code}_{basis.lower()}" for basis in ("X", "Z")}
        rounds = {circuits[name].rounds for name in sides.values()}
        found = [_obstacle(circuits[name], cells.get(name), board, basis) for basis, name in sides.items()]
        found += [f"{code}: its circuits differ in rounds"] if len(rounds) > 1 else []
        missing = [reason for reason in found if reason is not None]
        reasons += missing
        if not missing:
            blocks[code] = {basis: _ler(cells[name]) for basis, name in sides.items()}
    if not blocks:
        why = "; ".join(reasons[:4]) if reasons else "no circuits are called CODE_x and CODE_z"
        raise UsageError(
            f"no code meets the measured-LER tier of qldpc-challenge: {why}",
            hint=f"autoqec board measure 'CODE_[xz]' {CHALLENGE_DECODER} --shots 100000",
        )
    return json.dumps(blocks, indent=1) + "\n"


def _obstacle(spec: BoardCircuit, cell: Cell | None, board: BoardLayout, basis: str) -> str | None:
    """Say why a cell is not accepted by the tier; None if it is."""
    if cell is None or cell.rate is None or cell.state != "measured":
        return f"{spec.name}: not measured with {CHALLENGE_DECODER}"
    if spec.rounds is None:
        return f"{spec.name}: its rounds are unknown"
    if len({item.seed for item in cell.measurements}) != 1 or cell.measurements[0].seed is None:
        return f"{spec.name}: not measured with one seed"
    if cell.rate.shots < CHALLENGE_SHOTS or cell.rate.errors < ENOUGH_FAILURES:
        return (
            f"{spec.name}: {cell.rate.errors} failures in {cell.rate.shots} shots, "
            f"{ENOUGH_FAILURES} in {CHALLENGE_SHOTS} or more are needed"
        )
    circuit = load_circuit(spec, board)
    if _noise_rates(circuit) != {CHALLENGE_P}:
        return f"{spec.name}: its noise does not have the rate {CHALLENGE_P} throughout"
    return None if _basis(circuit) == basis else f"{spec.name}: its last measurement is not in basis {basis}"


def _noise_rates(circuit: stim.Circuit) -> set[float]:
    """Return the arguments of all noise channels and noisy measurements."""
    return {
        rate
        for instruction in circuit.flattened()
        if stim.gate_data(instruction.name).is_noisy_gate
        for rate in instruction.gate_args_copy()
    }


def _basis(circuit: stim.Circuit) -> str | None:
    names = [item.name for item in circuit.flattened() if stim.gate_data(item.name).produces_measurements]
    return {"M": "Z", "MX": "X"}.get(names[-1]) if names else None


def _ler(cell: Cell) -> dict[str, Any]:
    assert cell.rate is not None and cell.rounds is not None
    rounds = cell.rounds
    low, high = binomtest(cell.rate.errors, cell.rate.shots).proportion_ci(0.95, method="wilson")
    return {
        "p": CHALLENGE_P,
        "shots": cell.rate.shots,
        "failures": cell.rate.errors,
        "seed": cell.measurements[0].seed,
        "decoder": CHALLENGE_NAME,
        "ler_per_round": round(cell.rate.per_round, 9),
        "ci95": [round(per_round(end, rounds), 9) for end in (low, high)],
    }
