"""Custom parts of an architecture, which a branch defines in `custom_fn.py` of its editable modules.

The file defines any of three nn.Module classes, which a config selects with `custom`:

    MessageFn(hidden).forward(source, target, strength)  -> [batch, n_links, hidden]
        source, target: [batch, n_links, hidden]; strength: [n_links, 1]
    Aggregation(hidden).forward(message, dst, n)         -> [batch, n, hidden]
        message: [batch, n_links, hidden]; dst: int64 [n_links], the target of each link
    Head(hidden, n_outputs).forward(h)                   -> [..., n_outputs], from h [..., hidden]

The lint gives early, clear errors; it is not a security boundary. Custom code runs in the sandbox.
"""

from __future__ import annotations

import ast
import importlib
from pathlib import Path

import torch
from torch import Tensor, nn

from autoqec.decoders.overlay import PACKAGE
from autoqec.errors import ContractError

FILE = "custom_fn.py"
MAX_BYTES = 20_000
ALLOWED_IMPORTS = {"torch", "torch.nn", "torch.nn.functional", "math", "__future__", "autoqec.decoders.modules.scatter"}
FORBIDDEN_NAMES = {
    "eval", "exec", "compile", "open", "__import__", "globals", "locals", "vars", "getattr", "setattr", "delattr",
    "input", "breakpoint", "print", "exit", "quit",
}  # fmt: skip
FORBIDDEN_ATTRIBUTES = {
    "os": "custom code needs no system access",
    "sys": "custom code needs no access to the interpreter",
    "save": "the Runner reads and writes artifacts",
    "load": "the Runner reads and writes artifacts",
    "manual_seed": "the round sets the seed",
    "set_num_threads": "the round sets the number of threads",
    "numpy": "stay in torch, so that gradients flow",
    "item": "stay in tensors, so that gradients flow",
    "hub": "downloads are not available",
    "distributed": "the training loop handles processes",
    "utils": "write it with torch.nn",
}
CUSTOM_CLASSES = ("MessageFn", "Aggregation", "Head")


def lint(source: str, location: str = FILE) -> None:
    """Check the source of a custom_fn.py.

    Raises:
        ContractError: Names the line that is not allowed, and what to write instead.
    """
    if len(source.encode()) > MAX_BYTES:
        raise ContractError(f"is larger than {MAX_BYTES} bytes", location=location, hint="write less code")
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise ContractError(f"does not parse ({error.msg})", location=f"{location}:{error.lineno}") from error
    for statement in tree.body:
        allowed = ast.Import | ast.ImportFrom | ast.ClassDef | ast.FunctionDef
        if not isinstance(statement, allowed) and not _docstring(statement):
            raise _lint_error(statement, location, "a statement at module level", "put it into a class or a function")
    for node in ast.walk(tree):
        _lint_node(node, location)
    if not any(isinstance(node, ast.ClassDef) and node.name in CUSTOM_CLASSES for node in tree.body):
        raise ContractError(
            f"defines none of {', '.join(CUSTOM_CLASSES)}", location=location, hint="name the class as one of them"
        )


def _lint_node(node: ast.AST, location: str) -> None:
    if isinstance(node, ast.Import | ast.ImportFrom):
        _lint_import(node, location)
    elif isinstance(node, ast.Name) and (node.id in FORBIDDEN_NAMES or node.id.startswith("__")):
        raise _lint_error(node, location, f"`{node.id}`", "compute with tensors only")
    elif isinstance(node, ast.Attribute):
        if node.attr in FORBIDDEN_ATTRIBUTES:
            raise _lint_error(node, location, f"`.{node.attr}`", FORBIDDEN_ATTRIBUTES[node.attr])
        if node.attr.startswith("__") and node.attr != "__init__":
            raise _lint_error(
                node, location, f"`.{node.attr}`", "double underscores other than __init__ are not needed"
            )
    elif isinstance(node, ast.Global | ast.Nonlocal | ast.AsyncFunctionDef | ast.While):
        raise _lint_error(
            node, location, f"`{type(node).__name__.lower()}`", "a bounded `for`, and state in the module"
        )


def _lint_import(node: ast.Import | ast.ImportFrom, location: str) -> None:
    modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or "."]
    for name in modules:
        if name not in ALLOWED_IMPORTS:
            hint = f"import only {', '.join(sorted(ALLOWED_IMPORTS))}"
            raise _lint_error(node, location, f"import of {name}", hint)
    if isinstance(node, ast.ImportFrom):
        for alias in node.names:
            if alias.name in FORBIDDEN_ATTRIBUTES or alias.name == "*":
                message = f"import of {node.module}.{alias.name}"
                raise _lint_error(node, location, message, "name what you use of torch.nn")


def _docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _lint_error(node: ast.AST, location: str, what: str, instead: str) -> ContractError:
    line: int = node.lineno  # type: ignore[attr-defined]
    return ContractError(f"{what} is not allowed in a custom function", location=f"{location}:{line}", hint=instead)


def custom(kind: str, *sizes: int) -> nn.Module:
    """Build the class `kind` of the branch's custom_fn.py with `sizes`, after the lint and a smoke test.

    Raises:
        ContractError: The file or class is missing, the lint fails, or a run on a small batch fails.
    """
    package = importlib.import_module(PACKAGE)
    path = Path(package.__path__[0]) / FILE
    if not path.is_file():
        raise ContractError(
            f"the config selects a custom {kind}, but the editable modules have no {FILE}",
            location=str(path),
            hint=f"write class {kind}(nn.Module) into {FILE}",
        )
    lint(path.read_text(encoding="utf-8"), location=FILE)
    cls = getattr(importlib.import_module(f"{PACKAGE}.custom_fn"), kind, None)
    if not isinstance(cls, type) or not issubclass(cls, nn.Module):
        raise ContractError(f"has no class {kind}(nn.Module)", location=FILE, hint=f"define class {kind}(nn.Module)")
    module = cls(*sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        _smoke_test(kind, module, sizes)
    return module


def _smoke_test(kind: str, module: nn.Module, sizes: tuple[int, ...]) -> None:
    """Run one forward pass on a small batch; ContractError if it fails, or the shape or gradient is wrong."""
    hidden, links, batch, n = sizes[0], 5, 2, 3
    dst = torch.tensor([0, 0, 1, 1, 1])  # target 2 has no links
    args: tuple[Tensor | int, ...]
    if kind == "MessageFn":
        ends = torch.randn(2, batch, links, hidden, requires_grad=True)
        args, expected = (ends[0], ends[1], torch.randn(links, 1)), (batch, links, hidden)
    elif kind == "Aggregation":
        args, expected = (torch.randn(batch, links, hidden, requires_grad=True), dst, n), (batch, n, hidden)
    else:
        args, expected = (torch.randn(batch, n, hidden, requires_grad=True),), (batch, n, sizes[1])
    try:
        out = module(*args)
    except Exception as error:
        raise ContractError(
            f"{kind} fails on a small batch ({type(error).__name__}: {error})", location=FILE
        ) from error
    if not isinstance(out, Tensor) or tuple(out.shape) != expected:
        shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
        raise ContractError(f"{kind} returned {shape}, expected {expected}", location=FILE)
    if not torch.isfinite(out).all():
        raise ContractError(f"{kind} returned values that are not finite", location=FILE)
    if not out.requires_grad:
        raise ContractError(
            f"{kind} does not propagate gradients", location=FILE, hint="stay in differentiable tensors"
        )
