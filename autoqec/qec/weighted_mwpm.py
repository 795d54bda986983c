"""Minimum-weight perfect matching with edge weights of its own for every shot.

PyMatching compiles one set of weights into its graph, so weights that change from shot to shot mean a new graph per
shot. `WeightedMatching` takes the weights with the syndromes instead. A C extension (`weighted_mwpm.c`) finds the exact
minimum. PyMatching decodes all shots where the package was built without a C compiler, and graphs of more than 65,536
nodes: equal weights, but slower.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any, Literal, overload

import numpy as np
import pymatching
import scipy.sparse as sp

from autoqec.qec import c_library

MAX_LOG_ODDS = 30.0  # nats; PyMatching scales its integer weights by the largest, so extremes would blur the rest
SOURCES = ("weighted_mwpm.c", "blossom.c", "complementary_gap.c")
_LIBRARY = c_library.library_path(__file__, "_match")


class GapTable(ctypes.Structure):
    """The struct `Table` of `weighted_mwpm.c`."""

    _fields_ = [
        ("nodes", ctypes.c_int32), ("bound", ctypes.c_void_p), ("apart", ctypes.c_void_p), ("reach", ctypes.c_double),
        ("first_near", ctypes.c_void_p), ("near", ctypes.c_void_p), ("near_apart", ctypes.c_void_p),
    ]  # fmt: skip


@functools.cache
def compiled_matcher() -> Any | None:
    """Return the C function, or None if it was not built."""
    if (functions := c_library.functions(_LIBRARY, "autoqec_match_1")) is None:
        return None
    ints, words = np.ctypeslib.ndpointer(np.int32, flags="C"), np.ctypeslib.ndpointer(np.uint8, flags="C")
    reals = np.ctypeslib.ndpointer(np.float32, flags="C")
    functions[0].argtypes = [ctypes.c_int64] * 2 + [ctypes.c_int32] * 2 + [ints] * 4 + [reals] + [words] * 3
    return functions[0]


@functools.cache
def compiled_gap() -> tuple[Any, Any, Any] | None:
    """Return the C functions that compute distances, and complementary gaps with and without them.

    None if they were not built. All take the addresses of arrays, see `c_library.addresses`.
    """
    names = ("autoqec_distances_1", "autoqec_gap_2", "autoqec_wide_gap_1")
    if (functions := c_library.functions(_LIBRARY, *names)) is None:
        return None
    graph, shots = [ctypes.c_int32] * 2 + [ctypes.c_void_p] * 5, [ctypes.c_int64] * 3 + [ctypes.c_void_p] * 5
    functions[0].argtypes = [*graph, *[ctypes.c_void_p] * 2]
    functions[1].argtypes = [ctypes.POINTER(GapTable), *shots]
    functions[2].argtypes = [*graph, *shots]
    return functions[0], functions[1], functions[2]


@functools.cache
def compiled_soft_matcher() -> Any | None:
    """Return the C function from bit-packed shots to observables, which takes addresses; None if it was not built."""
    if (functions := c_library.functions(_LIBRARY, "autoqec_soft_2")) is None:
        return None
    pointers = ctypes.c_void_p
    functions[0].argtypes = [ctypes.c_int] + [ctypes.c_int64] * 2 + [ctypes.c_int32] * 2 + [pointers] * 4
    functions[0].argtypes += [ctypes.c_int32] + [pointers] * 2 + [ctypes.c_float] + [pointers] * 4
    return functions[0]


def missing_extension(backend: str) -> str | None:
    """Return a warning if an inner decoder would use the C extension, which was not built."""
    if backend != "mwpm" or compiled_soft_matcher() is not None:
        return None
    return "the C extension is not built, so decoding is slower; see autoqec doctor"


def is_outdated() -> bool:
    """Return whether the library of a checkout is older than its source; False in an installed package."""
    return c_library.is_older(_LIBRARY, *(Path(__file__).with_name(name) for name in SOURCES))


class WeightedMatching:
    """Exact minimum-weight perfect matching under per-shot weights.

    Example:
        >>> matching = WeightedMatching(check_matrix)
        >>> edges = matching.decode_batch(shots, weights)  # one row of weights per shot

    Args:
        check_matrix: [n_nodes, n_edges] of 0 and 1, dense or sparse. A column holds the one or two nodes of an edge;
            an edge with a single node ends on the boundary.
        faults_matrix: [n_faults, n_edges] of 0 and 1, as in PyMatching: which edges flip each fault (a logical
            observable, say). Without it, predictions are the edges themselves.
        max_weight: Clip weights to +-max_weight. None leaves them as they are.

    Raises:
        ValueError: A column of the check matrix holds no node or more than two, the matrices differ in width or hold
            other values than 0 and 1, or max_weight is not above 0.
    """

    def __init__(
        self,
        check_matrix: np.ndarray | sp.spmatrix,
        faults_matrix: np.ndarray | sp.spmatrix | None = None,
        *,
        max_weight: float | None = None,
    ) -> None:
        if max_weight is not None and not max_weight > 0:
            raise ValueError(f"max_weight is {max_weight}, expected a number above 0")
        self._checks = _binary_csc(check_matrix)
        self._faults = None if faults_matrix is None else _binary_csc(faults_matrix).T.astype(np.int32)
        self._max_weight = max_weight
        self._n_nodes, self._n_edges = self._checks.shape
        if self._faults is not None and self._faults.shape[0] != self._n_edges:
            raise ValueError(f"faults_matrix has {self._faults.shape[0]} columns, check_matrix has {self._n_edges}")
        degrees = np.diff(self._checks.indptr)
        if ((degrees < 1) | (degrees > 2)).any():
            edge = int(np.nonzero((degrees < 1) | (degrees > 2))[0][0])
            raise ValueError(f"column {edge} of check_matrix holds {degrees[edge]} nodes, expected one or two")
        self._ends = np.full((self._n_edges, 2), -1, np.int32)
        for edge in range(self._n_edges):
            nodes = self._checks.indices[self._checks.indptr[edge] : self._checks.indptr[edge + 1]]
            self._ends[edge, : len(nodes)] = nodes
        # Adjacency lists: every edge from either end; those of the boundary (here node n_nodes) come last.
        node = np.where(self._ends < 0, self._n_nodes, self._ends).T.ravel()
        order = np.argsort(node, kind="stable")
        self._start = np.searchsorted(node[order], np.arange(self._n_nodes + 2)).astype(np.int32)
        self._neighbours = self._ends[:, ::-1].T.ravel()[order].astype(np.int32)
        self._edge_of_link = np.tile(np.arange(self._n_edges, dtype=np.int32), 2)[order]

    @property
    def adjacency(self) -> tuple[int, int, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Return the graph as the C functions take it.

        These are n_nodes, n_edges, ends int32 [n_edges, 2] (-1 is the boundary), and adjacency lists: links of node v
        are start[v] to start[v + 1], each with a neighbour and an edge, all int32.
        """
        return self._n_nodes, self._n_edges, self._ends, self._start, self._neighbours, self._edge_of_link

    @overload
    def decode_batch(
        self, shots: np.ndarray, weights: np.ndarray, *, return_weights: Literal[False] = False
    ) -> np.ndarray: ...
    @overload
    def decode_batch(
        self, shots: np.ndarray, weights: np.ndarray, *, return_weights: Literal[True]
    ) -> tuple[np.ndarray, np.ndarray]: ...
    def decode_batch(
        self, shots: np.ndarray, weights: np.ndarray, *, return_weights: bool = False
    ) -> np.ndarray | tuple[np.ndarray, np.ndarray]:
        """Decode a batch of syndromes, each under its own edge weights.

        Args:
            shots: [n, n_nodes] of 0 and 1 (or bool), the detection events of each shot; not bit-packed.
            weights: float [n, n_edges], log((1 - p) / p) for independent edges; any finite value, computed in float32.
                [n_edges] serves all shots; of [m, n_edges], where m divides n, each row serves n / m shots in a row.
            return_weights: Also return the total weight of each solution.

        Returns:
            uint8 [n, n_edges], the edges of a minimum-weight solution of each shot, or with a faults matrix uint8
            [n, n_faults], the faults that it flips. With `return_weights`, also float64 [n].

        Raises:
            ValueError: Shapes do not fit, a detection event is neither 0 nor 1, a weight is not finite, or no edge set
                explains a shot (an odd number of detection events in a component without boundary).
        """
        shots, weights = _as_shots(shots), np.atleast_2d(weights)
        shapes, rows = (shots.shape, weights.shape), len(weights)
        if shots.ndim != 2 or shots.shape[1] != self._n_nodes:
            bits = -(-self._n_nodes // 8)
            packed = "; unpack bit-packed shots first" if shots.ndim == 2 and shots.shape[1] == bits else ""
            raise ValueError(f"shots have shape {shots.shape}, expected (shots, {self._n_nodes} nodes){packed}")
        if weights.shape != (rows, self._n_edges) or len(shots) % max(rows, 1) or (rows == 0 < len(shots)):
            raise ValueError(
                f"shots and weights have shapes {shapes}; expected as many rows of weights as shots (or a number that "
                f"divides it), and {self._n_edges} columns, one per edge"
            )
        if weights.dtype.kind not in "fiub":
            raise ValueError(f"weights are of dtype {weights.dtype}, expected real numbers")
        with np.errstate(over="ignore"):  # an overflow is reported below
            log_odds = np.negative(weights, dtype=np.float32, casting="same_kind", order="C")
        if not np.isfinite(log_odds).all():
            row, column = (int(index[0]) for index in np.nonzero(~np.isfinite(log_odds)))
            raise ValueError(f"weights are not finite (in float32), first in row {row}, edge {column}")
        if self._max_weight is not None:
            np.clip(log_odds, -self._max_weight, self._max_weight, out=log_odds)
        shots_per_row = len(shots) // max(rows, 1)
        edges = np.empty((len(shots), self._n_edges), np.uint8)
        for shot in np.nonzero(~self._decode_compiled(shots, log_odds, edges, shots_per_row))[0]:
            edges[shot] = self._decode_with_pymatching(shots[shot], log_odds[shot // shots_per_row])
        predictions = edges if self._faults is None else (edges @ self._faults & 1).astype(np.uint8)
        if not return_weights:
            return predictions
        per_shot = np.repeat(log_odds, shots_per_row, axis=0) if shots_per_row > 1 else log_odds
        return predictions, -np.einsum("se,se->s", per_shot, edges, dtype=np.float64)

    def _decode_with_pymatching(self, shot: np.ndarray, log_odds: np.ndarray) -> np.ndarray:
        """Decode one shot with a graph of its own.

        Edges likelier flipped than not are taken first: of parallel edges PyMatching keeps one.
        """
        likelier = (log_odds > 0).astype(np.uint8)
        rest = shot.astype(np.uint8) ^ (self._checks @ likelier & 1).astype(np.uint8)
        matching = pymatching.Matching.from_check_matrix(self._checks, weights=np.abs(log_odds).astype(float))
        return np.asarray(matching.decode(rest) ^ likelier)

    def _decode_compiled(
        self, shots: np.ndarray, log_odds: np.ndarray, edges: np.ndarray, shots_per_row: int
    ) -> np.ndarray:
        """Decode in C; return bool [n], the shots whose row of `edges` is written."""
        function = compiled_matcher()
        if function is None or len(shots) == 0:
            # No detection events, and no edge likelier flipped than not: the empty matching is the minimum.
            edges[:] = 0
            trivial: np.ndarray = ~shots.any(axis=1) & np.repeat((log_odds <= 0).all(axis=1), shots_per_row)
            return trivial
        done = np.empty(len(shots), np.uint8)
        syndromes = np.array(shots, np.uint8, order="C")  # the C code toggles them in place
        if function(len(shots), shots_per_row, *self.adjacency, log_odds, syndromes, edges, done) != 0:
            done[:] = 0  # no memory for a table of nodes against nodes, which PyMatching does without
        return done.astype(bool)


def _as_shots(shots: np.ndarray) -> np.ndarray:
    """Return detection events as an array of bool or uint8; ValueError if an entry is neither 0 nor 1."""
    out = np.asarray(shots)
    if out.dtype == bool:
        return out
    is_binary = (
        out.max(initial=0) <= 1 if out.dtype == np.uint8 else out.dtype.kind in "fiu" and np.isin(out, (0, 1)).all()
    )
    if not is_binary:
        raise ValueError("shots hold entries other than 0 and 1")
    return out.astype(np.uint8, copy=False)


def _binary_csc(matrix: np.ndarray | sp.spmatrix) -> sp.csc_matrix:
    """Return a uint8 copy in CSC format; ValueError if an entry is neither 0 nor 1."""
    out = sp.csc_matrix(matrix, copy=True)
    if not np.isin(out.data, (0, 1)).all():
        raise ValueError("a matrix holds entries other than 0 and 1")
    out.eliminate_zeros()
    return out.astype(np.uint8)
