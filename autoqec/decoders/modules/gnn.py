"""Message passing between detectors and edges of the matching graph.

A detector and an edge are linked where one mechanism touches both: that is how an error seen in the
other sector speaks about this one. Weights are shared over links; batches go through gather and scatter.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from autoqec.decoders.base import ProblemView
from autoqec.decoders.modules.mlp import make_head


class Messages(nn.Module):
    """One direction of a layer: sources speak to targets along links. [batch, n, hidden] each."""

    def __init__(self, block: dict[str, Any]) -> None:
        super().__init__()
        hidden = block["hidden"]
        self.message_fn, self.aggregation = block["message_fn"], block["aggregation"]
        self.residual = block["residual"]
        width = 2 * hidden if self.message_fn == "gated_mlp" else hidden
        self.source = nn.Linear(hidden, width)
        self.target = nn.Linear(hidden, width, bias=False)
        self.link = nn.Linear(1, width, bias=False) if block["edge_features"] else None
        self.update = nn.Linear(2 * hidden, hidden)
        self.norm = nn.LayerNorm(hidden) if block["normalization"] == "layer" else nn.Identity()

    def forward(self, source: Tensor, target: Tensor, src: Tensor, dst: Tensor, strength: Tensor) -> Tensor:
        message = self.source(source)[:, src] + self.target(target)[:, dst]
        if self.link is not None:
            message = message + self.link(strength[:, None])
        if self.message_fn == "gated_mlp":
            message, gate = message.chunk(2, dim=-1)
            message = torch.relu(message) * torch.sigmoid(gate)
        else:
            message = torch.relu(message)
        heard = aggregate(message, dst, target.shape[1], self.aggregation)
        update = self.norm(torch.relu(self.update(torch.cat([target, heard], dim=-1))))
        return target + update if self.residual else update


def aggregate(message: Tensor, dst: Tensor, n: int, how: str) -> Tensor:
    """[batch, n_links, hidden] -> [batch, n, hidden]; a target without links hears zero."""
    out = message.new_zeros(message.shape[0], n, message.shape[2])
    if how == "max":
        index = dst[None, :, None].expand_as(message)
        return out.scatter_reduce(1, index, message, reduce="amax", include_self=True)  # messages are >= 0
    out = out.index_add(1, dst, message)
    if how == "mean":
        count = torch.bincount(dst, minlength=n).clamp(min=1).to(message.dtype)
        out = out / count[None, :, None]
    return out


class Gnn(nn.Module):
    index: Tensor
    detector_of: Tensor
    edge_of: Tensor
    strength: Tensor
    log_odds: Tensor

    def __init__(self, block: dict[str, Any], head: str, view: ProblemView) -> None:
        super().__init__()
        index = view.inputs(block["inputs"])
        position = torch.full((view.n_detectors,), -1, dtype=torch.long)
        position[index] = torch.arange(len(index))
        heard = position[view.links[0]] >= 0
        self.register_buffer("index", index, persistent=False)
        self.register_buffer("detector_of", position[view.links[0][heard]], persistent=False)
        self.register_buffer("edge_of", view.links[1][heard], persistent=False)
        self.register_buffer("strength", view.link_strength[heard] / 5.0, persistent=False)  # about unit scale
        self.register_buffer("log_odds", view.log_odds / 5.0, persistent=False)
        hidden = block["hidden"]
        self.detector_in = nn.Linear(1, hidden)
        self.edge_in = nn.Linear(1, hidden)
        self.to_edges = nn.ModuleList(Messages(block) for _ in range(block["layers"]))
        self.to_detectors = nn.ModuleList(Messages(block) for _ in range(block["layers"] - 1))
        self.head = make_head(head, hidden, 1)

    def forward(self, detections: Tensor) -> Tensor:
        detectors = self.detector_in(detections[:, self.index, None])
        edges = self.edge_in(self.log_odds[:, None]).expand(len(detections), -1, -1)
        for layer, to_edges in enumerate(self.to_edges):
            edges = to_edges(detectors, edges, self.detector_of, self.edge_of, self.strength)
            if layer < len(self.to_detectors):
                back = self.to_detectors[layer]
                detectors = back(edges, detectors, self.edge_of, self.detector_of, self.strength)
        shift: Tensor = self.head(edges)
        return shift[..., 0]


def build(block: dict[str, Any], head: str, view: ProblemView) -> nn.Module:
    return Gnn(block, head, view)
