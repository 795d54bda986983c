"""Token usage of language-model calls; reported figures are brought into the range that can be true."""

from __future__ import annotations

import logging
from typing import Annotated, Any

from pydantic import Field

from autoqec.contracts.base import Contract

_LOGGER = logging.getLogger("autoqec.extensions.language_models.clients")
MAX_TOKENS = 100_000_000  # of one call
MAX_USD = 10_000.0  # of one call
Count = Annotated[int, Field(ge=0)]


class Usage(Contract):
    """Tokens of one call or of several: the four counters that the provider bills."""

    input_tokens: Count = 0
    output_tokens: Count = 0
    cache_creation_input_tokens: Count = 0
    cache_read_input_tokens: Count = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in type(self).model_fields})

    @property
    def prompt_tokens(self) -> int:
        """All input tokens, cached or not."""
        return self.input_tokens + self.cache_creation_input_tokens + self.cache_read_input_tokens

    @property
    def total(self) -> int:
        """All tokens, input and output."""
        return self.prompt_tokens + self.output_tokens


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
