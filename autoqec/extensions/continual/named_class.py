"""Loads a class that a config names: of an installed package, or of a Python file beside the config.

Only a config that the user passes may name one: its code runs. Checkpoints come from anywhere, so theirs is refused.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from autoqec.errors import UsageError

T = TypeVar("T")


def resolve_class_name(name: str, base: Path) -> str:
    """Return the name with an absolute path if it means a file beside the config, else unchanged.

    Args:
        name: `FILE.py:Class`, or `module.Class` with a file `module.py` in `base`, or the name of an installed class.
        base: Directory of the config.
    """
    path, _, kind = name.rpartition(":")
    if path:
        return f"{(base / path).resolve()}:{kind}"
    module, _, kind = name.rpartition(".")
    beside = base / (module.replace(".", "/") + ".py")
    return f"{beside.resolve()}:{kind}" if module and beside.is_file() else name


def load_named_class(name: str, kind: type[T], *, location: str, known: tuple[str, ...] = ()) -> type[T]:
    """Import the class and check that it is a subclass.

    Args:
        name: A result of `resolve_class_name`.
        kind: The required base class.
        location: Field of the config, for errors.
        known: Short names that the field also accepts, for the hint.

    Raises:
        UsageError: The class is unknown, its module cannot be imported, or it is not a subclass of `kind`.
    """
    path, _, class_name = name.rpartition(":")
    module_name, _, dotted_class = name.rpartition(".")
    hint = f"use {', '.join((*known, 'package.module.Class'))}, or FILE.py:Class with a file beside the config"
    try:
        module = _load_file(Path(path)) if path else importlib.import_module(module_name)
        found = getattr(module, class_name if path else dotted_class)
    except (ImportError, AttributeError, ValueError, OSError) as error:
        raise UsageError(f"unknown class {name!r}: {error}", location=location, hint=hint) from error
    except Exception as error:
        raise UsageError(f"the module of {name!r} fails: {type(error).__name__}: {error}", location=location) from error
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise UsageError(f"{name} is not a subclass of {kind.__name__}", location=location, hint=hint)
    return found


def _load_file(path: Path) -> ModuleType:
    """Import a file once, under a name that no installed module has."""
    name = f"{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))  # at the end: its neighbours are found, and shadow nothing that is installed
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module
