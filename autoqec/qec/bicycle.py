"""Bivariate bicycle codes: checks, logicals, and a circuit-level memory experiment of our own.

Codes and the order of CNOTs: Bravyi, Cross, Gambetta, Maslov, Rall, Yoder, Nature 627, 778 (2024).
Qubits: left data, right data, X ancillas, Z ancillas, width*height of each.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import stim

Term = tuple[int, int]  # x^i y^j

# The neighbour each check meets in each of the seven CNOT layers: 0-2 on the left block, 3-5 on the right.
X_ORDER: tuple[int | None, ...] = (None, 1, 4, 3, 5, 0, 2)
Z_ORDER: tuple[int | None, ...] = (3, 5, 0, 1, 2, 4, None)


def shift(width: int, height: int, term: Term) -> np.ndarray:
    """The permutation matrix of x^i y^j, uint8 [width*height, width*height]."""
    x = np.roll(np.eye(width, dtype=np.uint8), term[0], axis=1)
    y = np.roll(np.eye(height, dtype=np.uint8), term[1], axis=1)
    return np.kron(x, y)


@lru_cache(maxsize=4)
def checks(width: int, height: int, a: tuple[Term, ...], b: tuple[Term, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Hx = [A | B] and Hz = [B^T | A^T], uint8 [width*height, 2*width*height]."""
    A = np.bitwise_xor.reduce([shift(width, height, term) for term in a])
    B = np.bitwise_xor.reduce([shift(width, height, term) for term in b])
    return np.hstack([A, B]), np.hstack([B.T, A.T])


def row_reduce(matrix: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """Reduced row echelon form over GF(2), zero rows dropped, and the pivot columns."""
    work = matrix.astype(np.uint8) & 1
    pivots: list[int] = []
    row = 0
    for column in range(work.shape[1]):
        if row == len(work):
            break
        found = np.nonzero(work[row:, column])[0]
        if len(found) == 0:
            continue
        work[[row, row + found[0]]] = work[[row + found[0], row]]
        out_of_sector_checks = np.nonzero(work[:, column])[0]
        work[out_of_sector_checks[out_of_sector_checks != row]] ^= work[row]
        pivots.append(column)
        row += 1
    return work[:row], pivots


def kernel(matrix: np.ndarray) -> np.ndarray:
    """A basis of {v : matrix v = 0} over GF(2), one vector a row."""
    reduced, pivots = row_reduce(matrix)
    free = [column for column in range(matrix.shape[1]) if column not in set(pivots)]
    basis = np.zeros((len(free), matrix.shape[1]), np.uint8)
    for row, column in enumerate(free):
        basis[row, column] = 1
        basis[row, pivots] = reduced[:, column]
    return basis


def logicals(commuting: np.ndarray, stabilizers: np.ndarray) -> np.ndarray:
    """Vectors of ker(commuting) independent of the rows of `stabilizers`: one a logical qubit."""
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
    """`rounds` rounds of syndrome extraction in the Z (or X) basis, then all data measured.

    Noise p: two-qubit depolarizing after every CNOT, depolarizing on idling qubits in every layer,
    a flip after every preparation and before every measurement. Detectors of both sectors; one observable
    a logical qubit.
    """
    n = width * height
    left, right = range(n), range(n, 2 * n)
    x_anc, z_anc = range(2 * n, 3 * n), range(3 * n, 4 * n)
    data = [*left, *right]
    hx, hz = checks(width, height, tuple(a), tuple(b))
    steps = cnot_layers(width, height, a, b)

    def layer(circuit: stim.Circuit, pairs: list[int]) -> None:
        circuit.append("CX", pairs)
        circuit.append("DEPOLARIZE2", pairs, p)
        busy = set(pairs)
        idle = [q for q in [*data, *x_anc, *z_anc] if q not in busy]
        if idle:
            circuit.append("DEPOLARIZE1", idle, p)
        circuit.append("TICK")

    def extraction(first: bool) -> stim.Circuit:
        circuit = stim.Circuit()
        circuit.append("R", [*x_anc, *z_anc])
        circuit.append("X_ERROR", [*x_anc, *z_anc], p)
        circuit.append("H", x_anc)
        circuit.append("TICK")
        for pairs in steps:
            layer(circuit, pairs)
        circuit.append("H", x_anc)
        circuit.append("X_ERROR", [*x_anc, *z_anc], p)
        circuit.append("M", [*x_anc, *z_anc])
        circuit.append("DEPOLARIZE1", data, p)
        circuit.append("SHIFT_COORDS", [], (0, 0, 1))
        for kind in range(2):  # X checks, then Z checks
            if first and kind == (0 if basis == "z" else 1):
                continue  # random in the first round
            for check in range(n):
                now = -2 * n + kind * n + check
                records = [stim.target_rec(now)] + ([] if first else [stim.target_rec(now - 2 * n)])
                circuit.append("DETECTOR", records, (check // height, check % height, 0, kind))
        circuit.append("TICK")
        return circuit

    circuit = stim.Circuit()
    circuit.append("R" if basis == "z" else "RX", data)
    circuit.append("X_ERROR" if basis == "z" else "Z_ERROR", data, p)
    circuit += extraction(first=True)
    if rounds > 1:
        circuit += extraction(first=False) * (rounds - 1)
    circuit.append("X_ERROR" if basis == "z" else "Z_ERROR", data, p)
    circuit.append("M" if basis == "z" else "MX", data)
    in_sector_checks, out_of_sector_checks, kind = (hz, hx, 1) if basis == "z" else (hx, hz, 0)
    for check in range(n):
        records = [stim.target_rec(int(q) - 2 * n) for q in np.nonzero(in_sector_checks[check])[0]]
        records.append(stim.target_rec(-4 * n + kind * n + check))
        circuit.append("DETECTOR", records, (check // height, check % height, 1, kind))
    for index, logical in enumerate(logicals(out_of_sector_checks, in_sector_checks)):
        circuit.append("OBSERVABLE_INCLUDE", [stim.target_rec(int(q) - 2 * n) for q in np.nonzero(logical)[0]], index)
    return circuit


def cnot_layers(width: int, height: int, a: Sequence[Term], b: Sequence[Term]) -> list[list[int]]:
    """Seven layers of (control, target) pairs: X ancilla -> data, data -> Z ancilla; each qubit at most once."""
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
