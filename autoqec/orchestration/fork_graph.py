"""Which round stands on which: a pure function of run.json and history."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from autoqec.contracts.history import HistoryRow, RunInfo
from autoqec.orchestration.attempts import Standing, compose_parents, standings
from autoqec.orchestration.views import verified_front

BASELINE = "baseline"


def graph(info: RunInfo, rows: Sequence[HistoryRow]) -> dict[str, Any]:
    """Nodes in the order of their rows, the baseline first; an edge a parent, `order` as the parents were merged."""
    standing = standings(rows)
    front = {entry.round_attempt_id for entry in verified_front(standing)}
    nodes = [{"id": BASELINE, "commit_sha": info.baseline_sha, "branch": info.baseline_ref}]
    nodes += [_node(one, one.attempt_id in front) for one in standing]
    by_branch = {one.row.branch: one.attempt_id for one in standing if one.row.branch}
    edges = []
    for one in standing:
        parents = compose_parents(one.row.fork_from) or (BASELINE,)
        for order, parent in enumerate(parents):
            edges.append({"parent": by_branch.get(parent, parent), "child": one.attempt_id, "order": order})
    return {"run_id": info.run_id, "nodes": nodes, "edges": edges}


def _node(one: Standing, on_front: bool) -> dict[str, Any]:
    row = one.row
    return {
        "id": one.attempt_id,
        "round": row.round,
        "branch": one.branch,
        "commit_sha": row.commit_sha,
        "fork_from": row.fork_from,
        "fork_from_canonical": row.fork_from_canonical,
        "compose_mode": row.compose_mode,
        "status": "branch_manually_deleted" if one.gone else row.status,
        "verify_verdict": row.verify_verdict,
        "delta_ler": row.delta_ler,
        "delta_vs_baseline_holdout": row.delta_vs_baseline_holdout,
        "hypothesis": row.hypothesis,
        "on_front": on_front,
    }


def draw(value: dict[str, Any]) -> list[str]:
    """The graph as an indented tree, a line a round; a composition hangs under its first parent and names the rest."""
    nodes = {node["id"]: node for node in value["nodes"]}
    parents: dict[str, list[str]] = {}
    children: dict[str, list[str]] = {}
    for edge in sorted(value["edges"], key=lambda edge: edge["order"]):
        parents.setdefault(edge["child"], []).append(edge["parent"])
    for child, above in parents.items():
        children.setdefault(above[0], []).append(child)
    lines = [f"{BASELINE} {nodes[BASELINE]['commit_sha'][:10]}"]
    # Deep chains are common, so the tree is walked without recursion; the last in is drawn next.
    stack = [(child, "", n == 0) for n, child in enumerate(reversed(children.get(BASELINE, [])))]
    while stack:
        name, indent, last = stack.pop()
        others = [_label(nodes.get(other), other) for other in parents[name][1:]]
        joined = f" + {', '.join(others)}" if others else ""
        lines.append(f"{indent}{'└─' if last else '├─'} {_label(nodes[name], name)}{joined}{_outcome(nodes[name])}")
        below = indent + ("   " if last else "│  ")
        stack += [(child, below, n == 0) for n, child in enumerate(reversed(children.get(name, [])))]
    return lines


def dot(value: dict[str, Any]) -> str:
    """The graph in Graphviz' language."""
    lines = ["digraph rounds {", "  rankdir=LR;", f'  "{BASELINE}" [shape=box];']
    for node in value["nodes"][1:]:
        style = ', style="bold"' if node["on_front"] else ""
        lines.append(f'  "{node["id"]}" [label="{_label(node, node["id"])}{_outcome(node)}"{style}];')
    lines += [f'  "{edge["parent"]}" -> "{edge["child"]}";' for edge in value["edges"]]
    return "\n".join([*lines, "}"]) + "\n"


def _label(node: dict[str, Any] | None, name: str) -> str:
    if node is None or "round" not in node:
        return name
    return f"round {node['round']} {(node['branch'] or 'no branch').rsplit('/', 1)[-1]}"


def _outcome(node: dict[str, Any]) -> str:
    figure = "" if node["delta_vs_baseline_holdout"] is None else f" {node['delta_vs_baseline_holdout']:+.2e}"
    return f" · {node['verify_verdict'] or node['status']}{figure}{' *' if node['on_front'] else ''}"
