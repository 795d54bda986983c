"""A loopback server (tests/support); no test of this package has a real key or reaches the network."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from autoqec.extensions.language_models.clients.environment import SECRET_ENV_VARS
from tests.support.messages_server import MessagesServer


@pytest.fixture(autouse=True)
def no_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        *SECRET_ENV_VARS,
        "ANTHROPIC_BASE_URL",
        "http_proxy",
        "https_proxy",
        "HTTP_PROXY",
        "HTTPS_PROXY",
        "ALL_PROXY",
    ):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def server() -> Iterator[MessagesServer]:
    with MessagesServer() as running:
        yield running
