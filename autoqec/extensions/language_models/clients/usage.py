"""Token usage of language-model calls."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from autoqec.contracts.base import Contract

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
