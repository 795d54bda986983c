"""Reported tokens and costs of language-model calls, brought into the range that can be true."""

from __future__ import annotations

import logging
from typing import Any

_LOGGER = logging.getLogger("autoqec.extensions.language_models.clients")
MAX_TOKENS = 100_000_000  # of one call
MAX_USD = 10_000.0  # of one call


def token_count(value: Any, name: str) -> int:
    """Return a reported number of tokens as an int in [0, MAX_TOKENS]; one that cannot be true is logged.

    Args:
        value: What was reported; None counts as 0.
        name: Of the counter, for the log.
    """
    if value is None:
        return 0
    try:
        count = int(value)
    except (TypeError, ValueError, OverflowError):
        count = -1
    if not 0 <= count <= MAX_TOKENS:
        _LOGGER.warning("a server reported %s = %.100r; %d is booked", name, value, min(max(count, 0), MAX_TOKENS))
    return min(max(count, 0), MAX_TOKENS)


def call_cost(value: Any) -> float | None:
    """Return a reported cost in dollars; None if it is missing or cannot be true, which is logged."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= MAX_USD:
        _LOGGER.warning("a program reported a cost of %.100r dollars, which is ignored", value)
        return None
    return float(value)
