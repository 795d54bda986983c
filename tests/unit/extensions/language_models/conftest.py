"""Fixtures: a run whose first round has begun, and a loopback server that answers every role."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from autoqec.extensions.language_models.clients import anthropic_client
from autoqec.orchestrator.roles import search
from autoqec.orchestrator.run import Roles, Run
from tests.conftest import Workspace
from tests.support import rounds
from tests.support.messages_server import MessagesServer
from tests.support.starts import start_run

SECRET = b"a secret that only tests may know"


@pytest.fixture
def run(workspace: Workspace, tmp_path: Path) -> Iterator[Run]:
    """Open a run whose first round has begun."""
    (tmp_path / "secret").write_bytes(SECRET)
    with start_run(workspace.root / "env.yaml", workspace.root, "smoke", 1, "llm", secret_file=tmp_path / "secret",
                   roles=Roles(search("tpe"))) as opened:  # fmt: skip
        opened.memory.history.append_attempt(rounds.begun(1))
        yield opened


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def served(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[MessagesServer]:
    """A loopback server as the endpoint of every role, with and without streaming."""
    if request.param:
        monkeypatch.setattr(anthropic_client, "STREAM_ABOVE", 0)
    with MessagesServer(key="none") as server:
        for role in ("IDEATOR", "CODER", "ANALYST"):
            monkeypatch.setenv(f"AUTOQEC_{role}_BASE_URL", server.url)
        yield server
