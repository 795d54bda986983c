"""Counts the code and compares it with `[tool.budget]` of pyproject.toml: `make budget`.

A code line is a line without blanks, comments and docstrings. Raising a number needs a decision record that names the
user who notices.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
DOCUMENTED = (ast.Module, ast.ClassDef, *DEFINITIONS)
LAYOUT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
FUNCTION_LINES, MODULE_LINES, ARGUMENTS = 60, 600, 6


def tracked(*directories: str) -> list[Path]:
    """Return the files of some directories that git tracks or would track."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *directories]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    return [ROOT / name for name in sorted(set(listed)) if name and (ROOT / name).is_file()]


def code_line_numbers(text: str, tree: ast.AST) -> set[int]:
    """Return the numbers of the lines that hold code."""
    documentation: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            documentation.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            lines.update(range(token.start[0], token.end[0] + 1))
    return lines - documentation


def module_name(path: Path) -> str:
    """Return the dotted name of a product module; `cli/` is the package `autoqec.cli`."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(("autoqec", *parts) if parts[0] == "cli" else parts).removesuffix(".__init__")


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield the names of all imported modules and members."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def local_imports(tree: ast.AST) -> int:
    """Count import statements inside functions."""
    found = {
        node
        for function in ast.walk(tree)
        if isinstance(function, DEFINITIONS)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    return len(found)


def long_functions(tree: ast.AST, code: set[int]) -> Iterator[str]:
    """Yield the functions with more than 60 code lines."""
    for node in ast.walk(tree):
        if isinstance(node, DEFINITIONS):
            length = sum(node.lineno <= line <= (node.end_lineno or 0) for line in code)
            if length > FUNCTION_LINES:
                yield f"{node.name} has {length} code lines"


def many_arguments(tree: ast.AST) -> Iterator[str]:
    """Yield the public functions with more arguments than a reader can hold; commands are given theirs by click."""
    for node in ast.walk(tree):
        if isinstance(node, DEFINITIONS) and not node.name.startswith("_") and not node.decorator_list:
            names = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
            count = sum(argument.arg not in ("self", "cls") for argument in names)
            if count > ARGUMENTS:
                yield f"{node.name} has {count} arguments"


class Product:
    """The parsed modules of the product."""

    def __init__(self) -> None:
        self.trees: dict[str, ast.Module] = {}
        self.code: dict[str, set[int]] = {}
        self.paths: dict[str, Path] = {}
        for path in tracked("autoqec", "cli"):
            if path.suffix == ".py":
                text, name = path.read_text(encoding="utf-8"), module_name(path)
                self.paths[name], self.trees[name] = path, ast.parse(text)
                self.code[name] = code_line_numbers(text, self.trees[name])

    def lines_below(self, directory: str) -> int:
        """Return the code lines of the modules in a directory, or of one module."""
        start = ROOT / directory
        return sum(len(self.code[name]) for name, path in self.paths.items() if start in (path, *path.parents))

    def single_importers(self) -> list[str]:
        """Return the modules that one sibling alone imports: candidates for a merge."""
        importers: dict[str, set[str]] = {name: set() for name in self.trees}
        for name, tree in self.trees.items():
            for target in set(imports(tree)) & importers.keys() - {name}:
                importers[target].add(name)
        return [
            name
            for name, users in importers.items()
            if len(users) == 1 and self.code[name] and next(iter(users)).rpartition(".")[0] == name.rpartition(".")[0]
        ]

    def mirrored(self) -> float:
        """Return the share of modules with code that have a test of their name, in percent."""
        tests = [path.relative_to(ROOT / "tests").as_posix() for path in tracked("tests") if path.suffix == ".py"]
        modules = [name for name in self.trees if len(self.code[name]) > 1 and "autoqec.envs" not in name]
        stems = Counter(Path(test).stem for test in tests)
        return 100 * sum(bool(stems[f"test_{name.rpartition('.')[2]}"]) for name in modules) / len(modules)


def private_patches() -> int:
    """Count tests' patches of and accesses to private names."""
    pattern = re.compile(r"setattr\([^)\n]*[\"'.]_[a-z]|(?<![\w.])(?!self|cls)[a-z]\w*\._[a-z]\w+")
    return sum(
        len(pattern.findall(path.read_text(encoding="utf-8")))
        for path in tracked("tests")
        if path.suffix == ".py" and path != Path(__file__)
    )


def figures(product: Product) -> dict[str, float]:
    """Return every counted figure except the lines of single parts."""
    tests = [path for path in tracked("tests") if path.suffix == ".py"]
    texts = {path: path.read_text(encoding="utf-8") for path in tests}
    pages = [path for path in tracked("docs", "README.md") if path.suffix == ".md"]
    core = [name for name in product.trees if not name.startswith("autoqec.extensions")]
    return {
        "core": sum(len(product.code[name]) for name in core),
        "product": sum(map(len, product.code.values())),
        "tests": sum(len(code_line_numbers(text, ast.parse(text))) for text in texts.values()),
        "product files": len(product.paths),
        "words of documentation": sum(len(page.read_text(encoding="utf-8").split()) for page in pages),
        "modules with one importer, a sibling": len(product.single_importers()),
        "local imports": sum(map(local_imports, product.trees.values())),
        "private names in tests": private_patches(),
        "functions above 60 lines": sum(
            len(list(long_functions(tree, product.code[name]))) for name, tree in product.trees.items()
        ),
        "percent of modules without a test of their name": 100 - product.mirrored(),
        "modules above 600 lines": sum(len(code) > MODULE_LINES for code in product.code.values()),
        "public functions above 6 arguments": sum(len(list(many_arguments(tree))) for tree in product.trees.values()),
    }


def main() -> int:
    """Print the table and return the exit status: 1 if a figure is above its limit."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        budget = tomllib.load(file)["tool"]["budget"]
    product = Product()
    counted = {part: product.lines_below(part) for part in budget["parts"]} | figures(product)
    exceeded = []
    print(f"{'':40} {'now':>8} {'limit':>8} {'goal':>8}")
    for name, (limit, goal) in (budget["parts"] | budget["figures"]).items():
        over = counted[name] > limit
        exceeded += [name] * over
        print(f"{name:40} {counted[name]:8,.0f} {limit:8,} {goal:8,} {'over its limit' * over}".rstrip())
    if "--details" in sys.argv:
        print("\nOne importer, a sibling:", *product.single_importers(), sep="\n  ")
        for name, tree in product.trees.items():
            for problem in [*long_functions(tree, product.code[name]), *many_arguments(tree)]:
                print(f"{name}: {problem}")
    return int(bool(exceeded))


if __name__ == "__main__":
    sys.exit(main())
