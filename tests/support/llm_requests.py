"""Requests to language models, as tests send them."""

from __future__ import annotations

from typing import Any

from autoqec.extensions.language_models.clients.base import Message, Request


def request(text: str = "go", **fields: Any) -> Request:
    """Return a request with one message of the user."""
    return Request(messages=(Message(role="user", content=text),), **fields)
