"""Prices of calls, from one dated file; None for a model that it does not list."""

from __future__ import annotations

import datetime
from functools import cache
from importlib.resources import files

from pydantic import Field

from autoqec.contracts.base import Contract
from autoqec.llm.base import Request
from autoqec.llm.usage import Usage
from autoqec.store.files import load_yaml


class LongPrompt(Contract):
    """Requests whose prompt holds more than `above` tokens cost `factor` times as much."""

    above: int = Field(gt=0)
    factor: float = Field(ge=1)


class Price(Contract):
    """US dollars per million tokens."""

    input: float = Field(ge=0)
    output: float = Field(ge=0)
    long_prompt: LongPrompt | None = None

    def factor(self, prompt_tokens: int) -> float:
        """Return the factor for a prompt of this length."""
        return self.long_prompt.factor if self.long_prompt and prompt_tokens > self.long_prompt.above else 1.0


class PriceList(Contract):
    """Content of prices.yaml."""

    as_of: datetime.date
    source: str
    default_model: str
    cache_write_5m: float
    cache_write_1h: float
    cache_read: float
    models: dict[str, Price]


@cache
def price_list() -> PriceList:
    """Return the price list that comes with the package."""
    text = files("autoqec.llm").joinpath("prices.yaml").read_text("utf-8")
    return PriceList.model_validate(load_yaml(text, location="autoqec/llm/prices.yaml"))


def cost_usd(model: str, usage: Usage, *, cache_write_1h_tokens: int = 0) -> float | None:
    """Return the cost of `usage` in dollars; None for a model without a known price. Scripted answers cost nothing.

    Args:
        model: Name of the model.
        usage: Tokens of the call.
        cache_write_1h_tokens: How many of the cache-creation tokens were written for an hour.
    """
    if model.startswith("scripted:"):
        return 0.0
    prices = price_list()
    price = prices.models.get(model)
    if price is None:
        return None
    hour = min(cache_write_1h_tokens, usage.cache_creation_input_tokens)
    minutes = usage.cache_creation_input_tokens - hour
    prompt = usage.input_tokens + usage.cache_read_input_tokens * prices.cache_read
    prompt += minutes * prices.cache_write_5m + hour * prices.cache_write_1h
    return price.factor(usage.prompt_tokens) * (prompt * price.input + usage.output_tokens * price.output) / 1e6


def max_cost_usd(model: str, prompt_tokens: int, request: Request, *, cache_hour: bool = False) -> float | None:
    """Return the most that a call can cost: the whole prompt written to the cache, every output token used."""
    upper_bound = Usage(cache_creation_input_tokens=prompt_tokens, output_tokens=request.max_tokens)
    return cost_usd(model, upper_bound, cache_write_1h_tokens=prompt_tokens if cache_hour else 0)
