"""The stand-in of SLURM, and the env of the rounds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clusters import Cluster, cancel_waiting, fake_slurm
from tests.unit.runner.conftest import env_text, quick_smoke

__all__ = ["env_text", "quick_smoke"]


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    found = fake_slurm(tmp_path / "fake")
    for name, value in found.env.items():
        monkeypatch.setenv(name, value)
    yield found
    cancel_waiting(found)
