"""A workspace with one finished round, and a process for many starts."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from autoqec.cli.workspace import make_workspace
from tests.crash.starts import ENV, NOT_A_COPY, start
from tests.crash.sweep import Zygote, has_compiler, zygote
from tests.support.clusters import KEY, Cluster, cancel_waiting, fake_slurm, slurm, slurm_unavailable_reason


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


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if reason := slurm_unavailable_reason():
        pytest.skip(reason)
    with slurm(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture(params=["stand-in", pytest.param("slurm", marks=pytest.mark.slurm)])
def cluster(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    """Tests with this fixture run with the fake commands and with real SLURM, and so check the fake too."""
    return _used(request.getfixturevalue("real" if request.param == "slurm" else "fake"), monkeypatch)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """The fake commands alone, for states that real SLURM cannot be forced into."""
    found = fake_slurm(tmp_path / "fake")
    yield _used(found, monkeypatch)
    cancel_waiting(found)


def _used(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    for name, value in {**cluster.env, "ANTHROPIC_API_KEY": KEY}.items():
        monkeypatch.setenv(name, value)
    return cluster
