"""A workspace with one finished round, and a process for many starts."""

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
    """Return the parent directory of a workspace with one finished round."""
    directory = tmp_path_factory.mktemp("pristine")
    make_workspace(directory / "workspace", ENV)
    assert start(directory / "workspace", 1, "", "nominate").returncode == 0
    return directory


@pytest.fixture
def workspace(pristine: Path, tmp_path: Path) -> Path:
    shutil.copytree(pristine / "workspace", tmp_path / "workspace", symlinks=True, ignore=NOT_A_COPY)
    return tmp_path / "workspace"


@pytest.fixture(scope="session")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Zygote]:
    """A zygote with a fake Runner and verifier; each test first copies its workspace to the zygote's path."""
    if not has_compiler():
        pytest.skip("no C compiler; install: apt-get install gcc (on Linux)")
    with zygote(tmp_path_factory.mktemp("sweep")) as found:
        yield found
