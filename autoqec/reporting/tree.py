"""The fork graph as a drawing: one row a round, below what it stands on; columns are how far from the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autoqec.reporting.run_data import Round

ROW, MARGIN, STEP, WIDEST = 30, 16, 22, 330  # px; WIDEST: of the columns together
LABEL_WIDTH = 560


@dataclass(frozen=True)
class Node:
    """A round (None: the baseline) at its place, with the paths of the edges that lead to it."""

    x: float
    y: float
    round: Round | None
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


def tree(rounds: Sequence[Round]) -> Tree:
    """A round hangs under its first parent; further parents of a composition are drawn as edges too.

    A parent that is not among `rounds` is left out, and its children hang under the baseline.
    """
    by_anchor = {one.anchor: one for one in rounds}
    children: dict[str | None, list[Round]] = {}
    for one in rounds:
        known = [anchor for anchor in one.parents if anchor in by_anchor and anchor != one.anchor]
        children.setdefault(known[0] if known else None, []).append(one)
    order = _depth_first(children)
    # Foreign history may hold a ring of parents; its rounds are reached from nowhere and stand by themselves.
    reached = {one.anchor for one, _ in order}
    order += [(one, 1) for one in rounds if one.anchor not in reached]
    step = min(STEP, WIDEST / max(1, *(depth for _, depth in order), 1))
    place = {one.anchor: (MARGIN + step * depth, ROW * (n + 1.5)) for n, (one, depth) in enumerate(order)}
    root = (float(MARGIN), ROW / 2)
    nodes = [Node(*root, None)]
    for one, _ in order:
        known = [anchor for anchor in one.parents if anchor in place and anchor != one.anchor]
        starts = [place[anchor] for anchor in known] or [root]
        nodes.append(Node(*place[one.anchor], one, tuple(_edge(start, place[one.anchor]) for start in starts)))
    return Tree(tuple(nodes), max(node.x for node in nodes) + MARGIN)


def _depth_first(children: dict[str | None, list[Round]]) -> list[tuple[Round, int]]:
    """Rounds with their depth, each after its first parent. Chains can be long: no recursion."""
    stack = [(one, 1) for one in reversed(children.get(None, []))]
    order = []
    while stack:
        one, depth = stack.pop()
        order.append((one, depth))
        stack += [(child, depth + 1) for child in reversed(children.get(one.anchor, []))]
    return order


def _edge(start: tuple[float, float], end: tuple[float, float]) -> str:
    """Down from the parent, then round the corner to the child."""
    (x0, y0), (x1, y1) = start, end
    bend = min(8.0, abs(x1 - x0)) * (1 if x1 >= x0 else -1)
    turn = 8.0 if y1 >= y0 else -8.0
    return f"M{x0:g} {y0:g}V{y1 - turn:g}Q{x0:g} {y1:g} {x0 + bend:g} {y1:g}H{x1:g}"
