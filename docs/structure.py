"""Package diagram and module table of docs/architecture.md, read from the source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "architecture.md"
MARKER = re.compile(r"(<!-- (?:diagram|table): (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)
EVERYWHERE = {"errors", "contracts", "optional"}


def modules() -> Iterator[tuple[str, Path]]:
    """Yield dotted name and path of every module of the package, `cli/` under its installed name."""
    for top in (ROOT / "autoqec", ROOT / "cli"):
        for path in sorted(top.rglob("*.py")):
            relative = path.relative_to(ROOT if top.name == "autoqec" else ROOT / "cli")
            parts = list(relative.with_suffix("").parts)
            if top.name == "cli":
                parts = ["autoqec", "cli", *parts]
            if "cli" in parts[:2] and top.name == "autoqec":
                continue  # the link autoqec/cli
            yield ".".join(parts).removesuffix(".__init__"), path


def package_of(module: str) -> str | None:
    """Return the package below `autoqec` that a dotted name belongs to."""
    parts = module.split(".")
    return parts[1] if parts[0] == "autoqec" and len(parts) > 1 else None


def imports(path: Path) -> set[str]:
    """Return the packages below `autoqec` that a module imports, at any level and for types too."""
    found: set[str | None] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            prefixed = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {package_of(name) for name in prefixed}
        elif isinstance(node, ast.Import):
            found |= {package_of(alias.name) for alias in node.names}
    return {name for name in found if name is not None}


def diagram() -> str:
    """Return the package graph as a Mermaid flowchart, without edges that other edges imply."""
    packages = {package_of(name) for name, path in modules() if path.name == "__init__.py"} - {None, "envs", "data"}
    edges: dict[str, set[str]] = {name: set() for name in sorted(p for p in packages if p) if name not in EVERYWHERE}
    for name, path in modules():
        package = package_of(name)
        if package in edges:
            edges[package] |= {other for other in imports(path) if other in edges and other != package}
    lines = ["```mermaid", "flowchart TD"]
    for package, targets in edges.items():
        implied = {far for near in targets for far in _reachable(edges, near)}
        lines += [f"  {package} --> {target}" for target in sorted(targets - implied)]
    return "\n".join([*lines, "```", ""])


def _reachable(edges: dict[str, set[str]], start: str) -> set[str]:
    seen: set[str] = set()
    stack = list(edges[start])
    while stack:
        name = stack.pop()
        if name not in seen:
            seen.add(name)
            stack += edges[name]
    return seen


def table() -> str:
    """Return every module with the first line of its docstring."""
    lines = ["| module | provides |", "|---|---|"]
    for _, path in modules():
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        if not text and path.name == "__init__.py":
            continue
        summary = text.splitlines()[0].replace("|", "\\|") if text else ""
        lines.append(f"| `{path.relative_to(ROOT).as_posix()}` | {summary} |")
    return "\n".join(lines) + "\n"


def render(text: str) -> str:
    """Return the page with the parts between its markers generated again."""
    makers = {"packages": diagram, "modules": table}
    return MARKER.sub(lambda match: match[1] + makers[match[2]]() + match[3], text)


def main() -> None:
    """Rewrite the generated parts of docs/architecture.md."""
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
