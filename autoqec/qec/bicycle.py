"""Bivariate bicycle codes: check matrices, logical operators, and a circuit-level memory experiment.

Codes and the order of CNOTs: Bravyi, Cross, Gambetta, Maslov, Rall, Yoder, Nature 627, 778 (2024).
Qubits: left data, right data, X ancillas, Z ancillas; width * height of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import stim

Term = tuple[int, int]  # (i, j) of x^i y^j

# The neighbour of each check in each of the seven CNOT layers: 0-2 in the left block, 3-5 in the right.
X_ORDER: tuple[int | None, ...] = (None, 1, 4, 3, 5, 0, 2)
Z_ORDER: tuple[int | None, ...] = (3, 5, 0, 1, 2, 4, None)


def shift(width: int, height: int, term: Term) -> np.ndarray:
    """Return the permutation matrix of x^i y^j, uint8 [width * height, width * height]."""
    x = np.roll(np.eye(width, dtype=np.uint8), term[0], axis=1)
    y = np.roll(np.eye(height, dtype=np.uint8), term[1], axis=1)
    return np.kron(x, y)


@lru_cache(maxsize=4)
def checks(width: int, height: int, a: tuple[Term, ...], b: tuple[Term, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return Hx = [A | B] and Hz = [B^T | A^T], uint8 [width * height, 2 * width * height]."""
    A = np.bitwise_xor.reduce([shift(width, height, term) for term in a])
    B = np.bitwise_xor.reduce([shift(width, height, term) for term in b])
    return np.hstack([A, B]), np.hstack([B.T, A.T])


def row_reduce(matrix: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Return the reduced row echelon form over GF(2), without zero rows, and the pivot columns."""
    work = matrix.astype(np.uint8) & 1
    pivots: list[int] = []
    row = 0
    for column in range(work.shape[1]):
        if row == len(work):
            break
        candidates = np.nonzero(work[row:, column])[0]
        if len(candidates) == 0:
            continue
        work[[row, row + candidates[0]]] = work[[row + candidates[0], row]]
        rows = np.nonzero(work[:, column])[0]
        work[rows[rows != row]] ^= work[row]
        pivots.append(column)
        row += 1
    return work[:row], pivots


def kernel(matrix: np.ndarray) -> np.ndarray:
    """Return a basis of {v : matrix v = 0} over GF(2), one vector per row."""
    reduced, pivots = row_reduce(matrix)
    free = [column for column in range(matrix.shape[1]) if column not in set(pivots)]
    basis = np.zeros((len(free), matrix.shape[1]), np.uint8)
    for row, column in enumerate(free):
        basis[row, column] = 1
        basis[row, pivots] = reduced[:, column]
    return basis


def logicals(commuting: np.ndarray, stabilizers: np.ndarray) -> np.ndarray:
    """Return vectors of ker(commuting) independent of the rows of `stabilizers`, one per logical qubit."""
    chosen: list[np.ndarray] = []
    base, _ = row_reduce(stabilizers)
    rank = len(base)
    for vector in kernel(commuting):
        grown, _ = row_reduce(np.vstack([base, vector]))
        if len(grown) > rank:
            chosen.append(vector)
            base, rank = grown, len(grown)
    return np.array(chosen, np.uint8)


def memory_circuit(
    width: int, height: int, a: Sequence[Term], b: Sequence[Term], rounds: int, p: float, basis: str = "z"
) -> stim.Circuit:
    """Build a memory experiment: `rounds` rounds of syndrome extraction, then a measurement of all data qubits.

    Noise of strength p: two-qubit depolarizing noise after every CNOT, depolarizing noise on idle qubits in every
    layer, a flip after every preparation and before every measurement.

    Args:
        width: Order of x.
        height: Order of y.
        a: Terms of the polynomial A.
        b: Terms of the polynomial B.
        rounds: Rounds of syndrome extraction.
        p: Physical error rate.
        basis: `z` or `x`, of preparation and final measurement.

    Returns:
        A circuit with the detectors of both sectors, and one observable per logical qubit.
    """
    n = width * height
    data = range(2 * n)
    hx, hz = checks(width, height, tuple(a), tuple(b))
    layers = cnot_layers(width, height, a, b)
    circuit = stim.Circuit()
    circuit.append("R" if basis == "z" else "RX", data)
    circuit.append("X_ERROR" if basis == "z" else "Z_ERROR", data, p)
    circuit += _extraction(layers, height, n, p, basis, first=True)
    if rounds > 1:
        circuit += _extraction(layers, height, n, p, basis, first=False) * (rounds - 1)
    circuit.append("X_ERROR" if basis == "z" else "Z_ERROR", data, p)
    circuit.append("M" if basis == "z" else "MX", data)
    basis_checks, other_checks, kind = (hz, hx, 1) if basis == "z" else (hx, hz, 0)
    for check in range(n):
        records = [stim.target_rec(int(q) - 2 * n) for q in np.nonzero(basis_checks[check])[0]]
        records.append(stim.target_rec(-4 * n + kind * n + check))
        circuit.append("DETECTOR", records, (check // height, check % height, 1, kind))
    for index, logical in enumerate(logicals(other_checks, basis_checks)):
        circuit.append("OBSERVABLE_INCLUDE", [stim.target_rec(int(q) - 2 * n) for q in np.nonzero(logical)[0]], index)
    return circuit


def _extraction(layers: list[list[int]], height: int, n: int, p: float, basis: str, *, first: bool) -> stim.Circuit:
    """Build one round of syndrome extraction with its detectors; in the first round, those of `basis` alone."""
    data, x_ancillas, ancillas = range(2 * n), range(2 * n, 3 * n), range(2 * n, 4 * n)
    circuit = stim.Circuit()
    circuit.append("R", ancillas)
    circuit.append("X_ERROR", ancillas, p)
    circuit.append("H", x_ancillas)
    circuit.append("TICK")
    for pairs in layers:
        circuit.append("CX", pairs)
        circuit.append("DEPOLARIZE2", pairs, p)
        busy = set(pairs)
        idle = [qubit for qubit in range(4 * n) if qubit not in busy]
        if idle:
            circuit.append("DEPOLARIZE1", idle, p)
        circuit.append("TICK")
    circuit.append("H", x_ancillas)
    circuit.append("X_ERROR", ancillas, p)
    circuit.append("M", ancillas)
    circuit.append("DEPOLARIZE1", data, p)
    circuit.append("SHIFT_COORDS", [], (0, 0, 1))
    for kind in range(2):  # X checks, then Z checks
        if first and kind == (0 if basis == "z" else 1):
            continue  # random in the first round
        for check in range(n):
            latest = -2 * n + kind * n + check
            records = [stim.target_rec(latest)] + ([] if first else [stim.target_rec(latest - 2 * n)])
            circuit.append("DETECTOR", records, (check // height, check % height, 0, kind))
    circuit.append("TICK")
    return circuit


def cnot_layers(width: int, height: int, a: Sequence[Term], b: Sequence[Term]) -> list[list[int]]:
    """Return seven layers of CNOTs as flat (control, target) lists: X ancilla -> data, data -> Z ancilla.

    Each qubit occurs at most once per layer.
    """
    n = width * height

    def neighbor_qubit(kind: str, neighbour: int, check: int) -> int:
        on_left = neighbour < 3
        terms = a if on_left == (kind == "x") else b  # Hx = [A | B], Hz = [B^T | A^T]
        matrix = shift(width, height, terms[neighbour % 3])
        column = np.nonzero(matrix[check] if kind == "x" else matrix[:, check])[0][0]
        return int(column) + (0 if on_left else n)

    layers = []
    for x_neighbour, z_neighbour in zip(X_ORDER, Z_ORDER, strict=True):
        pairs: list[int] = []
        for check in range(n):
            if x_neighbour is not None:
                pairs += [2 * n + check, neighbor_qubit("x", x_neighbour, check)]
            if z_neighbour is not None:
                pairs += [neighbor_qubit("z", z_neighbour, check), 3 * n + check]
        layers.append(pairs)
    return layers
