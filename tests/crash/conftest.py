"""A lab with one finished round in it, and starts by the hundred."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoqec.cli.workspace import make_workspace
from tests.crash.starts import ENV, NOT_A_COPY, start
from tests.crash.sweep import Zygote, has_compiler, zygote


@pytest.fixture(scope="session")
def pristine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A lab with one finished round in it."""
    place = tmp_path_factory.mktemp("pristine")
    make_workspace(place / "lab", ENV)
    assert start(place / "lab", 1, "", "nominate").returncode == 0
    return place


@pytest.fixture
def workspace(pristine: Path, tmp_path: Path) -> Path:
    shutil.copytree(pristine / "lab", tmp_path / "lab", symlinks=True, ignore=NOT_A_COPY)
    return tmp_path / "lab"


@pytest.fixture(scope="session")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """Starts with a Runner and a judge that answer at once; each test puts its own lab there first."""
    if not has_compiler():
        pytest.skip("no C compiler; install: apt-get install gcc (on Linux)")
    with zygote(tmp_path_factory.mktemp("sweep")) as found:
        yield found
