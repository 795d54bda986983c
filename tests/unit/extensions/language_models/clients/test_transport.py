"""Pauses that a server asks for, as the packages of the providers read them."""

from __future__ import annotations

import pytest

from autoqec.extensions.language_models.clients.transport import requested_pause_s


@pytest.mark.parametrize(
    ("headers", "pause_s"),
    [
        ({"retry-after-ms": "250", "retry-after": "9"}, 0.25),
        ({"retry-after": "9"}, 9),
        ({"retry-after": "Wed, 21 Oct 1999 07:28:00 GMT"}, 0),
        ({"retry-after": "soon"}, 0),
        ({}, 0),
    ],
)
def test_requested_pause(headers: dict[str, str], pause_s: float) -> None:
    assert requested_pause_s(headers) == pause_s
