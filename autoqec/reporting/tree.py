"""The fork graph as a drawing: one row a round, below what it stands on; columns are how far from the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoqec.reporting.run_data import RoundEntry

ROW, MARGIN, STEP, MAX_COLUMNS_WIDTH = 30, 16, 22, 330  # px; WIDEST: of the columns together
LABEL_WIDTH = 560


@dataclass(frozen=True)
class Node:
    """A round (None: the baseline) at its place, with the paths of the edges that lead to it."""

    x: float
    y: float
    round: RoundEntry | None
    edges: tuple[str, ...] = ()


@dataclass(frozen=True)
class Tree:
    nodes: tuple[Node, ...]
    label_x: float

    @property
    def width(self) -> float:
        return self.label_x + LABEL_WIDTH

    @property
    def height(self) -> int:
        return ROW * len(self.nodes)


def tree(rounds: Sequence[RoundEntry]) -> Tree:
    """A round hangs under its first parent; further parents of a composition are drawn as edges too.

    A parent that is not among `rounds` is left out, and its children hang under the baseline.
    """
    by_anchor = {round_entry.anchor: round_entry for round_entry in rounds}
    children: dict[str | None, list[RoundEntry]] = {}
    for round_entry in rounds:
        known_parents = [
            anchor for anchor in round_entry.parents if anchor in by_anchor and anchor != round_entry.anchor
        ]
        children.setdefault(known_parents[0] if known_parents else None, []).append(round_entry)
    ordered = _depth_first(children)
    # Foreign history may hold a ring of parents; its rounds are reached from nowhere and stand by themselves.
    reachable = {round_entry.anchor for round_entry, _ in ordered}
    ordered += [(round_entry, 1) for round_entry in rounds if round_entry.anchor not in reachable]
    step = min(STEP, MAX_COLUMNS_WIDTH / max(1, *(depth for _, depth in ordered), 1))
    positions = {
        round_entry.anchor: (MARGIN + step * depth, ROW * (n + 1.5)) for n, (round_entry, depth) in enumerate(ordered)
    }
    root = (float(MARGIN), ROW / 2)
    nodes = [Node(*root, None)]
    for round_entry, _ in ordered:
        known_parents = [
            anchor for anchor in round_entry.parents if anchor in positions and anchor != round_entry.anchor
        ]
        starts = [positions[anchor] for anchor in known_parents] or [root]
        nodes.append(
            Node(
                *positions[round_entry.anchor],
                round_entry,
                tuple(_edge(start, positions[round_entry.anchor]) for start in starts),
            )
        )
    return Tree(tuple(nodes), max(node.x for node in nodes) + MARGIN)


def _depth_first(children: dict[str | None, list[RoundEntry]]) -> list[tuple[RoundEntry, int]]:
    """Rounds with their depth, each after its first parent. Chains can be long: no recursion."""
    stack = [(round_entry, 1) for round_entry in reversed(children.get(None, []))]
    ordered = []
    while stack:
        round_entry, depth = stack.pop()
        ordered.append((round_entry, depth))
        stack += [(child, depth + 1) for child in reversed(children.get(round_entry.anchor, []))]
    return ordered


def _edge(start: tuple[float, float], end: tuple[float, float]) -> str:
    """Down from the parent, then round the corner to the child."""
    (x0, y0), (x1, y1) = start, end
    bend = min(8.0, abs(x1 - x0)) * (1 if x1 >= x0 else -1)
    turn = 8.0 if y1 >= y0 else -8.0
    return f"M{x0:g} {y0:g}V{y1 - turn:g}Q{x0:g} {y1:g} {x0 + bend:g} {y1:g}H{x1:g}"
