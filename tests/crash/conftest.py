"""A lab with one finished round in it, starts that a test may kill, and recovery on its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cli.lab import make_lab
from tests.crash.starts import ENV, start


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lab with one finished round in it."""
    place = tmp_path_factory.mktemp("pristine")
    make_lab(place / "lab", ENV)
    assert start(place / "lab", 1, "", "nominate").returncode == 0
    return place


@pytest.fixture
def lab(pristine: Path, tmp_path: Path) -> Path:
    shutil.copytree(pristine / "lab", tmp_path / "lab", symlinks=True)
    return tmp_path / "lab"
