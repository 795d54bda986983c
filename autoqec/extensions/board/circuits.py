"""Circuits of a board: pinned by hash, generated again from their parameters or read from files."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, TypeVar

import stim

from autoqec.contracts.base import Contract
from autoqec.contracts.env import BicycleCode, EnvSpec, StimGeneratorCode
from autoqec.errors import ContractError, UsageError
from autoqec.extensions.board.contracts import BoardCircuit
from autoqec.extensions.board.shots import Model
from autoqec.qec.codes import build_source
from autoqec.qec.problem import Problem
from autoqec.store import atomic, jsonl
from autoqec.store.layout import PACKAGED_BOARD, BoardLayout

MAX_BYTES = 64 * 2**20
Line = TypeVar("Line", bound=Contract)
_SEEDS = {"train": [0, 1], "val": [2, 3], "holdout": [4, 5]}  # an env needs bands; a board uses none of them


def circuit_sha256(circuit: stim.Circuit) -> str:
    """Return the SHA-256 of the circuit's text as stim writes it."""
    return hashlib.sha256(str(circuit).encode()).hexdigest()


def load_circuits(board: BoardLayout) -> dict[str, BoardCircuit]:
    """Return the packaged circuits and those of `board`, by name.

    Raises:
        ContractError: A line is damaged, has an unknown schema, or gives a known name to another circuit.
    """
    found: dict[str, BoardCircuit] = {}
    for path in dict.fromkeys((PACKAGED_BOARD.circuits, board.circuits)):
        for location, circuit in read_lines(path, BoardCircuit):
            known = found.setdefault(circuit.name, circuit)
            if known.sha256 != circuit.sha256:
                raise ContractError(
                    f"circuit {circuit.name!r} has two hashes", location=location, hint=f"rename one of them in {path}"
                )
    return found


def read_lines(path: Path, contract: type[Line]) -> list[tuple[str, Line]]:
    """Return the lines of a board's file, each with its location; an incomplete last line is ignored.

    Raises:
        ContractError: A line is damaged, or its `schema_version` is not one that this version reads.
    """
    found = []
    try:
        for number, line in enumerate(jsonl.read(path), start=1):
            location, schema = f"{path}:{number}", line.get("schema_version")
            if schema != 1:
                message = f"unknown schema_version {schema!r}; this version of autoqec reads 1"
                raise ContractError(message, location=location, hint="pip install --upgrade autoqec")
            found.append((location, contract.read(line, location=location)))
    except ContractError as error:
        error.hint = error.hint or f"restore {path} from a backup, or delete the line"
        raise
    return found


def generate(spec: BoardCircuit) -> stim.Circuit:
    """Generate a circuit from the parameters in `spec`, without comparing its hash."""
    assert spec.code is not None and spec.p is not None
    noise = {"model": spec.noise, "p": [spec.p], "target_p": spec.p}
    env = _env(
        spec.code, noise if spec.eta is None else {**noise, "eta": spec.eta}, "bposd", location=f"circuit {spec.name}"
    )
    source = build_source(env, spec.p)
    assert isinstance(source, stim.Circuit)
    return source


def dem_problem(dem: stim.DetectorErrorModel) -> Problem:
    """Return a graph-like detector error model as a decoding problem; its env only says that matching decodes it."""
    code = StimGeneratorCode(task="repetition_code:memory", distance=3, rounds=1)
    noise = {"model": "circuit_depolarizing", "p": [0.01], "target_p": 0.01}
    return Problem.from_env(_env(code, noise, "mwpm", location="board")).with_other_dem(dem)


def _env(code: StimGeneratorCode | BicycleCode, noise: dict[str, Any], backend: str, *, location: str) -> EnvSpec:
    return EnvSpec.read(
        {
            "schema_version": 1,
            "name": "board",
            "code": code.dump(),
            "noise": noise,
            "seed_policy": _SEEDS,
            "backend": backend,
            "baselines": ["mwpm" if backend == "mwpm" else "bposd0"],
        },
        location=location,
    )


def load_circuit(spec: BoardCircuit, board: BoardLayout) -> stim.Circuit:
    """Return the circuit that `spec` pins.

    Raises:
        UsageError: Its file is missing or unreadable, or the circuit has another hash.
    """
    if spec.code is not None:
        circuit, where = generate(spec), f"circuit {spec.name}"
        hint = "pip install stim==1.16.0, which generated the pinned circuits"
    else:
        path = board.circuit(spec.sha256)
        circuit, where, hint = read_circuit(path), str(path), f"autoqec board add FILE.stim --name {spec.name}"
    found = circuit_sha256(circuit)
    if found != spec.sha256:
        message = f"is not the pinned circuit: its hash is {found[:12]}…, not {spec.sha256[:12]}…"
        raise UsageError(message, location=where, hint=hint)
    return circuit


def read_circuit(path: Path) -> stim.Circuit:
    """Read a circuit file; UsageError if it is missing, too large or not a circuit."""
    if not path.is_file():
        raise UsageError("file not found", location=str(path), hint="name an existing .stim file")
    if path.stat().st_size > MAX_BYTES:
        raise UsageError(f"is larger than {MAX_BYTES:,} bytes", location=str(path), hint="use REPEAT blocks")
    try:
        return stim.Circuit(path.read_text(encoding="utf-8"))
    except (ValueError, IndexError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UsageError(
            f"is not a stim circuit ({reason})", location=str(path), hint="stim diagram --in FILE"
        ) from error


def add_circuit(path: Path, board: BoardLayout, *, name: str | None, rounds: int | None) -> BoardCircuit:
    """Copy a circuit into the board and pin it; adding the same circuit again changes nothing.

    Args:
        path: The circuit.
        board: The board.
        name: Name on the board; by default the file's name.
        rounds: Rounds of syndrome measurement, for rates per round; None if unknown.

    Raises:
        UsageError: The circuit cannot be read or decoded, or its name is taken by another one.
    """
    circuit = read_circuit(path)
    Model.of(circuit, location=str(path))
    sha = circuit_sha256(circuit)
    try:
        spec = BoardCircuit(name=name or path.stem, sha256=sha, rounds=rounds)
    except ValueError as error:
        message = f"{name or path.stem!r} is not a valid name of a circuit"
        raise UsageError(message, location=str(path), hint="add --name NAME, of letters, digits and _.:+-") from error
    known = load_circuits(board).get(spec.name)
    if known is not None and (known.sha256, known.rounds) != (sha, rounds):
        other = (
            f"with --rounds {known.rounds or 'unknown'}" if known.sha256 == sha else f"with hash {known.sha256[:12]}…"
        )
        message = f"the board already has a circuit {spec.name!r}, {other}"
        raise UsageError(message, location=str(path), hint="add --name OTHER_NAME")
    if known is None:
        atomic.make_dir(board.circuit(sha).parent)
        atomic.write_text(board.circuit(sha), str(circuit))
        jsonl.append(board.circuits, spec.dump())
    return spec
