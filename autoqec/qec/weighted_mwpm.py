"""Exact matching of single shots, each under its own weights: match.c, and PyMatching where that leaves a shot.

Where the package was built without a C compiler, PyMatching builds a graph a shot: the same answers, slower.
"""

from __future__ import annotations

import ctypes
import functools
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import numpy as np
import pymatching
import scipy.sparse as sp

MAX_LOG_ODDS = 30.0  # nats; PyMatching scales its integer weights by the largest, so extremes would blur the rest
_NAMES = [Path(__file__).with_name(f"_match{suffix}") for suffix in reversed(EXTENSION_SUFFIXES)]
# The stable ABI's name before the one of this Python alone, which an older build may have left.
_LIBRARY = next((path for path in _NAMES if path.exists()), _NAMES[-1])
_FUNCTION = "autoqec_match_1"  # renamed with its arguments: a library of another version is not called


@functools.cache
def compiled_matcher() -> Any | None:
    """The C function; None where it was not built."""
    try:
        function = getattr(ctypes.CDLL(str(_LIBRARY)), _FUNCTION)
    except (OSError, AttributeError):
        return None
    ints, words = np.ctypeslib.ndpointer(np.int32, flags="C"), np.ctypeslib.ndpointer(np.uint8, flags="C")
    reals = np.ctypeslib.ndpointer(np.float32, flags="C")
    function.argtypes = [ctypes.c_int64] * 2 + [ctypes.c_int32] * 2 + [ints] * 4 + [reals] + [words] * 3
    return function


def is_outdated() -> bool:
    """Whether the library of a checkout is older than its source. In an installed package the times say nothing."""
    source = Path(__file__).with_name("match.c")
    checkout = Path(__file__).parents[2] / "pyproject.toml"
    return checkout.exists() and _LIBRARY.exists() and _LIBRARY.stat().st_mtime < source.stat().st_mtime


class WeightedMatcher:
    """Minimum-weight edge sets that explain a syndrome, every shot under its own weights.

    check_matrix: uint8 [n_nodes, n_edges]; one or two nodes an edge, one where it ends on the boundary.
    """

    def __init__(self, check_matrix: sp.csc_matrix) -> None:
        self._checks = check_matrix
        self._n_nodes, self._n_edges = check_matrix.shape
        self._ends = np.full((self._n_edges, 2), -1, np.int32)
        for edge in range(self._n_edges):
            nodes = check_matrix.indices[check_matrix.indptr[edge] : check_matrix.indptr[edge + 1]]
            self._ends[edge, : len(nodes)] = nodes
        # Links: every edge from either end; those from the boundary (here node n_nodes) lead away from it.
        here = np.where(self._ends < 0, self._n_nodes, self._ends).T.ravel()
        order = np.argsort(here, kind="stable")
        self._start = np.searchsorted(here[order], np.arange(self._n_nodes + 2)).astype(np.int32)
        self._near = self._ends[:, ::-1].T.ravel()[order].astype(np.int32)
        self._via = np.tile(np.arange(self._n_edges, dtype=np.int32), 2)[order]

    def solve(self, events: np.ndarray, log_odds: np.ndarray) -> np.ndarray:
        """uint8 [n, n_edges]: the edges taken under weights -log_odds, clipped to +-MAX_LOG_ODDS nats.

        events: uint8 [n, n_nodes]. log_odds: float [m, n_edges]; n / m shots in a row share one line of it.
        Raises ValueError on a value that is not finite, on shapes that do not fit, and where no edge set explains a
        shot: a component without boundary in which an odd number fired.
        """
        shapes, n = (events.shape, log_odds.shape), max(len(log_odds), 1)
        if shapes != ((len(events), self._n_nodes), (len(log_odds), self._n_edges)) or len(events) % n:
            raise ValueError(f"events and log-odds have shapes {shapes}; nodes {self._n_nodes}, edges {self._n_edges}")
        if len(log_odds) == 0 < len(events):
            raise ValueError(f"{len(events)} shots and no log-odds")
        if not np.isfinite(log_odds).all():
            raise ValueError("log-odds hold values that are not finite")
        clipped = np.clip(log_odds, -MAX_LOG_ODDS, MAX_LOG_ODDS, dtype=np.float32)
        selected = np.empty((len(events), self._n_edges), np.uint8)
        shots_per_row = len(events) // n
        for shot in np.nonzero(~self._solve_compiled(events, clipped, selected, shots_per_row))[0]:
            selected[shot] = self._solve_with_pymatching(events[shot], clipped[shot // shots_per_row])
        return selected

    def _solve_with_pymatching(self, events: np.ndarray, log_odds: np.ndarray) -> np.ndarray:
        """One shot by a graph of its own. Likelier edges are taken first: of parallel edges PyMatching keeps one."""
        likelier = (log_odds > 0).astype(np.uint8)
        rest = events.astype(np.uint8) ^ (self._checks @ likelier & 1).astype(np.uint8)
        matching = pymatching.Matching.from_check_matrix(self._checks, weights=np.abs(log_odds).astype(float))
        return np.asarray(matching.decode(rest) ^ likelier)

    def _solve_compiled(
        self, events: np.ndarray, log_odds: np.ndarray, selected: np.ndarray, shots_per_row: int
    ) -> np.ndarray:
        """bool [n]: the shots whose line of `taken` is written."""
        function = compiled_matcher()
        if function is None or len(events) == 0:
            # Nothing fired and no edge is likelier flipped than not: the empty matching is the minimum.
            selected[:] = 0
            quiet: np.ndarray = ~events.any(axis=1) & np.repeat((log_odds <= 0).all(axis=1), shots_per_row)
            return quiet
        done = np.empty(len(events), np.uint8)
        syndrome_buffer = np.array(events, np.uint8, order="C")
        graph = (self._n_nodes, self._n_edges, self._ends, self._start, self._near, self._via)
        if (
            function(
                len(events), shots_per_row, *graph, np.ascontiguousarray(log_odds), syndrome_buffer, selected, done
            )
            != 0
        ):
            done[:] = 0  # no memory for a table of nodes against nodes, which PyMatching does without
        return done.astype(bool)
