"""What an installed package promises: one top-level name, types, and nothing that only a checkout has."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def python_files(*folders: str) -> Iterator[Path]:
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module


def test_nothing_imports_the_folder_cli_by_its_own_name() -> None:
    wrong = [
        str(path.relative_to(ROOT))
        for path in python_files("autoqec", "cli", "tests", "benchmarks", "docs")
        if any(name.split(".")[0] == "cli" for name in imports(path))
    ]
    assert not wrong, "import autoqec.cli instead (docs/adr/0001-cli-inside-the-package.md)"


def test_the_command_line_runs_as_a_module() -> None:
    shown = subprocess.run(
        [sys.executable, "-P", "-m", "autoqec.cli", "--help"], capture_output=True, text=True, check=True
    )
    assert "Usage: autoqec" in shown.stdout


def test_types_are_shipped() -> None:
    assert (ROOT / "autoqec" / "py.typed").exists()
    assert "py.typed" in PROJECT["tool"]["setuptools"]["package-data"]["*"]
