"""Translation-invariant network: every edge reads the detection events in a window around it, with shared weights.

Weights belong to classes of edges: the edges whose detectors have the same displacement, or that lead to the same side
of the boundary. No weight refers to a position, so a checkpoint fits any distance and any number of rounds.
"""

from __future__ import annotations

import math
from itertools import product
from typing import Any

import torch
from torch import Tensor, nn

from autoqec.decoders.base import ProblemView
from autoqec.decoders.modules.mlp import make_head

Point = tuple[int, ...]  # x, y, time in lattice steps
RESOLUTION = 1000  # coordinates are compared in thousandths
MAX_SPARSE_SHARE = 0.4  # of windows with events; evaluating all of them takes half as long per window (d=7, p=.005)
WINDOWS_PER_PASS = 16_384  # bounds memory, and keeps activations near the cache


class EdgeClass(nn.Module):
    """The first layer and the head of one class of edges.

    The weights cover every lattice point of the window, whether a detector lies there or not, so that their shape
    depends on the class alone.

    Args:
        hidden: Width of the first layer.
        head: Kind of head.
        edges: int64 [m], the edges of the class.
        windows: int64 [m, n_points], the detector at each point of each edge's window; n_detectors for none.
        n_detectors: Number of detectors.
        log_odds: float32 [m], the priors.
        muted: Detectors whose weights are zero at first.
    """

    edges: Tensor
    used: Tensor
    columns: Tensor
    surroundings: Tensor

    def __init__(
        self,
        hidden: int,
        head: str,
        edges: Tensor,
        windows: Tensor,
        n_detectors: int,
        log_odds: Tensor,
        muted: Tensor,
    ) -> None:
        super().__init__()
        n_points = windows.shape[1]
        self.events = nn.Parameter(torch.empty(n_points, hidden).uniform_(-1, 1) / math.sqrt(n_points))
        self.quiet = nn.Linear(n_points + 1, hidden)
        self.head = make_head(head, hidden, 1)
        with torch.no_grad():
            self.events[torch.isin(windows, muted).any(dim=0)] = 0.0
        exists = windows < n_detectors
        used = exists.any(dim=0).nonzero()[:, 0]
        fixed = {
            "edges": edges,
            "used": used,
            "columns": windows[:, used].flatten(),
            "surroundings": torch.cat([exists.float(), log_odds[:, None] / 5.0], dim=1),  # about unit scale
        }
        for name, value in fixed.items():
            self.register_buffer(name, value, persistent=False)

    def forward(self, padded: Tensor, trunk: nn.ModuleList) -> Tensor:
        """Return the shift of the log-odds of each edge of the class, [batch, m].

        Args:
            padded: [batch, n_detectors + 1], detection events and a last column of zeros.
            trunk: Hidden layers that all classes share.
        """
        quiet, weights = self.quiet(self.surroundings), self.events[self.used]
        size = max(1, WINDOWS_PER_PASS // len(self.edges))
        parts = [
            self._pass(padded[start : start + size], quiet, weights, trunk)
            for start in range(0, max(len(padded), 1), size)
        ]
        return torch.cat(parts)

    def _pass(self, padded: Tensor, quiet: Tensor, weights: Tensor, trunk: nn.ModuleList) -> Tensor:
        """Evaluate a few shots.

        A window without events has the same output in every shot. Where most windows are empty, only the others go
        through the network.
        """
        batch, m = len(padded), len(self.edges)
        events = padded.index_select(1, self.columns).view(batch * m, len(self.used))
        active = events.sum(dim=1).nonzero()[:, 0]
        if len(active) > MAX_SPARSE_SHARE * batch * m:
            return self._shift(torch.addmm(quiet.repeat(batch, 1), events, weights), trunk).view(batch, m)
        constant = self._shift(quiet, trunk).repeat(batch)
        shift = self._shift(torch.addmm(quiet[active % m], events[active], weights), trunk)
        return constant.index_put((active,), shift).view(batch, m)

    def _shift(self, features: Tensor, trunk: nn.ModuleList) -> Tensor:
        hidden = torch.relu(features)
        for layer in trunk:
            hidden = hidden + torch.relu(layer(hidden))
        shift: Tensor = self.head(hidden)
        return shift[..., 0]


class Local(nn.Module):
    """A first layer and a head per class of edges, with hidden layers between them that all classes share."""

    order: Tensor

    def __init__(self, block: dict[str, Any], head: str, view: ProblemView) -> None:
        super().__init__()
        hidden, reach = block["hidden"], (block["space"], block["space"], block["time"])
        points = lattice_points(view.coordinates)
        inputs, muted = read_detectors(block["inputs"], view)
        detector_at = {points[detector]: detector for detector in inputs.tolist()}
        if len(detector_at) < len(inputs):
            raise ValueError("`local` needs detectors with different coordinates; use `mlp` or `gnn`")
        self.trunk = nn.ModuleList(nn.Linear(hidden, hidden) for _ in range(block["depth"] - 1))
        self.classes = nn.ModuleDict()
        column = torch.full((view.n_edges,), -1)  # -1: an edge without detectors keeps its prior
        detectors_of = edge_detectors(view)
        in_sector = set(view.in_sector.tolist())
        for name, edges in edge_classes(detectors_of, points, in_sector).items():
            windows = [
                [
                    detector_at.get(point, view.n_detectors)
                    for point in window([points[j] for j in detectors_of[edge]], reach)
                ]
                for edge in edges
            ]
            index = torch.tensor(edges)
            column[index] = torch.arange(len(edges)) + int((column >= 0).sum())
            self.classes[name] = EdgeClass(
                hidden, head, index, torch.tensor(windows), view.n_detectors, view.log_odds[index], muted
            )
        self.register_buffer("order", column, persistent=False)

    def forward(self, detections: Tensor) -> Tensor:
        """Map [batch, n_detectors] to [batch, n_edges]."""
        zeros = detections.new_zeros(len(detections), 1)
        padded = torch.cat([detections, zeros], dim=1)
        shifts = [edge_class(padded, self.trunk) for edge_class in self.classes.values()]
        return torch.cat([*shifts, zeros], dim=1)[:, self.order]


def read_detectors(which: str, view: ProblemView) -> tuple[Tensor, Tensor]:
    """Return the ids of the detectors that the network reads, and of those whose weights are zero before fine-tuning.

    Raises:
        ValueError: The code has no other sector, and `which` is not `all`.
    """
    if which != "all_in_finetuning":
        return view.inputs(which), view.in_sector[:0]
    muted = view.in_sector
    return torch.cat([view.inputs("other_sector"), muted]), muted


def lattice_points(coordinates: Tensor) -> list[Point]:
    """Return each detector's position in lattice steps; the third coordinate is time.

    A step along an axis is the greatest common divisor of the distances between detectors.

    Raises:
        ValueError: The detectors have no usable coordinates.
    """
    if coordinates.shape[1] < 2 or not bool((coordinates != 0).any()):
        raise ValueError("`local` needs detector coordinates (x, y, t); this circuit has none; use `mlp` or `gnn`")
    where = coordinates[:, :3].double()
    if where.shape[1] == 2:
        where = torch.stack([where[:, 0], torch.zeros(len(where)), where[:, 1]], dim=1)
    ticks = ((where - where.min(dim=0).values) * RESOLUTION).round().long()
    steps = torch.tensor([math.gcd(*axis.unique().tolist()) or RESOLUTION for axis in ticks.T])
    return [tuple(point) for point in (ticks // steps).tolist()]


def edge_detectors(view: ProblemView) -> list[list[int]]:
    """Return the detectors of each edge."""
    detectors_of: list[list[int]] = [[] for _ in range(view.n_edges)]
    for edge, detector in view.edge_detectors.T.tolist():
        detectors_of[edge].append(detector)
    return detectors_of


def edge_classes(detectors_of: list[list[int]], points: list[Point], in_sector: set[int]) -> dict[str, list[int]]:
    """Group edges by the displacement of their detectors, or by the side of the boundary that they lead to.

    Detectors outside the sector, which error mechanisms of `hard_flip` flip, are marked by `*`.
    """
    neighbours: dict[int, set[int]] = {}
    for detectors in detectors_of:
        for detector in detectors:
            neighbours.setdefault(detector, set()).update(detectors)
    found: dict[str, list[int]] = {}
    for edge, detectors in enumerate(detectors_of):
        if not detectors:
            continue
        first, *others = sorted(detectors, key=lambda detector: points[detector])
        name = "" if first in in_sector else "*"
        for other in others:
            step = " ".join(str(b - a) for a, b in zip(points[first], points[other], strict=True))
            name += f"({step})" if other in in_sector else f"({step})*"
        if not others:
            name += boundary_class(points[first], [points[other] for other in neighbours[first]])
        found.setdefault(name, []).append(edge)
    return dict(sorted(found.items()))


def boundary_class(point: Point, neighbours: list[Point]) -> str:
    """Name the side of the boundary: the directions in which a detector has no neighbour in the graph."""
    sides = []
    for axis, name in enumerate("xy"):
        if all(other[axis] >= point[axis] for other in neighbours):
            sides.append(f"-{name}")
        if all(other[axis] <= point[axis] for other in neighbours):
            sides.append(f"+{name}")
    return " ".join(["boundary", *sides])


def window(detectors: list[Point], reach: tuple[int, int, int]) -> list[Point]:
    """Return the lattice points at most `reach` + 1/2 steps from the middle of `detectors` along each axis."""
    axes = []
    for values, steps in zip(zip(*detectors, strict=True), reach, strict=True):
        middle = sum(values) / len(values)
        axes.append(range(math.ceil(middle - steps - 0.5), math.floor(middle + steps + 0.5) + 1))
    return list(product(*axes))


def build(block: dict[str, Any], head: str, view: ProblemView) -> nn.Module:
    """Build the network of a `local` block."""
    return Local(block, head, view)
