"""What every predecoder is, and the view of the problem that its code may see."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor, nn

from autoqec.contracts.dsl import OutputMode
from autoqec.qec.graph import DecodingGraph
from autoqec.qec.problem import Problem


@dataclass(frozen=True, eq=False)
class ProblemView:
    """Public structure of a problem as tensors: no circuit, no seeds, no labels.

    log_odds: float32 [n_edges], the priors; an edge is a variable of the backend (see qec.graph).
    own, other: int64 detector ids of the observable's sector and of the rest.
    links: int64 [2, n_links], (detector, edge) pairs that some mechanism touches together;
    link_strength: float32 [n_links], log-odds of that pair's total probability.
    fault_detectors, fault_edges: int64 [2, n], (mechanism, detector) and (mechanism, edge) pairs;
    fault_log_odds: float32 [n_faults]. coordinates: float32 [n_detectors, k]. circuit_sha256: 32 bytes as uint8.
    """

    n_detectors: int
    n_edges: int
    n_observables: int
    edge_observables: Tensor
    log_odds: Tensor
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
        graph = problem.variables(output_mode)
        links, strength = detector_edge_links(problem, graph)
        return cls(
            n_detectors=problem.n_detectors,
            n_edges=graph.n_edges,
            n_observables=problem.n_observables,
            edge_observables=torch.from_numpy(graph.observables.astype(np.float32)),
            log_odds=torch.from_numpy(graph.log_odds.astype(np.float32)),
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

    def inputs(self, which: str) -> Tensor:
        """Detector ids a predecoder reads: `other_sector` or `all`."""
        if which == "all":
            return torch.arange(self.n_detectors)
        if len(self.out_of_sector) == 0:
            raise ValueError("this code has no other sector: every detector is already matched; use `inputs: all`")
        return self.out_of_sector


def pairs(matrix: sp.spmatrix) -> Tensor:
    """int64 [2, n]: rows and columns of the entries that are not zero, by row."""
    table = sp.csr_matrix(matrix).tocoo()
    return torch.from_numpy(np.stack([table.row, table.col]).astype(np.int64))


def detector_edge_links(problem: Problem, graph: DecodingGraph) -> tuple[np.ndarray, np.ndarray]:
    """(detector, edge) pairs touched by a common mechanism, and log-odds of their total probability."""
    touched = sp.csr_matrix(problem.H.astype(np.float64).multiply(problem.mechanism_probs[None, :]))
    together = sp.coo_matrix(touched @ graph.mechanism_to_edge.astype(np.float64))
    probability = np.clip(together.data, 1e-12, 0.5)
    ends = np.stack([together.row, together.col]).astype(np.int64)
    return ends, np.log(probability / (1 - probability)).astype(np.float32)


class Predecoder(nn.Module):
    """float32 detection events [batch, n_detectors] -> log-odds [batch, n_edges] under the env's target p.

    What an edge is, `output_mode` says: a variable of the backend, or a mechanism to flip.

    The output starts at the priors exactly, so an untrained predecoder decodes as its backend does.
    The circuit it was made for travels in its weights, so that it can't be mistaken for another's.
    """

    prior: Tensor
    circuit_sha256: Tensor

    def __init__(self, body: nn.Module, view: ProblemView, output_mode: OutputMode) -> None:
        super().__init__()
        self.body = body
        self.output_mode: OutputMode = output_mode
        self.register_buffer("prior", view.log_odds.clone(), persistent=False)
        self.register_buffer("circuit_sha256", view.circuit_sha256.clone())

    def forward(self, detections: Tensor) -> Tensor:
        shift: Tensor = self.body(detections)
        if shift.shape != (len(detections), len(self.prior)):
            raise ValueError(
                f"the predecoder returned shape {tuple(shift.shape)}, expected {(len(detections), len(self.prior))}"
            )
        return self.prior + shift
