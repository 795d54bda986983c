"""Decoding graphs: matching graphs, whose variables are edges, and Tanner graphs of error mechanisms."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import scipy.sparse as sp

from autoqec.errors import UsageError

Component = tuple[tuple[int, ...], int]  # sorted detectors, bit mask of observables


@dataclass(frozen=True, eq=False)
class DecodingGraph:
    """Binary variables with prior probabilities; a predecoder replaces the priors shot by shot.

    The variables are called edges in both kinds of graph.

    Attributes:
        observables: uint8 [n_edges, n_observables], which observables each edge flips.
        prior: float64 [n_edges], probabilities.
        mechanism_to_edge: int32 csr [n_mechanisms, n_edges], the edges that each error mechanism of the DEM flips.
        in_sector: int [k], ids of the detectors that the inner decoder uses.
        out_of_sector: int [n_detectors - k], ids of those that it ignores.
    """

    observables: np.ndarray
    prior: np.ndarray
    mechanism_to_edge: sp.csr_matrix
    in_sector: np.ndarray
    out_of_sector: np.ndarray

    @property
    def n_edges(self) -> int:
        """Return the number of variables."""
        return len(self.prior)

    @property
    def log_odds(self) -> np.ndarray:
        """Return float64 [n_edges], log(p / (1 - p)); a matching weight is minus this."""
        return np.log(self.prior) - np.log1p(-self.prior)


@dataclass(frozen=True, eq=False)
class TannerGraph(DecodingGraph):
    """Error mechanisms as variables, over all detectors or those of one sector.

    Restricted to a sector, error mechanisms that flip the same detectors and observables are one variable.

    Attributes:
        check_matrix: uint8 [len(in_sector), n_edges], rows in the order of `in_sector`.
    """

    check_matrix: sp.csc_matrix


@dataclass(frozen=True, eq=False)
class MatchingGraph(DecodingGraph):
    """The connected components of a matching graph in which some edge flips an observable.

    Other components never change a prediction. Components of error mechanisms that flip the same detectors and
    observables are one edge; its prior is the probability that an odd number of them occur.

    Attributes:
        endpoints: int32 [n_edges, 2], detector ids; -1 is the boundary.
    """

    endpoints: np.ndarray

    @cached_property
    def check_matrix(self) -> sp.csc_matrix:
        """Return uint8 [len(in_sector), n_edges], rows in the order of `in_sector`."""
        position = {int(detector): row for row, detector in enumerate(self.in_sector)}
        rows, columns = [], []
        for edge, ends in enumerate(self.endpoints):
            for detector in ends[ends >= 0]:
                rows.append(position[int(detector)])
                columns.append(edge)
        shape = (len(self.in_sector), self.n_edges)
        return sp.csc_matrix((np.ones(len(rows), np.uint8), (rows, columns)), shape)


def tanner_graph(H: sp.csr_matrix, L: sp.csr_matrix, probs: np.ndarray, name: str) -> TannerGraph:
    """Build a Tanner graph with one variable per error mechanism, in the DEM's order.

    Args:
        H: uint8 [n_detectors, n_mechanisms].
        L: uint8 [n_observables, n_mechanisms].
        probs: float64 [n_mechanisms].
        name: The env's name, for errors.

    Raises:
        UsageError: A probability is 0 or 1.
    """
    if (probs >= 1).any() or (probs <= 0).any():
        raise UsageError(
            "an error mechanism has probability 0 or 1", location=f"env `{name}`", hint="use a value between 0 and 1"
        )
    return TannerGraph(
        observables=L.T.toarray().astype(np.uint8),
        prior=probs,
        mechanism_to_edge=sp.identity(len(probs), dtype=np.int32, format="csr"),
        in_sector=np.arange(H.shape[0]),
        out_of_sector=np.arange(0),
        check_matrix=sp.csc_matrix(H),
    )


def sector_graph(full_graph: TannerGraph, sector_mask: np.ndarray, name: str) -> TannerGraph:
    """Restrict a Tanner graph to the detectors of one sector.

    Error mechanisms that flip the same of these detectors and the same observables become one variable; its prior is
    the probability that an odd number of them occur.

    Args:
        full_graph: The graph over all detectors.
        sector_mask: bool [n_detectors].
        name: The env's name, for errors.

    Raises:
        UsageError: An error mechanism flips an observable and none of these detectors, so it could not be detected.
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
                "an error mechanism flips an observable and no detector of this sector",
                location=f"env `{name}`, field `bp.sector`",
                hint="choose the sector that detects the errors of the observables, or remove `sector`",
            )
    kept = np.nonzero(edge_of >= 0)[0]
    prior = np.zeros(len(index))
    for column, p in zip(edge_of[kept], full_graph.prior[kept], strict=True):
        prior[column] = prior[column] * (1 - p) + p * (1 - prior[column])
    first = np.zeros(len(index), int)
    first[edge_of[kept[::-1]]] = kept[::-1]  # the first of each variable; all have the same flips
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
    mechanisms: list[tuple[Component, ...]],
    probs: np.ndarray,
    n_detectors: int,
    n_observables: int,
    name: str,
    sector_mask: np.ndarray | None = None,
) -> MatchingGraph:
    """Merge parts of error mechanisms into edges; keep the connected components in which an edge flips an observable.

    Args:
        mechanisms: The graph-like parts of each error mechanism, see `Component`.
        probs: float64 [n_mechanisms].
        n_detectors: Number of detectors of the DEM.
        n_observables: Number of observables of the DEM.
        name: The env's name, for errors.
        sector_mask: bool [n_detectors], the detectors of the components to keep, of a part of a model whose other
            parts have the errors that flip observables.

    Raises:
        UsageError: No detectable error flips an observable, or a probability is 1.
    """
    index: dict[Component, int] = {}
    for parts in mechanisms:
        for part in parts:
            if part[0]:  # a part without detectors can't be matched
                index.setdefault(part, len(index))
    if sector_mask is None:
        sector_mask = _logical_sector(index, n_detectors, name)
    kept = [part for part in index if sector_mask[part[0][0]]]
    prior, rows, columns = _merge_parts(mechanisms, probs, kept)
    used = prior > 0
    if not used.all():  # error mechanisms of probability 0 give edges of infinite weight
        renumber = np.cumsum(used) - 1
        pairs = [(r, renumber[c]) for r, c in zip(rows, columns, strict=True) if used[c]]
        rows, columns = [r for r, _ in pairs], [int(c) for _, c in pairs]
        kept, prior = [part for part, keep in zip(kept, used, strict=True) if keep], prior[used]
    if (prior >= 1).any():
        raise UsageError("an error mechanism has probability 1", location=f"env `{name}`", hint="use a value below 1")
    endpoints = np.full((len(kept), 2), -1, np.int32)
    observables = np.zeros((len(kept), n_observables), np.uint8)
    for edge, (detectors, mask) in enumerate(kept):
        endpoints[edge, : len(detectors)] = detectors
        observables[edge] = [mask >> bit & 1 for bit in range(n_observables)]
    shape = (len(mechanisms), len(kept))
    mechanism_to_edge = sp.csr_matrix((np.ones(len(rows), np.int32), (rows, columns)), shape)
    return MatchingGraph(
        observables=observables,
        prior=prior,
        mechanism_to_edge=mechanism_to_edge,
        in_sector=np.nonzero(sector_mask)[0],
        out_of_sector=np.nonzero(~sector_mask)[0],
        endpoints=endpoints,
    )


def _logical_sector(index: dict[Component, int], n_detectors: int, name: str) -> np.ndarray:
    """Return bool [n_detectors], the detectors of the connected components in which an edge flips an observable."""
    labels = component_labels(index, n_detectors)
    logical_components = {labels[detectors[0]] for detectors, mask in index if mask}
    if not logical_components:
        raise UsageError(
            "no detectable error flips an observable", location=f"env `{name}`", hint="check OBSERVABLE_INCLUDE"
        )
    found: np.ndarray = np.isin(labels, list(logical_components))
    return found


def _merge_parts(
    mechanisms: list[tuple[Component, ...]], probs: np.ndarray, edges: list[Component]
) -> tuple[np.ndarray, list[int], list[int]]:
    """Return the priors, float64 [n_edges], and the (error mechanism, edge) pairs as two lists."""
    column = {part: edge for edge, part in enumerate(edges)}
    prior = np.zeros(len(edges))
    rows, columns = [], []
    for mechanism, parts in enumerate(mechanisms):
        for part in parts:
            edge = column.get(part)
            if edge is not None:
                prior[edge] = prior[edge] * (1 - probs[mechanism]) + probs[mechanism] * (1 - prior[edge])
                rows.append(mechanism)
                columns.append(edge)
    return prior, rows, columns


def component_labels(index: dict[Component, int], n_detectors: int) -> np.ndarray:
    """Return int [n_detectors], the connected component of each detector; the boundary connects nothing."""
    pairs = np.array([detectors for detectors, _ in index if len(detectors) == 2], dtype=int).reshape(-1, 2)
    adjacency = sp.coo_matrix((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), (n_detectors, n_detectors))
    return sp.csgraph.connected_components(adjacency, directed=False)[1]
