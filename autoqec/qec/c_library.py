"""Loading of the C extensions, which are optional: a package built without a C compiler does without them."""

from __future__ import annotations

import ctypes
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import Any

import numpy as np


def library_path(source: str, name: str) -> Path:
    """Return where the extension `name` is, or would be, beside a Python file of the package.

    The stable ABI's name comes before the one of this Python alone, which an older build may have left.
    """
    paths = [Path(source).with_name(f"{name}{suffix}") for suffix in reversed(EXTENSION_SUFFIXES)]
    return next((path for path in paths if path.exists()), paths[-1])


def functions(library: Path, *names: str) -> list[Any] | None:
    """Return C functions, None if they were not built.

    Their names change with their arguments, so that no library of another version is called.
    """
    try:
        loaded = ctypes.CDLL(str(library))
        return [getattr(loaded, name) for name in names]
    except (OSError, AttributeError):
        return None


def is_older(library: Path, *sources: Path) -> bool:
    """Return whether the library of a checkout is older than a source of it; False in an installed package."""
    checkout = Path(__file__).parents[2] / "pyproject.toml"
    if not checkout.exists() or not library.exists():
        return False
    return any(library.stat().st_mtime < source.stat().st_mtime for source in sources)


def addresses(*arrays: np.ndarray) -> list[int]:
    """Return the addresses of contiguous arrays, which the caller keeps alive: much faster than `ndpointer`."""
    return [_address(array) for array in arrays]


def _address(array: np.ndarray) -> int:
    try:
        # A third of the time of `__array_interface__`; numpy declares no buffers for type checkers.
        return ctypes.addressof(ctypes.c_char.from_buffer(array))  # type: ignore[arg-type]
    except (TypeError, ValueError):  # read-only, empty, or not contiguous
        if not array.flags.c_contiguous:
            raise ValueError("an array for the C code is not contiguous") from None
        return int(array.__array_interface__["data"][0])
