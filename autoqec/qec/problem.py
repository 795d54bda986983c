"""Decoding problems: an env at one error rate as circuit, detector error model and decoding graph."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import scipy.sparse as sp
import stim

from autoqec.contracts.dsl import OutputMode
from autoqec.contracts.env import EnvSpec
from autoqec.errors import UsageError
from autoqec.qec.codes import Source, build_source, circuit_sha256
from autoqec.qec.graph import (
    Component,
    DecodingGraph,
    MatchingGraph,
    TannerGraph,
    matching_graph,
    sector_graph,
    tanner_graph,
)

TARGET_POINT: Any = object()  # default that stands for the env's target; None is a valid error rate (the file's noise)


@dataclass(frozen=True, eq=False)
class Problem:
    """One env at one physical error rate.

    Attributes:
        env: The env.
        p: The physical error rate; None where the env's file or a given model has its own noise.
        source: The circuit, or the detector error model if the env has no circuit.
        dem: The flattened detector error model.
        mechanism_probs: float64 [n_mechanisms], probabilities of the error mechanisms.
        H: uint8 csr [n_detectors, n_mechanisms].
        L: uint8 csr [n_observables, n_mechanisms].
        graph: What the env's inner decoder decodes.
    """

    env: EnvSpec
    p: float | None
    source: Source
    dem: stim.DetectorErrorModel
    mechanism_probs: np.ndarray
    H: sp.csr_matrix
    L: sp.csr_matrix
    graph: DecodingGraph

    @classmethod
    def from_env(cls, env: EnvSpec, p: float | None = TARGET_POINT) -> Problem:
        """Build the problem of an env; the same one for the same arguments, since it cannot be changed.

        Args:
            env: The env.
            p: Physical error rate; the env's target by default, None for the noise of the env's file.

        Raises:
            UsageError: The circuit cannot be built or decoded, or its noise does not decompose into a matching graph
                although the env asks for matching.
        """
        return _build(env, env.target if p is TARGET_POINT else p)

    def with_dem(self, dem: stim.DetectorErrorModel) -> Problem:
        """Return the same env with another detector error model, for example of a device or of another error rate."""
        return self._from_dem(self.env, None, self.source, dem)

    @cached_property
    def given(self) -> Problem:
        """Return the problem with the model of the env's file, whatever the inner decoder's weights are from."""
        return self if not self.env.code.own_shots else self.with_dem(error_model(self.source, self.env))

    @cached_property
    def estimated(self) -> Problem:
        """Return the problem with the model that was estimated from recorded training shots.

        Raises:
            UsageError: The env has no recorded shots, or the estimate is of another circuit.
        """
        return self.with_dem(self.env.code.estimated_model(self.env, self.source))

    def with_other_dem(self, dem: stim.DetectorErrorModel, in_sector: np.ndarray | None = None) -> Problem:
        """Return the problem of a detector error model of another circuit, with the coordinates in the model.

        Args:
            dem: The model.
            in_sector: bool [n_detectors], of a part of a circuit, see `sector_mask` of `matching_graph`.
        """
        return self._from_dem(self.env, None, dem, dem, in_sector)

    @classmethod
    def _from_dem(
        cls,
        env: EnvSpec,
        p: float | None,
        source: Source,
        dem: stim.DetectorErrorModel,
        in_sector: np.ndarray | None = None,
    ) -> Problem:
        dem = dem.flattened()
        probs, components = read_mechanisms(dem)
        H, L = incidence_matrices(components, dem.num_detectors, dem.num_observables)
        graph: DecodingGraph
        if env.backend == "mwpm":
            check_graphlike(components, env.name)
            graph = matching_graph(components, probs, dem.num_detectors, dem.num_observables, env.name, in_sector)
        else:
            check_observables_detectable(H, L, env.name)
            graph = tanner_graph(H, L, probs, env.name)
            if env.bp.sector is not None:
                graph = sector_graph(graph, sector_mask(source, dem.num_detectors, env), env.name)
        return cls(env, p, source, dem, probs, H, L, graph)

    def variables(self, output_mode: OutputMode) -> DecodingGraph:
        """Return the graph whose variables a predecoder outputs log-odds of; in hard_flip, all error mechanisms."""
        return self.graph if output_mode == "soft_priors" else self.mechanisms

    @cached_property
    def mechanisms(self) -> TannerGraph:
        """Return the Tanner graph of all error mechanisms over all detectors."""
        return tanner_graph(self.H, self.L, self.mechanism_probs, self.env.name)

    @property
    def matching_graph(self) -> MatchingGraph:
        """Return the graph that matching runs on; UsageError if the env's inner decoder is not matching."""
        if not isinstance(self.graph, MatchingGraph):
            raise UsageError(
                f"backend `{self.env.backend}` decodes without a matching graph",
                location=f"env `{self.env.name}`",
                hint="choose `backend: mwpm` for a code that decomposes into a graph",
            )
        return self.graph

    @property
    def circuit(self) -> stim.Circuit:
        """Return the circuit; UsageError if the env consists of a detector error model alone."""
        if isinstance(self.source, stim.DetectorErrorModel):
            raise UsageError("the env has a detector error model but no circuit", location=f"env `{self.env.name}`")
        return self.source

    @property
    def n_detectors(self) -> int:
        """Return the number of detectors."""
        return self.H.shape[0]

    @property
    def n_observables(self) -> int:
        """Return the number of logical observables."""
        return self.L.shape[0]

    @property
    def n_mechanisms(self) -> int:
        """Return the number of error mechanisms of the DEM."""
        return len(self.mechanism_probs)

    @property
    def rounds(self) -> int:
        """Return the number of QEC rounds."""
        return self.env.code.rounds

    @cached_property
    def circuit_sha256(self) -> str:
        """Return the SHA-256 of the source's text."""
        return circuit_sha256(self.source)

    @cached_property
    def coordinates(self) -> np.ndarray:
        """Return float64 [n_detectors, k], detector coordinates; missing ones are 0."""
        return detector_coordinates(self.source, self.n_detectors)


def detector_coordinates(source: Source, n_detectors: int) -> np.ndarray:
    """Return float64 [n_detectors, k], coordinates of the first `n_detectors` detectors; missing ones are 0."""
    coordinates = source.get_detector_coordinates()
    table = np.zeros((n_detectors, max((len(value) for value in coordinates.values()), default=0)))
    for detector, value in coordinates.items():
        if detector < n_detectors:
            table[detector, : len(value)] = value
    return table


def sector_mask(source: Source, n_detectors: int, env: EnvSpec) -> np.ndarray:
    """Return bool [n_detectors], the detectors whose last coordinate is the env's `bp.sector`.

    Raises:
        UsageError: No detector has this coordinate; the message lists the existing values.
    """
    table = detector_coordinates(source, n_detectors)
    last = table[:, -1] if table.shape[1] else np.full(n_detectors, np.nan)
    matches: np.ndarray = last == env.bp.sector
    if not matches.any():
        known = ", ".join(f"{value:g}" for value in np.unique(last)[:8]) if table.shape[1] else "none"
        raise UsageError(
            f"no detector has {env.bp.sector:g} as its last coordinate; the values are {known}",
            location=f"env `{env.name}`, field `bp.sector`",
            hint="choose one of these values, or remove `sector`",
        )
    return matches


def error_model(source: Source, env: EnvSpec) -> stim.DetectorErrorModel:
    """Return the detector error model for the env's inner decoder; for matching, decomposed into graph-like parts.

    Disjoint errors of one channel are approximated as independent (stim's `approximate_disjoint_errors`).

    Raises:
        UsageError: The model does not decompose although the env asks for matching.
    """
    if isinstance(source, stim.DetectorErrorModel):
        return source
    if env.backend != "mwpm":
        return source.detector_error_model(approximate_disjoint_errors=True)
    try:
        return source.detector_error_model(decompose_errors=True, approximate_disjoint_errors=True)
    except ValueError as error:
        raise UsageError(
            "the detector error model cannot be decomposed into a matching graph "
            f"({str(error).strip().splitlines()[0]})",
            location=f"env `{env.name}`, backend `mwpm`",
            hint="choose `backend: bposd`, which needs no graph",
        ) from error


def read_mechanisms(dem: stim.DetectorErrorModel) -> tuple[np.ndarray, list[tuple[Component, ...]]]:
    """Read probabilities, float64 [n_mechanisms], and the parts of every error mechanism, in the DEM's order."""
    probs: list[float] = []
    mechanisms: list[tuple[Component, ...]] = []
    for instruction in dem:
        if instruction.type != "error":
            continue
        parts: list[Component] = []
        detectors: set[int] = set()  # a detector that occurs twice is not flipped
        mask = 0
        for target in [*instruction.targets_copy(), stim.target_separator()]:
            if target.is_separator():
                parts.append((tuple(sorted(detectors)), mask))
                detectors, mask = set(), 0
            elif target.is_relative_detector_id():
                detectors ^= {target.val}
            else:
                mask ^= 1 << target.val
        probs.append(instruction.args_copy()[0])
        mechanisms.append(tuple(parts))
    return np.array(probs), mechanisms


def check_graphlike(mechanisms: list[tuple[Component, ...]], name: str) -> None:
    """Raise UsageError if a part of an error mechanism flips more than two detectors."""
    obstacle = matching_obstacle(mechanisms)
    if obstacle is not None:
        hint = "choose `backend: bposd`, which needs no graph"
        raise UsageError(obstacle, location=f"env `{name}`, backend `mwpm`", hint=hint)


def matching_obstacle(mechanisms: list[tuple[Component, ...]]) -> str | None:
    """Name the first part of an error mechanism that flips more than two detectors; None if matching applies."""
    hyperedge = next((part[0] for parts in mechanisms for part in parts if len(part[0]) > 2), None)
    if hyperedge is None:
        return None
    detectors = " ".join(f"D{detector}" for detector in hyperedge)
    return f"an error mechanism flips {len(hyperedge)} detectors at once ({detectors})"


def check_observables_detectable(H: sp.csr_matrix, L: sp.csr_matrix, name: str) -> None:
    """Raise UsageError if no error mechanism flips both a detector and an observable: nothing could be decoded."""
    if not (np.diff(H.tocsc().indptr) * np.diff(L.tocsc().indptr)).any():
        raise UsageError(
            "no detectable error flips an observable",
            location=f"env `{name}`",
            hint="check the logical operators of the code",
        )


def incidence_matrices(
    mechanisms: list[tuple[Component, ...]], n_detectors: int, n_observables: int
) -> tuple[sp.csr_matrix, sp.csr_matrix]:
    """Return H, uint8 [n_detectors, n_mechanisms], and L, uint8 [n_observables, n_mechanisms], both modulo 2."""
    h_rows, h_columns, l_rows, l_columns = [], [], [], []
    for mechanism, parts in enumerate(mechanisms):
        flipped: set[int] = set()
        mask = 0
        for detectors, observables in parts:
            flipped ^= set(detectors)
            mask ^= observables
        h_rows += sorted(flipped)
        h_columns += [mechanism] * len(flipped)
        flipped_observables = [bit for bit in range(n_observables) if mask >> bit & 1]
        l_rows += flipped_observables
        l_columns += [mechanism] * len(flipped_observables)
    n = len(mechanisms)
    H = sp.csr_matrix((np.ones(len(h_rows), np.uint8), (h_rows, h_columns)), (n_detectors, n))
    L = sp.csr_matrix((np.ones(len(l_rows), np.uint8), (l_rows, l_columns)), (n_observables, n))
    return H, L


@lru_cache(maxsize=8)  # a process works on one env, at its target and a few other error rates
def _build(env: EnvSpec, p: float | None) -> Problem:
    source = build_source(env, p)
    own = env.code.decoder_model(env, source)
    return Problem._from_dem(env, p, source, error_model(source, env) if own is None else own)
