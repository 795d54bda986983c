"""Rules of docs/architecture.md that import-linter cannot express, checked on the source."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
HEAVY = {"torch", "stim", "pymatching", "ldpc", "sinter", "optuna", "anthropic"}
LIGHT_PACKAGES = (
    "autoqec/errors.py",
    "autoqec/contracts",
    "autoqec/store",
    "autoqec/system",
    "autoqec/extensions/language_models",
    "autoqec/ideators",
    "autoqec/extensions/continual/agents",
    "autoqec/extensions/continual/memory",
    "autoqec/extensions/continual/runtime",
    "autoqec/orchestrator",
    "autoqec/reporting",
    "autoqec/cli",
)
IMPORTED_LATE = {"autoqec/extensions/language_models/clients/anthropic_client.py"}  # when a client is made
STARTERS = {"subprocess", "multiprocessing", "pty", "joblib"}
OS_STARTERS = {"fork", "forkpty", "system", "popen", "posix_spawn", "posix_spawnp", "execv", "execve", "execvp"}
PRINTERS = {"print", "sys.stdout.write", "sys.stderr.write"}
# Parts of paths under runs/ and .worktrees/.
SPELLED = re.compile(r"^(.*/)?(runs|\.worktrees)(/.*)?$|(history|attempts)\.jsonl|pareto.*\.json$")


def sources(*directories: str) -> Iterator[tuple[str, ast.Module]]:
    for directory in directories or ("autoqec", "autoqec/cli"):  # the link autoqec/cli is not followed by rglob
        start = ROOT / directory
        for path in [start] if start.is_file() else sorted(start.rglob("*.py")):
            yield str(path.relative_to(ROOT)), ast.parse(path.read_text(encoding="utf-8"))


def imported(nodes: Iterator[ast.AST]) -> Iterator[str]:
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def at_module_level(node: ast.AST) -> Iterator[ast.AST]:
    """Yield nodes that run on import: without function bodies and `if TYPE_CHECKING`."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
            continue
        yield child
        yield from at_module_level(child)


def strings(tree: ast.Module) -> Iterator[str]:
    """Yield string constants except docstrings, including f-string parts."""
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def test_light_packages_import_nothing_heavy() -> None:
    found = {
        (path, name)
        for path, tree in sources(*(package for package in LIGHT_PACKAGES if (ROOT / package).exists()))
        if path not in IMPORTED_LATE
        for name in imported(at_module_level(tree))
        if name.split(".")[0] in HEAVY
    }
    assert not found


def test_only_system_starts_processes() -> None:
    # child starts the supervisor, which starts the sandbox helper; git/command starts git
    modules = ("process/child", "process/supervise", "sandbox/confine", "git/command")
    allowed = {f"autoqec/system/{name}.py" for name in modules}
    allowed.add("autoqec/extensions/slurm/commands.py")
    # training over several processes spawns them inside the round's sandbox and passes them descriptors
    allowed |= {f"autoqec/extensions/training_loops/{name}.py" for name in ("process_group", "shared_memory")}
    found = set()
    for path, tree in sources():
        found |= {path for name in imported(ast.walk(tree)) if name.split(".")[0] in STARTERS}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "os" and node.attr in OS_STARTERS:
                found.add(path)
    assert found <= allowed


def test_only_the_git_package_runs_git() -> None:
    found = {path for path, tree in sources() for name in imported(ast.walk(tree)) if name.split(".")[0] == "git"}
    assert found == {"autoqec/system/git/command.py"}


def test_only_the_layout_contains_path_names() -> None:
    """A path component is an operand of `/` or a string with a slash."""
    # git prunes worktrees below a default path; the run-history questions read runs from any directory
    allowed = {
        "store/layout",
        "system/git/repo",
        "extensions/continual/environments/datasets",
    }
    found = set()
    for path, tree in sources():
        parts = {text for text in strings(tree) if "/" in text and " " not in text and "\n" not in text}
        for node in ast.walk(tree):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div) and isinstance(node.right, ast.Constant):
                parts.add(str(node.right.value))
        found |= {path for part in parts if SPELLED.search(part)}
    assert found <= {f"autoqec/{name}.py" for name in allowed}


def test_only_cli_and_reporting_print() -> None:
    for path, tree in sources("autoqec"):
        if path.startswith("autoqec/reporting/"):
            continue
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in PRINTERS:
                pytest.fail(f"{path}:{node.lineno} prints")


def test_dominance_has_one_implementation() -> None:
    for path, tree in sources():
        names = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert path == "autoqec/contracts/pareto.py" or not {n for n in names if "dominate" in n}, path


def test_weights_are_loaded_with_weights_only() -> None:
    for path, tree in sources():
        assert not {"dill", "cloudpickle", "joblib"} & {name.split(".")[0] for name in imported(ast.walk(tree))}, path
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "torch.load":
                safe = {word.arg: ast.unparse(word.value) for word in node.keywords}
                assert safe.get("weights_only") == "True", f"{path}:{node.lineno}"


def test_code_for_candidates_does_not_unpickle() -> None:
    unpicklers = {"pickle.load", "pickle.loads", "pickle.Unpickler"}
    for path, tree in sources("autoqec/decoders", "autoqec/runner", "autoqec/verification", "autoqec/orchestrator"):
        for node in ast.walk(tree):
            assert not (isinstance(node, ast.Call) and ast.unparse(node.func) in unpicklers), path


def test_help_loads_no_heavy_library() -> None:
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "autoqec.cli", "--help"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    loaded = {
        line.split("|")[-1].strip().split(".")[0] for line in result.stderr.splitlines() if "import time:" in line
    }
    assert "click" in loaded
    assert not loaded & (HEAVY | {"numpy", "scipy"})


def test_light_packages_load_nothing_heavy() -> None:
    """Module-level imports of light packages stay light through whatever they import."""
    packages = [
        package.removesuffix(".py").replace("/", ".") for package in LIGHT_PACKAGES if (ROOT / package).exists()
    ]
    code = f"import sys, importlib\nfor name in {packages}: importlib.import_module(name)\nprint(*sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not {name.split(".")[0] for name in result.stdout.split()} & HEAVY
