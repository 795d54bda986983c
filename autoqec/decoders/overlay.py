"""Overlay of a branch's editable modules over the package `autoqec.decoders.modules`."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from autoqec.errors import ContractError

PACKAGE = "autoqec.decoders.modules"


def use_modules_dir(modules_dir: Path | str | None) -> None:
    """Import `autoqec.decoders.modules` from `modules_dir` in this process; None keeps the package's own.

    Call it once, before any predecoder is built: a module that is already imported cannot be replaced safely.

    Raises:
        RuntimeError: Modules of another directory are already imported.
        ContractError: The directory has no __init__.py.
    """
    if modules_dir is None:
        return
    directory = Path(modules_dir).resolve()
    loaded = sys.modules.get(PACKAGE)
    if loaded is not None:
        if Path(loaded.__path__[0]).resolve() == directory:
            return
        raise RuntimeError(f"{PACKAGE} is already loaded from {loaded.__path__[0]}")
    spec = importlib.util.spec_from_file_location(
        PACKAGE, directory / "__init__.py", submodule_search_locations=[str(directory)]
    )
    if spec is None or spec.loader is None or not (directory / "__init__.py").is_file():
        raise ContractError(
            "the editable modules have no __init__.py", location=str(directory), hint="check out the branch"
        )
    package = importlib.util.module_from_spec(spec)
    sys.modules[PACKAGE] = package
    spec.loader.exec_module(package)


def current_modules_dir() -> Path | None:
    """Return the directory that this process builds from; None before the first build."""
    loaded = sys.modules.get(PACKAGE)
    return None if loaded is None else Path(loaded.__path__[0])


def architecture_module(family: str) -> ModuleType:
    """Return the module that builds `family`; ImportError if there is none."""
    return importlib.import_module(f"{PACKAGE}.{family}")
