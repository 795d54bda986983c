from __future__ import annotations

import datetime

import pytest

from autoqec.errors import UsageError
from autoqec.extensions.language_models.clients.base import Message, Request
from autoqec.extensions.language_models.clients.config import LMConfig, get_lm_client, require_price
from autoqec.extensions.language_models.clients.prices import cost_usd, max_cost_usd, parse_price, price_list
from autoqec.store.model_calls import Usage


def test_price_list_has_a_date() -> None:
    assert price_list().as_of >= datetime.date(2026, 1, 1)
    assert price_list().models["claude-opus-5-5"].output == 20.0


def test_each_token_counter_has_its_price() -> None:
    usage = Usage(
        input_tokens=1_000_000,
        output_tokens=1_000_000,
        cache_creation_input_tokens=1_000_000,
        cache_read_input_tokens=1_000_000,
    )
    assert cost_usd("claude-opus-5-5", usage) == pytest.approx(4 + 20 + 5 + 0.2)


@pytest.mark.parametrize(("prompt", "factor"), [(100_000, 1), (100_001, 5)])
def test_long_prompts_have_a_higher_price(prompt: int, factor: int) -> None:
    usage = Usage(input_tokens=prompt - 1000, cache_read_input_tokens=1000, output_tokens=2000)
    expected = factor * ((prompt - 1000 + 100) * 0.1 + 2000 * 0.5) / 1e6
    assert cost_usd("claude-haiku-5-5", usage) == pytest.approx(expected)


def test_reading_the_cache_has_the_price_of_the_model_or_the_common_factor() -> None:
    read = Usage(cache_read_input_tokens=1_000_000)
    assert cost_usd("claude-sonnet-5-5", read) == pytest.approx(0.1)
    assert cost_usd("claude-fable-5-2", read) == pytest.approx(0.8)
    assert cost_usd("claude-haiku-5-5", read) == pytest.approx(5 * 0.01)  # a long prompt


def test_price_of_an_unknown_model_is_null() -> None:
    assert cost_usd("gpt-6", Usage(input_tokens=10)) is None
    assert cost_usd("scripted:echo", Usage(input_tokens=10)) == 0.0


def test_upper_bound_covers_every_call() -> None:
    worst = max_cost_usd("claude-opus-5-5", 1000, 8192)
    real = cost_usd("claude-opus-5-5", Usage(cache_creation_input_tokens=1000, output_tokens=8192))
    assert worst is not None and real is not None and worst >= real


def test_custom_price_applies_to_clients_and_budgets() -> None:
    config = LMConfig(model="qwen-of-this-test", base_url="http://127.0.0.1:9", price=parse_price("in=2,out=8"))
    require_price(config)
    assert get_lm_client(config).max_cost_usd(Request(messages=(Message(role="user", content="x"),)), 10) is not None
    million = Usage(input_tokens=1_000_000, output_tokens=1_000_000, cache_read_input_tokens=1_000_000)
    assert cost_usd("qwen-of-this-test", million) == pytest.approx(2 + 8 + 2)
    cached = parse_price("in=2, out=8, cache_read=0.5")
    get_lm_client(config.model_copy(update={"price": cached}))
    assert cost_usd("qwen-of-this-test", million) == pytest.approx(2 + 8 + 0.5)


@pytest.mark.parametrize(
    "text",
    ["", "3", "in=3", "in=3,out=", "in=-1,out=2", "in=nan,out=2", "in=inf,out=2", "in=1,out=2,x=3", "in=1e9,out=1"],
)
def test_malformed_price_is_refused(text: str) -> None:
    with pytest.raises(UsageError) as raised:
        parse_price(text)
    assert raised.value.location == "--price" and "in=3,out=15" in str(raised.value.hint)
