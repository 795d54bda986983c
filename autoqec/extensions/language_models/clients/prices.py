"""Prices of calls, from one dated file; None for a model that it does not list."""

from __future__ import annotations

import datetime
from functools import cache
from importlib.resources import files

from pydantic import Field, ValidationError

from autoqec.contracts.base import Contract, first_validation_error
from autoqec.errors import UsageError
from autoqec.store.files import load_yaml
from autoqec.store.model_calls import Usage

MAX_PRICE = 100_000.0  # dollars per million tokens; beyond it, a price is a slip


class LongPrompt(Contract):
    """Requests whose prompt holds more than `above` tokens cost `factor` times as much."""

    above: int = Field(gt=0)
    factor: float = Field(ge=1)


class Price(Contract):
    """US dollars per million tokens. Without a price of cached tokens the price list's factor holds."""

    input: float = Field(ge=0, le=MAX_PRICE)
    output: float = Field(ge=0, le=MAX_PRICE)
    cache_read: float | None = Field(default=None, ge=0, le=MAX_PRICE)
    long_prompt: LongPrompt | None = None

    def factor(self, prompt_tokens: int) -> float:
        """Return the factor for a prompt of this length."""
        return self.long_prompt.factor if self.long_prompt and prompt_tokens > self.long_prompt.above else 1.0


class PriceList(Contract):
    """Content of prices.yaml."""

    as_of: datetime.date
    source: str
    default_model: str
    cache_write: float
    cache_read: float
    models: dict[str, Price]


@cache
def price_list() -> PriceList:
    """Return the price list that comes with the package."""
    text = files("autoqec.extensions.language_models.clients").joinpath("prices.yaml").read_text("utf-8")
    return PriceList.model_validate(load_yaml(text, location="autoqec/extensions/language_models/clients/prices.yaml"))


_own_prices: dict[str, Price] = {}


def set_price(model: str, price: Price) -> None:
    """Use this price for the model in the whole process, whatever the price list says."""
    _own_prices[model] = price


def parse_price(text: str) -> Price:
    """Parse `in=3,out=15[,cache_read=0.3]`, in US dollars per million tokens.

    Without `cache_read`, cached tokens cost as much as others.

    Raises:
        UsageError: The text has another form.
    """
    hint = "--price in=3,out=15 (US dollars per million tokens; cache_read=0.3 for tokens read from a cache)"
    fields = dict(part.partition("=")[::2] for part in text.replace(" ", "").split(","))
    names = {"in": "input", "out": "output", "cache_read": "cache_read"}
    if fields.keys() - names.keys() or not {"in", "out"} <= fields.keys():
        raise UsageError(f"{text!r} is not a price", location="--price", hint=hint)
    try:
        price = Price.model_validate({names[name]: value for name, value in fields.items()})
    except ValidationError as error:
        raise UsageError(first_validation_error(error), location="--price", hint=hint) from error
    return price if price.cache_read is not None else price.model_copy(update={"cache_read": price.input})


def cost_usd(model: str, usage: Usage) -> float | None:
    """Return the cost of `usage` in dollars; None for a model without a known price. Scripted answers cost nothing."""
    if model.startswith("scripted:"):
        return 0.0
    prices = price_list()
    price = _own_prices.get(model) or prices.models.get(model)
    if price is None:
        return None
    prompt = usage.input_tokens + usage.cache_creation_input_tokens * prices.cache_write
    cache_read = prices.cache_read * price.input if price.cache_read is None else price.cache_read
    dollars = prompt * price.input + usage.cache_read_input_tokens * cache_read + usage.output_tokens * price.output
    return price.factor(usage.prompt_tokens) * dollars / 1e6


def max_cost_usd(model: str, prompt_tokens: int, max_tokens: int) -> float | None:
    """Return the most that a call can cost: the whole prompt written to the cache, every output token used."""
    return cost_usd(model, Usage(cache_creation_input_tokens=prompt_tokens, output_tokens=max_tokens))
