"""Message passing between detectors and edges of the decoding graph.

A detector and an edge are linked if some error mechanism flips both; through these links, events of the other sector
change the edges of this one. Weights are shared over links. Attribute names are keys of checkpoints.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from autoqec.decoders.base import ProblemView
from autoqec.decoders.custom_fn import custom
from autoqec.decoders.modules.mlp import make_head
from autoqec.decoders.modules.scatter import degree, scatter_max, scatter_softmax, scatter_sum

ATTENTION = ("attention", "edge_attention", "geometric_attention")


class MessageFn(nn.Module):
    """Message along each link, [batch, n_links, hidden], by kind.

    mlp: relu(source + target + link). gated_mlp: with a sigmoid gate. gru_cell: as mlp, with a GRU as update.
    residual_mlp: plus a linear map of the source. normalized_mlp: layer norm before the relu. attention: softmax over
    the links of a target by query and key; edge_attention adds the link's strength to the logits, geometric_attention
    subtracts the squared distance. custom: class MessageFn of the branch.
    """

    def __init__(self, kind: str, hidden: int, edge_features: bool) -> None:
        super().__init__()
        self.kind = kind
        self.own = custom("MessageFn", hidden) if kind == "custom" else None
        width = 2 * hidden if kind == "gated_mlp" else hidden
        self.source = nn.Linear(hidden, width)
        self.target = nn.Linear(hidden, width, bias=False)
        self.link = nn.Linear(1, width, bias=False) if edge_features else None
        self.through = nn.Linear(hidden, hidden, bias=False) if kind == "residual_mlp" else None
        self.norm = nn.LayerNorm(hidden) if kind == "normalized_mlp" else None
        self.value = nn.Linear(hidden, hidden) if kind in ATTENTION else None
        self.ear = nn.Linear(1, 1, bias=False) if kind == "edge_attention" else None
        self.reach = nn.Parameter(torch.zeros(())) if kind == "geometric_attention" else None

    def forward(
        self, source: Tensor, target: Tensor, src: Tensor, dst: Tensor, strength: Tensor, distance: Tensor
    ) -> Tensor:
        """Compute messages from nodes `src` to nodes `dst`.

        Args:
            source: [batch, n_sources, hidden].
            target: [batch, n_targets, hidden].
            src: int64 [n_links].
            dst: int64 [n_links].
            strength: [n_links], scaled log-odds of the link.
            distance: [n_links], squared distance of the link.
        """
        if self.own is not None:
            own: Tensor = self.own(source[:, src], target[:, dst], strength[:, None])
            return own
        if self.value is not None:
            return self._attend(source, target, src, dst, strength, distance)
        message = self.source(source)[:, src] + self.target(target)[:, dst]
        if self.link is not None:
            message = message + self.link(strength[:, None])
        if self.kind == "gated_mlp":
            message, gate = message.chunk(2, dim=-1)
            return torch.relu(message) * torch.sigmoid(gate)
        if self.norm is not None:
            message = self.norm(message)
        message = torch.relu(message)
        return message if self.through is None else message + self.through(source)[:, src]

    def _attend(
        self, source: Tensor, target: Tensor, src: Tensor, dst: Tensor, strength: Tensor, distance: Tensor
    ) -> Tensor:
        assert self.value is not None
        key, query = self.source(source)[:, src], self.target(target)[:, dst]
        logits = (key * query).sum(dim=-1, keepdim=True) / key.shape[-1] ** 0.5
        if self.ear is not None:
            logits = logits + self.ear(strength[:, None])
        if self.reach is not None:
            logits = logits - F.softplus(self.reach) * distance[:, None]
        message = self.value(source)[:, src]
        if self.link is not None:
            message = message + self.link(strength[:, None])
        return scatter_softmax(logits, dst, target.shape[1]) * message


class Aggregation(nn.Module):
    """Reduction of messages, [batch, n_links, hidden], to targets, [batch, n, hidden]; zero without links."""

    def __init__(self, kind: str, hidden: int) -> None:
        super().__init__()
        self.kind = kind
        self.own = custom("Aggregation", hidden) if kind == "custom" else None
        self.gate = nn.Linear(hidden, hidden) if kind == "gated_sum" else None
        heads = {"attention_pool": 1, "set_transformer": 2}.get(kind, 0)
        self.seeds = nn.Linear(hidden, heads, bias=False) if heads else None
        self.mix = nn.Linear(hidden, hidden) if kind == "set_transformer" else None

    def forward(self, message: Tensor, dst: Tensor, n: int) -> Tensor:
        """Reduce the messages of each of n targets; dst: int64 [n_links]."""
        if self.own is not None:
            own: Tensor = self.own(message, dst, n)
            return own
        if self.kind == "max":
            return scatter_max(message, dst, n)
        if self.kind == "mean":
            return scatter_sum(message, dst, n) / degree(dst, n)[None, :, None]
        if self.gate is not None:
            message = message * torch.sigmoid(self.gate(message))
        if self.seeds is None:
            return scatter_sum(message, dst, n)
        shares = scatter_softmax(self.seeds(message), dst, n)  # one column per head
        pooled = scatter_sum(message * shares.mean(dim=-1, keepdim=True), dst, n)
        # Pooling by seeds, then a residual mix: the last block of a set transformer (Lee et al. 2019).
        return pooled if self.mix is None else pooled + torch.relu(self.mix(pooled))


class Norm(nn.Module):
    """Normalization: none, layer (over channels), batch (over shots and nodes) or graph_norm (Cai et al. 2021).

    edge_norm acts on messages instead: each is divided by sqrt(degree of source x degree of target).
    """

    def __init__(self, kind: str, hidden: int) -> None:
        super().__init__()
        self.layer = nn.LayerNorm(hidden) if kind == "layer" else None
        self.batch = nn.BatchNorm1d(hidden) if kind == "batch" else None
        self.keep = nn.Parameter(torch.ones(hidden)) if kind == "graph_norm" else None
        self.scale = nn.Parameter(torch.ones(hidden)) if kind == "graph_norm" else None

    def forward(self, x: Tensor) -> Tensor:
        """Normalize [batch, n, hidden]."""
        if self.layer is not None:
            x = self.layer(x)
        elif self.batch is not None:
            x = self.batch(x.flatten(0, 1)).view_as(x)
        elif self.keep is not None and self.scale is not None:
            x = x - self.keep * x.mean(dim=1, keepdim=True)
            x = self.scale * x / torch.sqrt(x.square().mean(dim=1, keepdim=True) + 1e-5)
        return x


class Messages(nn.Module):
    """One direction of a message-passing layer, from sources to targets."""

    def __init__(self, block: dict[str, Any]) -> None:
        super().__init__()
        hidden = block["hidden"]
        self.residual, self.edge_norm = block["residual"], block["normalization"] == "edge_norm"
        self.message = MessageFn(block["message_fn"], hidden, block["edge_features"])
        self.aggregate = Aggregation(block["aggregation"], hidden)
        gru = block["message_fn"] == "gru_cell"
        self.cell = nn.GRUCell(hidden, hidden) if gru else None
        self.update = None if gru else nn.Linear(2 * hidden, hidden)
        self.norm = Norm(block["normalization"], hidden)

    def forward(
        self, source: Tensor, target: Tensor, src: Tensor, dst: Tensor, strength: Tensor, distance: Tensor
    ) -> Tensor:
        """Return the updated targets, [batch, n_targets, hidden]; see `MessageFn.forward`."""
        message = self.message(source, target, src, dst, strength, distance)
        if self.edge_norm:
            both = degree(src, source.shape[1])[src] * degree(dst, target.shape[1])[dst]
            message = message / both.sqrt()[:, None]
        pooled = self.aggregate(message, dst, target.shape[1])
        if self.cell is not None:
            update = self.cell(pooled.flatten(0, 1), target.flatten(0, 1)).view_as(target)
        else:
            assert self.update is not None
            update = torch.relu(self.update(torch.cat([target, pooled], dim=-1)))
        update = self.norm(update)
        return target + update if self.residual else update


class Gnn(nn.Module):
    """Layers of messages from detectors to edges and back; a head maps edge features to log-odds."""

    index: Tensor
    detector_of: Tensor
    edge_of: Tensor
    strength: Tensor
    distance: Tensor
    log_odds: Tensor

    def __init__(self, block: dict[str, Any], head: str, view: ProblemView) -> None:
        super().__init__()
        index = view.inputs(block["inputs"])
        position = torch.full((view.n_detectors,), -1, dtype=torch.long)
        position[index] = torch.arange(len(index))
        kept = position[view.links[0]] >= 0
        fixed = {
            "index": index,
            "detector_of": position[view.links[0][kept]],
            "edge_of": view.links[1][kept],
            "strength": view.link_strength[kept] / 5.0,  # about unit scale
            "distance": link_distance(view)[kept],
            "log_odds": view.log_odds / 5.0,
        }
        for name, value in fixed.items():
            self.register_buffer(name, value, persistent=False)
        hidden = block["hidden"]
        self.detector_in = nn.Linear(1, hidden)
        self.edge_in = nn.Linear(1, hidden)
        self.to_edges = nn.ModuleList(Messages(block) for _ in range(block["layers"]))
        self.to_detectors = nn.ModuleList(Messages(block) for _ in range(block["layers"] - 1))
        self.head = make_head(head, hidden, 1)

    def forward(self, detections: Tensor) -> Tensor:
        """Map [batch, n_detectors] to [batch, n_edges]."""
        detectors = self.detector_in(detections[:, self.index, None])
        edges = self.edge_in(self.log_odds[:, None]).expand(len(detections), -1, -1)
        links = (self.strength, self.distance)
        for layer, to_edges in enumerate(self.to_edges):
            edges = to_edges(detectors, edges, self.detector_of, self.edge_of, *links)
            if layer < len(self.to_detectors):
                back = self.to_detectors[layer]
                detectors = back(edges, detectors, self.edge_of, self.detector_of, *links)
        shift: Tensor = self.head(edges)
        return shift[..., 0]


def link_distance(view: ProblemView) -> Tensor:
    """Return float32 [n_links], squared distances from a detector to the centre of the detectors linked to its edge."""
    detectors, edges = view.links
    where = view.coordinates[detectors]
    middle = torch.zeros(view.n_edges, where.shape[1]).index_add(0, edges, where)
    middle = middle / degree(edges, view.n_edges)[:, None]
    return (where - middle[edges]).square().sum(dim=1)


def build(block: dict[str, Any], head: str, view: ProblemView) -> nn.Module:
    """Build the network of a `gnn` block."""
    return Gnn(block, head, view)
