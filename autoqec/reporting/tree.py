"""Layout of the fork graph: one line per round below its parent; the column is the distance from the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoqec.reporting.run_report import RoundEntry

# All in px.
ROW_HEIGHT, MARGIN = 30, 16
COLUMN_WIDTH, MAX_COLUMNS_WIDTH = 22, 330
LABEL_WIDTH = 560


@dataclass(frozen=True)
class Node:
    """A round (None: the baseline) with its position and the SVG paths of its incoming edges."""

    x: float
    y: float
    round: RoundEntry | None
    edges: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tree:
    """Nodes from top to bottom; labels begin at `label_x`."""

    nodes: tuple[Node, ...]
    label_x: float

    @property
    def width(self) -> float:
        """Width of the drawing in px."""
        return self.label_x + LABEL_WIDTH

    @property
    def height(self) -> int:
        """Height of the drawing in px."""
        return ROW_HEIGHT * len(self.nodes)


def tree(rounds: Sequence[RoundEntry]) -> Tree:
    """Place each round below its first parent; further parents of a composition add edges.

    A round whose parents are not among `rounds` is placed below the baseline.
    """
    anchors = {entry.anchor for entry in rounds}
    parents = {
        entry.anchor: [anchor for anchor in entry.parents if anchor in anchors and anchor != entry.anchor]
        for entry in rounds
    }
    children: dict[str | None, list[RoundEntry]] = {}
    for entry in rounds:
        children.setdefault(next(iter(parents[entry.anchor]), None), []).append(entry)
    ordered = _depth_first(children)
    # Edited history may hold a cycle of parents, which no path from the baseline reaches.
    reached = {entry.anchor for entry, _ in ordered}
    ordered += [(entry, 1) for entry in rounds if entry.anchor not in reached]
    column = min(COLUMN_WIDTH, MAX_COLUMNS_WIDTH / max(1, *(depth for _, depth in ordered), 1))
    positions = {
        entry.anchor: (MARGIN + column * depth, ROW_HEIGHT * (index + 1.5))
        for index, (entry, depth) in enumerate(ordered)
    }
    root = (float(MARGIN), ROW_HEIGHT / 2)
    nodes = [Node(*root, None)]
    for entry, _ in ordered:
        end = positions[entry.anchor]
        starts = [positions[anchor] for anchor in parents[entry.anchor]] or [root]
        nodes.append(Node(*end, entry, tuple(_edge(start, end) for start in starts)))
    return Tree(tuple(nodes), max(node.x for node in nodes) + MARGIN)


def _depth_first(children: dict[str | None, list[RoundEntry]]) -> list[tuple[RoundEntry, int]]:
    """Rounds with their depth, each after its first parent. Iterative, because chains can be long."""
    stack = [(entry, 1) for entry in reversed(children.get(None, []))]
    ordered = []
    while stack:
        entry, depth = stack.pop()
        ordered.append((entry, depth))
        stack += [(child, depth + 1) for child in reversed(children.get(entry.anchor, []))]
    return ordered


def _edge(start: tuple[float, float], end: tuple[float, float]) -> str:
    """SVG path down from the parent, then around a rounded corner to the child."""
    (x0, y0), (x1, y1) = start, end
    bend = min(8.0, abs(x1 - x0)) * (1 if x1 >= x0 else -1)
    turn = 8.0 if y1 >= y0 else -8.0
    return f"M{x0:g} {y0:g}V{y1 - turn:g}Q{x0:g} {y1:g} {x0 + bend:g} {y1:g}H{x1:g}"
