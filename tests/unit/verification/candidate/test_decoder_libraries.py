"""Decoder libraries cannot be reached in the candidate process, neither by import nor by file."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from autoqec.system import sandbox
from autoqec.system.process import child
from autoqec.system.sandbox import SandboxBackend, SandboxPolicy
from autoqec.verification.candidate import decoder_libraries

LOAD = """
import importlib, sys
from pathlib import Path
import numpy, scipy.sparse, stim, torch
for name in ("pymatching", "ldpc", "sinter", "autoqec.qec._match"):
    try: importlib.import_module(name).__file__.lower()
    except (ImportError, OSError, AttributeError): continue
    raise SystemExit(name + " can be imported")
for place in map(Path, sys.argv[1:]):
    for path in (place, place / "__init__.py"):
        try: found = path.read_bytes()
        except OSError: continue
        if found: raise SystemExit(str(path) + " can be read")
"""


def test_every_installed_library_is_found() -> None:
    names = {path.name.split(".")[0] for path in decoder_libraries.files()}
    assert {"pymatching", "ldpc", "sinter"} <= names and all(path.exists() for path in decoder_libraries.files())


@pytest.mark.parametrize("hide", [True, False])
def test_hidden_libraries_cannot_be_loaded(hide: bool, sandbox_backend: SandboxBackend, tmp_path: Path) -> None:
    files = decoder_libraries.files()
    inside = tmp_path / "inside"
    inside.mkdir()
    policy = SandboxPolicy(scratch=inside, hidden=files if hide else ())
    wrapped = sandbox.wrap(
        [sys.executable, "-P", "-s", "-c", LOAD, *map(str, files)], policy, sandbox_backend=sandbox_backend
    )
    ended = child.run(wrapped.argv, cwd="/", env=wrapped.env, limits=child.Limits(60), stdout=tmp_path / "log")
    assert ended.returncode == (0 if hide else 1), (tmp_path / "log").read_text()


def test_blocked_import_has_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    monkeypatch.delitem(sys.modules, "sinter", raising=False)
    decoder_libraries.block()
    with pytest.raises(ModuleNotFoundError, match="sinter is a decoder library"):
        __import__("sinter")
