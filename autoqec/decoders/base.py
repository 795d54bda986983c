"""Base class of predecoders, and the view of the problem that their code receives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from autoqec.contracts.dsl import OutputMode
from autoqec.qec.graph import DecodingGraph, MatchingGraph, TannerGraph
from autoqec.qec.problem import Problem


@dataclass(frozen=True, eq=False)
class ProblemView:
    """Public structure of a decoding problem as tensors, without circuit, seeds or labels.

    Branches read these fields, so their names are part of the interface of editable modules.

    Attributes:
        n_detectors: Number of detectors.
        n_edges: Number of variables of the inner decoder (see `qec.graph`).
        n_observables: Number of logical observables.
        edge_observables: float32 [n_edges, n_observables] of 0 and 1.
        log_odds: float32 [n_edges], the priors.
        edge_detectors: int64 [2, n], (edge, detector) pairs: the detectors that each edge flips.
        in_sector: int64, ids of the detectors that the inner decoder uses (the observable's sector).
        out_of_sector: int64, ids of the other detectors.
        links: int64 [2, n_links], (detector, edge) pairs that some error mechanism flips together.
        link_strength: float32 [n_links], log-odds of the total probability of these error mechanisms.
        fault_detectors: int64 [2, n], (error mechanism, detector) pairs.
        fault_edges: int64 [2, n], (error mechanism, edge) pairs.
        fault_log_odds: float32 [n_mechanisms], priors of the error mechanisms.
        coordinates: float32 [n_detectors, k], detector coordinates; missing ones are 0.
        circuit_sha256: uint8 [32].
    """

    n_detectors: int
    n_edges: int
    n_observables: int
    edge_observables: Tensor
    log_odds: Tensor
    edge_detectors: Tensor
    in_sector: Tensor
    out_of_sector: Tensor
    links: Tensor
    link_strength: Tensor
    fault_detectors: Tensor
    fault_edges: Tensor
    fault_log_odds: Tensor
    coordinates: Tensor
    circuit_sha256: Tensor

    @classmethod
    def of(cls, problem: Problem, output_mode: OutputMode = "soft_priors") -> ProblemView:
        """Build the view of a problem for predecoders of one output mode."""
        graph = problem.variables(output_mode)
        links, strength = detector_edge_links(problem, graph)
        return cls(
            n_detectors=problem.n_detectors,
            n_edges=graph.n_edges,
            n_observables=problem.n_observables,
            edge_observables=torch.from_numpy(graph.observables.astype(np.float32)),
            log_odds=torch.from_numpy(graph.log_odds.astype(np.float32)),
            edge_detectors=edge_detector_pairs(graph),
            in_sector=torch.from_numpy(problem.graph.in_sector.astype(np.int64)),
            out_of_sector=torch.from_numpy(problem.graph.out_of_sector.astype(np.int64)),
            links=torch.from_numpy(links),
            link_strength=torch.from_numpy(strength),
            fault_detectors=pairs(problem.H.T),
            fault_edges=pairs(graph.mechanism_to_edge),
            fault_log_odds=torch.from_numpy(
                np.log(problem.mechanism_probs / (1 - problem.mechanism_probs)).astype(np.float32)
            ),
            coordinates=torch.from_numpy(problem.coordinates.astype(np.float32)),
            circuit_sha256=torch.tensor(list(bytes.fromhex(problem.circuit_sha256)), dtype=torch.uint8),
        )

    @property
    def own(self) -> Tensor:
        """Return `in_sector`; the name that branches of version 1 use."""
        return self.in_sector

    @property
    def other(self) -> Tensor:
        """Return `out_of_sector`; the name that branches of version 1 use."""
        return self.out_of_sector

    def inputs(self, which: str) -> Tensor:
        """Return the ids of the detectors that a predecoder reads, for `other_sector` or `all`.

        Raises:
            ValueError: `other_sector`, but the inner decoder uses every detector.
        """
        if which == "all":
            return torch.arange(self.n_detectors)
        if len(self.out_of_sector) == 0:
            raise ValueError("this code has no other sector: every detector is already matched; use `inputs: all`")
        return self.out_of_sector


def pairs(matrix: sp.spmatrix) -> Tensor:
    """Return int64 [2, n], rows and columns of the nonzero entries, ordered by row."""
    table = sp.csr_matrix(matrix).tocoo()
    return torch.from_numpy(np.stack([table.row, table.col]).astype(np.int64))


def edge_detector_pairs(graph: DecodingGraph) -> Tensor:
    """Return int64 [2, n], (edge, detector) pairs of a graph, ordered by edge."""
    assert isinstance(graph, MatchingGraph | TannerGraph)
    edges, rows = pairs(graph.check_matrix.T)
    return torch.stack([edges, torch.from_numpy(graph.in_sector.astype(np.int64))[rows]])


def detector_edge_links(problem: Problem, graph: DecodingGraph) -> tuple[np.ndarray, np.ndarray]:
    """Return (detector, edge) pairs that some error mechanism flips together, and log-odds of their probability.

    Returns:
        int64 [2, n_links] and float32 [n_links].
    """
    weighted = sp.csr_matrix(problem.H.astype(np.float64).multiply(problem.mechanism_probs[None, :]))
    together = sp.coo_matrix(weighted @ graph.mechanism_to_edge.astype(np.float64))
    probability = np.clip(together.data, 1e-12, 0.5)
    ends = np.stack([together.row, together.col]).astype(np.int64)
    return ends, np.log(probability / (1 - probability)).astype(np.float32)


class Predecoder(nn.Module):
    """A network that maps detection events to log-odds for the inner decoder.

    The untrained output is the prior exactly, so an untrained predecoder decodes like its inner decoder. The hash of
    the circuit is stored with the weights, so that a checkpoint is not used with another circuit.

    Args:
        body: Maps float32 [batch, n_detectors] to a shift of the log-odds, [batch, n_edges].
        view: The problem's structure.
        output_mode: Whether an edge is a variable of the inner decoder or (hard_flip) an error mechanism.
        gate: The gate in nats, see `decoders.gating`; the network itself ignores it.
    """

    prior: Tensor
    circuit_sha256: Tensor

    def __init__(self, body: nn.Module, view: ProblemView, output_mode: OutputMode, gate: float | None = None) -> None:
        super().__init__()
        self.body = body
        self.gate = gate
        self.output_mode: OutputMode = output_mode
        self.register_buffer("prior", view.log_odds.clone(), persistent=False)
        self.register_buffer("circuit_sha256", view.circuit_sha256.clone())

    def forward(self, detections: Tensor) -> Tensor:
        """Map float32 detection events, [batch, n_detectors], to log-odds at the env's target p, [batch, n_edges]."""
        shift: Tensor = self.body(detections)
        if shift.shape != (len(detections), len(self.prior)):
            raise ValueError(
                f"the predecoder returned shape {tuple(shift.shape)}, expected {(len(detections), len(self.prior))}"
            )
        return self.prior + shift
