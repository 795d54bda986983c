"""Problem: what a decoder is given. Env -> circuit -> detector error model -> matching graph."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import scipy.sparse as sp
import stim

from autoqec.contracts.env import EnvSpec
from autoqec.errors import InputError
from autoqec.qec.codes import build_circuit

Component = tuple[tuple[int, ...], int]  # sorted detectors, bit mask of observables
TARGET: Any = object()  # "the env's target point" as a default, since None is a point too


@dataclass(frozen=True, eq=False)
class MatchingGraph:
    """The edges that plain matching decides an observable with.

    Kept are the connected components that hold an edge with an observable; the rest never changes an answer.
    Mechanisms that flip the same detectors and observables are one edge, its probability their XOR.

    endpoints: int32 [n_edges, 2], global detector ids, -1 is the boundary.
    observables: uint8 [n_edges, n_observables]. prior: float64 [n_edges].
    fault_to_edge: int32 csr [n_faults, n_edges]. own, other: detectors inside and outside the components.
    """

    endpoints: np.ndarray
    observables: np.ndarray
    prior: np.ndarray
    fault_to_edge: sp.csr_matrix
    own: np.ndarray
    other: np.ndarray

    @property
    def n_edges(self) -> int:
        return len(self.endpoints)

    @property
    def log_odds(self) -> np.ndarray:
        """float64 [n_edges], log(p / (1 - p)); a matching weight is minus this."""
        return np.log(self.prior) - np.log1p(-self.prior)

    @cached_property
    def check_matrix(self) -> sp.csc_matrix:
        """uint8 [len(own), n_edges]: edges against own detectors, in the order of `own`."""
        position = {int(detector): row for row, detector in enumerate(self.own)}
        rows, columns = [], []
        for edge, ends in enumerate(self.endpoints):
            for detector in ends[ends >= 0]:
                rows.append(position[int(detector)])
                columns.append(edge)
        shape = (len(self.own), self.n_edges)
        return sp.csc_matrix((np.ones(len(rows), np.uint8), (rows, columns)), shape)

    @cached_property
    def faults_matrix(self) -> sp.csc_matrix:
        """uint8 [n_observables, n_edges]."""
        return sp.csc_matrix(self.observables.T)


@dataclass(frozen=True, eq=False)
class Problem:
    """One env at one operating point. H, L: uint8 csr over the DEM's mechanisms; fault_probs float64 [n_faults]."""

    env: EnvSpec
    p: float | None
    circuit: stim.Circuit
    dem: stim.DetectorErrorModel
    fault_probs: np.ndarray
    H: sp.csr_matrix
    L: sp.csr_matrix
    fault_components: tuple[tuple[Component, ...], ...]
    graph: MatchingGraph

    @classmethod
    def from_env(cls, env: EnvSpec, p: float | None = TARGET) -> Problem:
        """Build the problem; InputError where the noise does not decompose into a graph."""
        if p is TARGET:
            p = env.target
        circuit = build_circuit(env, p)
        dem = decomposed_model(circuit, env.name)
        probs, components = read_mechanisms(dem, env.name)
        H, L = incidence(components, dem.num_detectors, dem.num_observables)
        graph = matching_graph(components, probs, dem.num_detectors, dem.num_observables, env.name)
        return cls(env, p, circuit, dem, probs, H, L, tuple(components), graph)

    @property
    def n_detectors(self) -> int:
        return self.circuit.num_detectors

    @property
    def n_observables(self) -> int:
        return self.circuit.num_observables

    @property
    def n_faults(self) -> int:
        return len(self.fault_probs)

    @property
    def rounds(self) -> int:
        return self.env.code.rounds

    @cached_property
    def circuit_sha256(self) -> str:
        return hashlib.sha256(str(self.circuit).encode()).hexdigest()

    @cached_property
    def coordinates(self) -> np.ndarray:
        """float64 [n_detectors, k]: detector coordinates, missing ones 0."""
        found = self.circuit.get_detector_coordinates()
        width = max((len(value) for value in found.values()), default=0)
        table = np.zeros((self.n_detectors, width))
        for detector, value in found.items():
            table[detector, : len(value)] = value
        return table


def decomposed_model(circuit: stim.Circuit, name: str) -> stim.DetectorErrorModel:
    """The circuit's DEM with every mechanism split into graph-like parts, loops unrolled."""
    try:
        return circuit.detector_error_model(decompose_errors=True).flattened()
    except ValueError as error:
        raise InputError(
            "the detector error model can't be decomposed into a matching graph "
            f"({str(error).strip().splitlines()[0]})",
            where=f"env `{name}`, backend `mwpm`",
            mend="choose a code whose errors flip at most two detectors of a sector",
        ) from error


def read_mechanisms(dem: stim.DetectorErrorModel, name: str) -> tuple[np.ndarray, list[tuple[Component, ...]]]:
    """Probabilities and graph-like components of every mechanism, in the DEM's order."""
    probs: list[float] = []
    mechanisms: list[tuple[Component, ...]] = []
    for instruction in dem:
        if instruction.type != "error":
            continue
        parts: list[Component] = []
        detectors: list[int] = []
        mask = 0
        for target in [*instruction.targets_copy(), stim.target_separator()]:
            if target.is_separator():
                parts.append((tuple(sorted(detectors)), mask))
                detectors, mask = [], 0
            elif target.is_relative_detector_id():
                detectors.append(target.val)
            else:
                mask ^= 1 << target.val
        wide = next((part for part in parts if len(part[0]) > 2), None)
        if wide is not None:
            raise InputError(
                f"a mechanism flips {len(wide[0])} detectors at once ({' '.join(f'D{d}' for d in wide[0])})",
                where=f"env `{name}`, backend `mwpm`",
                mend="choose a code whose errors flip at most two detectors of a sector",
            )
        probs.append(instruction.args_copy()[0])
        mechanisms.append(tuple(parts))
    return np.array(probs), mechanisms


def incidence(
    mechanisms: list[tuple[Component, ...]], n_detectors: int, n_observables: int
) -> tuple[sp.csr_matrix, sp.csr_matrix]:
    """H [n_detectors, n_faults] and L [n_observables, n_faults], both modulo 2."""
    h_rows, h_columns, l_rows, l_columns = [], [], [], []
    for fault, parts in enumerate(mechanisms):
        flipped: set[int] = set()
        mask = 0
        for detectors, observables in parts:
            flipped ^= set(detectors)
            mask ^= observables
        h_rows += sorted(flipped)
        h_columns += [fault] * len(flipped)
        hit = [bit for bit in range(n_observables) if mask >> bit & 1]
        l_rows += hit
        l_columns += [fault] * len(hit)
    n = len(mechanisms)
    H = sp.csr_matrix((np.ones(len(h_rows), np.uint8), (h_rows, h_columns)), (n_detectors, n))
    L = sp.csr_matrix((np.ones(len(l_rows), np.uint8), (l_rows, l_columns)), (n_observables, n))
    return H, L


def matching_graph(
    mechanisms: list[tuple[Component, ...]], probs: np.ndarray, n_detectors: int, n_observables: int, name: str
) -> MatchingGraph:
    """Merge components into edges and keep the connected components that hold an observable."""
    index: dict[Component, int] = {}
    for parts in mechanisms:
        for part in parts:
            if part[0]:  # a part without detectors can't be matched
                index.setdefault(part, len(index))
    labels = connected(index, n_detectors)
    decisive = {labels[detectors[0]] for detectors, mask in index if mask}
    if not decisive:
        raise InputError(
            "no detectable error flips an observable", where=f"env `{name}`", mend="check OBSERVABLE_INCLUDE"
        )
    kept = [part for part in index if labels[part[0][0]] in decisive]
    column = {part: edge for edge, part in enumerate(kept)}

    prior = np.zeros(len(kept))
    rows, columns = [], []
    for fault, parts in enumerate(mechanisms):
        for part in parts:
            edge = column.get(part)
            if edge is not None:
                prior[edge] = prior[edge] * (1 - probs[fault]) + probs[fault] * (1 - prior[edge])
                rows.append(fault)
                columns.append(edge)
    used = prior > 0
    if not used.all():  # mechanisms of probability 0 leave edges nobody ever takes
        renumber = np.cumsum(used) - 1
        pairs = [(r, renumber[c]) for r, c in zip(rows, columns, strict=True) if used[c]]
        rows, columns = [r for r, _ in pairs], [int(c) for _, c in pairs]
        kept, prior = [part for part, keep in zip(kept, used, strict=True) if keep], prior[used]
    if (prior >= 1).any():
        raise InputError("a mechanism has probability 1", where=f"env `{name}`", mend="give it a probability below 1")
    endpoints = np.full((len(kept), 2), -1, np.int32)
    observables = np.zeros((len(kept), n_observables), np.uint8)
    for edge, (detectors, mask) in enumerate(kept):
        endpoints[edge, : len(detectors)] = detectors
        observables[edge] = [mask >> bit & 1 for bit in range(n_observables)]
    shape = (len(mechanisms), len(kept))
    fault_to_edge = sp.csr_matrix((np.ones(len(rows), np.int32), (rows, columns)), shape)
    inside = np.isin(labels, list(decisive))
    return MatchingGraph(
        endpoints, observables, prior, fault_to_edge, own=np.nonzero(inside)[0], other=np.nonzero(~inside)[0]
    )


def connected(index: dict[Component, int], n_detectors: int) -> np.ndarray:
    """int [n_detectors]: label of each detector's connected component; the boundary joins nothing."""
    pairs = np.array([detectors for detectors, _ in index if len(detectors) == 2], dtype=int).reshape(-1, 2)
    adjacency = sp.coo_matrix((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), (n_detectors, n_detectors))
    return sp.csgraph.connected_components(adjacency, directed=False)[1]
