"""The fork graph of a run: which round was forked from which; pure functions of run.json and the history."""

from __future__ import annotations

import json
from typing import Any

from autoqec.contracts.history import RunInfo
from autoqec.store.run_state import BASELINE, RunState


def build(info: RunInfo, state: RunState) -> dict[str, Any]:
    """Return the content of fork_graph.json.

    `front` lists the ids of the verified Pareto front, best first. `nodes` has the baseline, then the rounds in the
    order of their rows. `parents` of a node are ids in merge order; a parent without a row is given by its branch.
    """
    baseline: dict[str, Any] = {
        "id": BASELINE,
        "commit_sha": info.baseline_sha,
        "branch": info.baseline_ref,
        "parents": [],
    }
    nodes = [baseline, *(round_state.graph_node for round_state in state.rounds.values())]
    return {"run_id": info.run_id, "front": [entry.round_attempt_id for entry in state.front], "nodes": nodes}


def text(value: dict[str, Any]) -> str:
    """Return the graph as JSON with one node per line."""
    head = json.dumps({**value, "nodes": []}, ensure_ascii=False).removesuffix("]}")
    lines = ",\n".join(json.dumps(node, ensure_ascii=False, allow_nan=False) for node in value["nodes"])
    return f"{head}\n{lines}\n]}}\n"


def draw(value: dict[str, Any]) -> list[tuple[str, str]]:
    """Draw the graph as an indented tree.

    A composition appears under its first parent and names the others; `*` marks the verified Pareto front.

    Args:
        value: The content of fork_graph.json.

    Returns:
        One line per round with the verdict or status by which it may be coloured.
    """
    nodes, front = {node["id"]: node for node in value["nodes"]}, set(value["front"])
    children: dict[str, list[str]] = {}
    for node in value["nodes"][1:]:
        first = node["parents"][0]
        children.setdefault(first if first in nodes else BASELINE, []).append(node["id"])
    lines = [(f"{BASELINE} {nodes[BASELINE]['commit_sha'][:10]}", BASELINE)]
    # Deep chains are common, so the tree is traversed with a stack instead of recursion.
    stack = [(child, "", n == 0) for n, child in enumerate(reversed(children.get(BASELINE, [])))]
    while stack:
        name, indent, last = stack.pop()
        node = nodes[name]
        others = [_label(nodes.get(other), other) for other in node["parents"][1:]]
        joined = f" + {', '.join(others)}" if others else ""
        star = " *" if name in front else ""
        branch = f"{indent}{'└─' if last else '├─'} "
        lines.append((f"{branch}{_label(node, name)}{joined}{_outcome(node)}{star}", _kind(node)))
        below = indent + ("   " if last else "│  ")
        stack += [(child, below, n == 0) for n, child in enumerate(reversed(children.get(name, [])))]
    return lines


def dot(value: dict[str, Any]) -> str:
    """Return the graph in Graphviz format: the Pareto front in bold, further parents of a composition dashed."""
    lines = ["digraph rounds {", "  rankdir=LR;", f'  "{BASELINE}" [shape=box];']
    for node in value["nodes"][1:]:
        style = ", style=bold" if node["id"] in value["front"] else ""
        label = _quoted(f"{_label(node, node['id'])}{_outcome(node)}")
        lines.append(f"  {_quoted(node['id'])} [label={label}{style}];")
        for number, parent in enumerate(node["parents"]):
            dashed = " [style=dashed]" if number else ""
            lines.append(f"  {_quoted(parent)} -> {_quoted(node['id'])}{dashed};")
    return "\n".join([*lines, "}"]) + "\n"


def _quoted(text: str) -> str:
    """Return a Graphviz string literal; untrusted text can neither end it nor start an escape."""
    return '"' + " ".join(text.split()).replace("\\", "\\\\").replace('"', '\\"') + '"'


def _label(node: dict[str, Any] | None, name: str) -> str:
    if node is None or "round" not in node:
        return name
    return f"round {node['round']} {(node['branch'] or 'no branch').rsplit('/', 1)[-1]}"


def _kind(node: dict[str, Any]) -> str:
    return str(node["verify_verdict"] or node["status"])


def _outcome(node: dict[str, Any]) -> str:
    parts = [node["status"], *([node["verify_verdict"]] if node["verify_verdict"] else [])]
    if node["delta_vs_baseline_holdout"] is not None:
        parts.append(f"Δ {node['delta_vs_baseline_holdout']:+.2e}")
    elif node["delta_ler"] is not None:
        parts.append(f"val Δ {node['delta_ler']:+.2e}")
    return "".join(f" · {part}" for part in parts)
