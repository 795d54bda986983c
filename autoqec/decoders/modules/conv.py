"""Space-time convolution on the lattice of detectors; every edge reads the cells of the detectors it is linked to."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from autoqec.decoders.base import ProblemView
from autoqec.decoders.custom_fn import custom
from autoqec.decoders.modules.scatter import degree, scatter_sum


class Conv(nn.Module):
    """Convolutional layers, then one linear readout per edge."""

    index: Tensor
    cell_of: Tensor
    link_cell: Tensor
    link_edge: Tensor
    share: Tensor

    def __init__(self, block: dict[str, Any], head: str, view: ProblemView) -> None:
        super().__init__()
        index = view.inputs(block["inputs"])
        cells, self.shape = lattice(view.coordinates)
        fixed = {
            "index": index,
            "cell_of": cells[index],
            "link_cell": cells[view.links[0]],
            "link_edge": view.links[1],
            "share": 1 / degree(view.links[1], view.n_edges),
        }
        for name, value in fixed.items():
            self.register_buffer(name, value, persistent=False)
        channels, kernel = block["channels"], block["kernel"]
        self.n_edges, self.residual = view.n_edges, block["residual"]
        # Channel 0 holds the detection events, channel 1 marks cells with a detector.
        self.first = nn.Conv3d(2, channels, kernel, padding=kernel // 2)
        self.rest = nn.ModuleList(
            nn.Conv3d(channels, channels, kernel, padding=kernel // 2) for _ in range(block["layers"] - 1)
        )
        wide = channels if head == "linear" else max(channels // 2, 1)
        # Each edge has its own readout, so a head of this architecture reduces the features before the readout.
        squeezed = {"linear": None, "mlp_small": nn.Linear(channels, wide)}
        self.squeeze = custom("Head", channels, wide) if head == "custom" else squeezed[head]
        self.read = nn.Parameter(torch.zeros(view.n_edges, wide))
        self.bias = nn.Parameter(torch.zeros(view.n_edges))

    def forward(self, detections: Tensor) -> Tensor:
        """Map [batch, n_detectors] to [batch, n_edges]."""
        batch, size = len(detections), self.shape[0] * self.shape[1] * self.shape[2]
        grid = detections.new_zeros(batch, 2, size)
        grid[:, 0] = grid[:, 0].index_add(1, self.cell_of, detections[:, self.index])
        grid[:, 1, self.cell_of] = 1.0
        x = torch.relu(self.first(grid.view(batch, 2, *self.shape)))
        for layer in self.rest:
            y = torch.relu(layer(x))
            x = x + y if self.residual else y
        cells = x.flatten(2).transpose(1, 2)[:, self.link_cell]
        features = scatter_sum(cells, self.link_edge, self.n_edges) * self.share[None, :, None]
        if self.squeeze is not None:
            features = torch.relu(self.squeeze(features))
        return (features * self.read).sum(dim=-1) + self.bias


def lattice(coordinates: Tensor) -> tuple[Tensor, tuple[int, int, int]]:
    """Return the cell of each detector, int64 [n_detectors], and the lattice's size; the third coordinate is time.

    Raises:
        ValueError: The detectors have no usable coordinates.
    """
    if coordinates.shape[1] < 2 or not bool((coordinates != 0).any()):
        raise ValueError("`conv` needs detector coordinates (x, y, t); this circuit has none; use `mlp` or `gnn`")
    where = coordinates[:, :3]
    if where.shape[1] == 2:
        where = torch.cat([where[:, :1], torch.zeros(len(where), 1), where[:, 1:]], dim=1)
    axes = [torch.unique(where[:, axis], return_inverse=True) for axis in (2, 0, 1)]
    sizes = tuple(len(values) for values, _ in axes)
    t, x, y = (inverse for _, inverse in axes)
    return (t * sizes[1] + x) * sizes[2] + y, (sizes[0], sizes[1], sizes[2])


def build(block: dict[str, Any], head: str, view: ProblemView) -> nn.Module:
    """Build the network of a `conv` block."""
    return Conv(block, head, view)
