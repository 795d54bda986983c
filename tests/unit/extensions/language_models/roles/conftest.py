"""A loopback server of the Messages API that needs no key."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.messages_server import MessagesServer


@pytest.fixture
def server() -> Iterator[MessagesServer]:
    with MessagesServer(key="none") as running:
        yield running
