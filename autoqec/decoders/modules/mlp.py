"""Dense network from the input detectors to all edges."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from autoqec.decoders.base import ProblemView
from autoqec.decoders.custom_fn import custom

ACTIVATIONS: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "gelu": nn.GELU, "silu": nn.SiLU}


class Mlp(nn.Module):
    """Residual hidden layers and a head, with an optional linear path from inputs to outputs."""

    index: Tensor

    def __init__(self, block: dict[str, Any], head: str, view: ProblemView) -> None:
        super().__init__()
        self.register_buffer("index", view.inputs(block["inputs"]), persistent=False)
        n_inputs, hidden, n_outputs = len(self.index), block["hidden"], view.n_edges
        self.act = ACTIVATIONS[block["activation"]]()
        self.first = nn.Linear(n_inputs, hidden)
        self.hidden = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(block["depth"] - 1))
        self.head = make_head(head, hidden, n_outputs)
        self.skip = nn.Linear(n_inputs, n_outputs, bias=False) if block["skip"] else None
        if self.skip is not None:
            nn.init.zeros_(self.skip.weight)

    def forward(self, detections: Tensor) -> Tensor:
        """Map [batch, n_detectors] to [batch, n_edges]."""
        x = detections[:, self.index]
        h = self.act(self.first(x))
        for layer in self.hidden:
            h = h + self.act(layer(h))
        shift: Tensor = self.head(h)
        return shift if self.skip is None else shift + self.skip(x)


def make_head(kind: str, hidden: int, n_outputs: int) -> nn.Module:
    """Build a head: linear, mlp_small (one hidden layer of half the width) or custom; the last layer starts at zero."""
    if kind == "custom":
        return custom("Head", hidden, n_outputs)
    last = nn.Linear(hidden if kind == "linear" else max(hidden // 2, 1), n_outputs)
    torch.nn.init.zeros_(last.weight)
    torch.nn.init.zeros_(last.bias)
    return last if kind == "linear" else nn.Sequential(nn.Linear(hidden, last.in_features), nn.ReLU(), last)


def build(block: dict[str, Any], head: str, view: ProblemView) -> nn.Module:
    """Build the network of an `mlp` block."""
    return Mlp(block, head, view)
