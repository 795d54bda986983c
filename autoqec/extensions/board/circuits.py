"""Circuits of a board, pinned by hash, and their shots, which are the same on every machine."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import scipy.sparse as sp
import stim

from autoqec.contracts.base import Contract
from autoqec.contracts.env import BicycleCode, EnvSpec, StimGeneratorCode
from autoqec.errors import ContractError, UsageError
from autoqec.extensions.board.contracts import BoardCircuit
from autoqec.qec.codes import build_source
from autoqec.qec.problem import Problem, incidence_matrices, read_mechanisms
from autoqec.qec.sampling import Shots, pack
from autoqec.reporting.text import pluralize
from autoqec.store import atomic, jsonl
from autoqec.store.layout import PACKAGED_BOARD, BoardLayout

BLOCK_SHOTS = 1000
# Shots from which decoders estimate: no measurement has a negative seed.
TRAINING_SEED, TRAINING_BLOCKS = -1, 100
PART_SHOTS = 125  # shots drawn at once, which is part of the definition of a block; few shots are measured in parts
PARTS = BLOCK_SHOTS // PART_SHOTS


@dataclass(frozen=True, eq=False)
class Model:
    """A circuit's detector error model.

    Attributes:
        dem: The flattened model, decomposed into graph-like parts where stim can do it.
        matchable: Whether it is decomposed, so that matching applies.
        probs: float64 [n_mechanisms].
        H: uint8 csr [n_detectors, n_mechanisms].
        L: uint8 csr [n_observables, n_mechanisms].
    """

    dem: stim.DetectorErrorModel
    matchable: bool
    probs: np.ndarray
    H: sp.csr_matrix
    L: sp.csr_matrix

    @classmethod
    def of(cls, circuit: stim.Circuit, *, location: str) -> Model:
        """Compute the model of a circuit, as sinter does for its decoders.

        Raises:
            UsageError: The circuit has no detectors or observables, or stim cannot compute its errors.
        """
        if circuit.num_detectors == 0 or circuit.num_observables == 0:
            raise UsageError(
                f"the circuit has {pluralize(circuit.num_detectors, 'detector')} and "
                f"{pluralize(circuit.num_observables, 'observable')}; a decoder needs at least one of each",
                location=location,
                hint="add DETECTOR and OBSERVABLE_INCLUDE lines to the circuit",
            )
        try:
            dem, matchable = _error_model(circuit)
        except ValueError as error:
            reason = str(error).strip().splitlines()[0]
            raise UsageError(
                f"stim cannot compute its detector error model ({reason})",
                location=location,
                hint="stim analyze_errors --in FILE",
            ) from error
        return cls.of_dem(dem, matchable=matchable)

    @classmethod
    def of_dem(cls, dem: stim.DetectorErrorModel, *, matchable: bool) -> Model:
        """Return a flattened detector error model as one that can be sampled."""
        probs, mechanisms = read_mechanisms(dem)
        H, L = incidence_matrices(mechanisms, dem.num_detectors, dem.num_observables)
        return cls(dem, matchable, probs, H, L)

    @cached_property
    def sha256(self) -> str:
        """SHA-256 of the model's text."""
        return hashlib.sha256(str(self.dem).encode()).hexdigest()

    @cached_property
    def _flips(self) -> sp.csr_matrix:
        """int32 csr [n_mechanisms, n_detectors + n_observables]."""
        return sp.vstack([self.H, self.L]).T.astype(np.int32).tocsr()

    def sample(self, seed: int, block: int) -> Shots:
        """Draw the shots of one block: every error mechanism occurs independently with its probability.

        The random bits are the raw output of PCG64, which no version of numpy may change, and a probability is
        rounded to a multiple of 2**-32. Unlike stim's sampler, whose shots depend on the SIMD width of the processor,
        this gives the same shots on every machine.
        """
        parts = [self.sample_part(seed, block * PARTS + index) for index in range(PARTS)]
        events, observables = ([getattr(part, name) for part in parts] for name in ("detection_events", "observables"))
        return Shots(np.concatenate(events), np.concatenate(observables))

    def sample_part(self, seed: int, part: int) -> Shots:
        """Draw an eighth of the shots of block `part // 8`, the same as those of the whole block."""
        block, index = divmod(part, PARTS)
        digest = hashlib.sha256(f"{self.sha256}\x1f{seed}\x1f{block}".encode()).digest()
        thresholds = np.round(self.probs * 2**32).astype(np.uint64)
        n_words = -(-PART_SHOTS * len(thresholds) // 2)
        generator = np.random.PCG64(int.from_bytes(digest[:16], "big"))
        generator.advance(index * n_words)
        words = generator.random_raw(n_words).astype("<u8").view("<u4")
        occurred = words[: PART_SHOTS * len(thresholds)].reshape(PART_SHOTS, -1) < thresholds
        bits = ((sp.csr_matrix(occurred, dtype=np.int32) @ self._flips).toarray() & 1).astype(np.uint8)
        n_detectors = self.H.shape[0]
        return Shots(pack(bits[:, :n_detectors]), bits[:, n_detectors:].astype(bool))


def _error_model(circuit: stim.Circuit) -> tuple[stim.DetectorErrorModel, bool]:
    """Return the flattened model, and whether it is decomposed."""
    try:
        dem = circuit.detector_error_model(decompose_errors=True, approximate_disjoint_errors=True)
    except ValueError:
        return circuit.detector_error_model(approximate_disjoint_errors=True).flattened(), False
    return dem.flattened(), True


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
