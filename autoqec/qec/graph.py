"""What a classical decoder weighs: edges of a matching graph, or mechanisms of a Tanner graph."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from autoqec.errors import UsageError

Component = tuple[tuple[int, ...], int]  # sorted detectors, bit mask of observables


@dataclass(frozen=True, eq=False)
class DecodingGraph:
    """Variables with priors; a predecoder gives each its log-odds, shot by shot. Called edges in either kind of graph.

    observables: uint8 [n_edges, n_observables]. prior: float64 [n_edges].
    fault_to_edge: int32 csr [n_faults, n_edges]. own, other: detectors that the backend uses, and those it ignores.
    """

    observables: np.ndarray
    prior: np.ndarray
    mechanism_to_edge: sp.csr_matrix
    in_sector: np.ndarray
    out_of_sector: np.ndarray

    @property
    def n_edges(self) -> int:
        return len(self.prior)

    @property
    def log_odds(self) -> np.ndarray:
        """float64 [n_edges], log(p / (1 - p)); a matching weight is minus this."""
        return np.log(self.prior) - np.log1p(-self.prior)


@dataclass(frozen=True, eq=False)
class TannerGraph(DecodingGraph):
    """Mechanisms are variables, over all detectors or over those of one sector, where those that look alike are one.

    check_matrix: uint8 [len(own), n_edges], in the order of `own`.
    """

    check_matrix: sp.csc_matrix


@dataclass(frozen=True, eq=False)
class MatchingGraph(DecodingGraph):
    """The edges that plain matching decides an observable with.

    Kept are the connected components that hold an edge with an observable; the rest never changes an answer.
    Mechanisms that flip the same detectors and observables are one edge, its probability their XOR.

    endpoints: int32 [n_edges, 2], global detector ids, -1 is the boundary.
    """

    endpoints: np.ndarray

    @cached_property
    def check_matrix(self) -> sp.csc_matrix:
        """uint8 [len(own), n_edges]: edges against own detectors, in the order of `own`."""
        position = {int(detector): row for row, detector in enumerate(self.in_sector)}
        rows, columns = [], []
        for edge, ends in enumerate(self.endpoints):
            for detector in ends[ends >= 0]:
                rows.append(position[int(detector)])
                columns.append(edge)
        shape = (len(self.in_sector), self.n_edges)
        return sp.csc_matrix((np.ones(len(rows), np.uint8), (rows, columns)), shape)


def tanner_graph(H: sp.csr_matrix, L: sp.csr_matrix, probs: np.ndarray, name: str) -> TannerGraph:
    """One variable a mechanism, as stim's DEM lists them: same detectors and observables are already one."""
    if (probs >= 1).any() or (probs <= 0).any():
        raise UsageError("a mechanism has probability 0 or 1", location=f"env `{name}`", hint="give it one in between")
    return TannerGraph(
        observables=L.T.toarray().astype(np.uint8),
        prior=probs,
        mechanism_to_edge=sp.identity(len(probs), dtype=np.int32, format="csr"),
        in_sector=np.arange(H.shape[0]),
        out_of_sector=np.arange(0),
        check_matrix=sp.csc_matrix(H),
    )


def sector_graph(full_graph: TannerGraph, sector_mask: np.ndarray, name: str) -> TannerGraph:
    """What is left of a Tanner graph on the detectors `inside`, bool [n_detectors].

    Mechanisms that flip the same of them, and the same observables, are one variable, its probability their XOR.
    UsageError where a mechanism flips an observable and none of these detectors: it would go unseen.
    """
    in_sector = np.nonzero(sector_mask)[0]
    sector_checks = sp.csc_matrix(full_graph.check_matrix[in_sector])
    index: dict[tuple[bytes, bytes], int] = {}
    edge_of = np.full(full_graph.n_edges, -1)
    for mechanism, flips in enumerate(full_graph.observables):
        detectors = np.sort(
            sector_checks.indices[sector_checks.indptr[mechanism] : sector_checks.indptr[mechanism + 1]]
        )
        if len(detectors):
            edge_of[mechanism] = index.setdefault((detectors.tobytes(), flips.tobytes()), len(index))
        elif flips.any():
            raise UsageError(
                "a mechanism flips an observable and no detector of this sector",
                location=f"env `{name}`, field `bp.sector`",
                hint="name the sector that detects the observables' errors, or leave `sector` out",
            )
    kept = np.nonzero(edge_of >= 0)[0]
    prior = np.zeros(len(index))
    for column, p in zip(edge_of[kept], full_graph.prior[kept], strict=True):
        prior[column] = prior[column] * (1 - p) + p * (1 - prior[column])
    first = np.zeros(len(index), int)
    first[edge_of[kept[::-1]]] = kept[::-1]  # the first mechanism of each variable stands for all
    shape = (full_graph.n_edges, len(index))
    return TannerGraph(
        observables=full_graph.observables[first],
        prior=prior,
        mechanism_to_edge=sp.csr_matrix((np.ones(len(kept), np.int32), (kept, edge_of[kept])), shape),
        in_sector=in_sector,
        out_of_sector=np.nonzero(~sector_mask)[0],
        check_matrix=sp.csc_matrix(sector_checks[:, first]),
    )


def matching_graph(
    mechanisms: list[tuple[Component, ...]], probs: np.ndarray, n_detectors: int, n_observables: int, name: str
) -> MatchingGraph:
    """Merge components into edges and keep the connected components that hold an observable."""
    index: dict[Component, int] = {}
    for parts in mechanisms:
        for part in parts:
            if part[0]:  # a part without detectors can't be matched
                index.setdefault(part, len(index))
    labels = component_labels(index, n_detectors)
    logical_components = {labels[detectors[0]] for detectors, mask in index if mask}
    if not logical_components:
        raise UsageError(
            "no detectable error flips an observable", location=f"env `{name}`", hint="check OBSERVABLE_INCLUDE"
        )
    kept = [part for part in index if labels[part[0][0]] in logical_components]
    column = {part: edge for edge, part in enumerate(kept)}

    prior = np.zeros(len(kept))
    rows, columns = [], []
    for mechanism, parts in enumerate(mechanisms):
        for part in parts:
            edge = column.get(part)
            if edge is not None:
                prior[edge] = prior[edge] * (1 - probs[mechanism]) + probs[mechanism] * (1 - prior[edge])
                rows.append(mechanism)
                columns.append(edge)
    used = prior > 0
    if not used.all():  # mechanisms of probability 0 leave edges nobody ever takes
        renumber = np.cumsum(used) - 1
        pairs = [(r, renumber[c]) for r, c in zip(rows, columns, strict=True) if used[c]]
        rows, columns = [r for r, _ in pairs], [int(c) for _, c in pairs]
        kept, prior = [part for part, keep in zip(kept, used, strict=True) if keep], prior[used]
    if (prior >= 1).any():
        raise UsageError(
            "a mechanism has probability 1", location=f"env `{name}`", hint="give it a probability below 1"
        )
    endpoints = np.full((len(kept), 2), -1, np.int32)
    observables = np.zeros((len(kept), n_observables), np.uint8)
    for edge, (detectors, mask) in enumerate(kept):
        endpoints[edge, : len(detectors)] = detectors
        observables[edge] = [mask >> bit & 1 for bit in range(n_observables)]
    shape = (len(mechanisms), len(kept))
    mechanism_to_edge = sp.csr_matrix((np.ones(len(rows), np.int32), (rows, columns)), shape)
    sector_mask = np.isin(labels, list(logical_components))
    return MatchingGraph(
        observables=observables,
        prior=prior,
        mechanism_to_edge=mechanism_to_edge,
        in_sector=np.nonzero(sector_mask)[0],
        out_of_sector=np.nonzero(~sector_mask)[0],
        endpoints=endpoints,
    )


def component_labels(index: dict[Component, int], n_detectors: int) -> np.ndarray:
    """int [n_detectors]: label of each detector's connected component; the boundary joins nothing."""
    pairs = np.array([detectors for detectors, _ in index if len(detectors) == 2], dtype=int).reshape(-1, 2)
    adjacency = sp.coo_matrix((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), (n_detectors, n_detectors))
    return sp.csgraph.connected_components(adjacency, directed=False)[1]
