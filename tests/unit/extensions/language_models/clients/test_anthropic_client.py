"""What only the client of the Messages API does; the rest is in `test_provider.py`."""

from __future__ import annotations

import itertools
import json

import anthropic
import pytest
from pydantic import BaseModel, Field

from autoqec.extensions.language_models.clients.anthropic_client import AnthropicLM
from autoqec.extensions.language_models.clients.base import Message, Request
from autoqec.extensions.language_models.clients.errors import LlmAuthError, LlmBadAnswerError, LlmUnavailableError
from tests.support.llm_requests import request
from tests.support.messages_server import (
    Behaviour,
    MessagesServer,
    cut,
    edited,
    fail,
    overloaded_midway,
    rate_limited,
    say,
    say_json,
    slow,
    tokens,
)

MODEL = "claude-opus-5-5"


class Guess(BaseModel):
    what: str
    score: int = Field(ge=0, le=10)


@pytest.fixture(autouse=True)
def key(server: MessagesServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", server.key)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)


def lm(**options: object) -> AnthropicLM:
    return AnthropicLM(MODEL, **options)  # type: ignore[arg-type]


@pytest.fixture(params=[8192, 64_000], ids=["whole", "stream"])
def max_tokens(request: pytest.FixtureRequest) -> int:
    return int(request.param)


def asked(text: str, max_tokens: int, **fields: object) -> Request:
    return request(text, max_tokens=max_tokens, **fields)


def test_effort_is_sent_with_the_schema(server: MessagesServer) -> None:
    server.script(say_json({"what": "gnn", "score": 7}))
    lm(effort="low").complete(request(output=Guess, effort="high"))
    config = server.requests[0]["output_config"]
    assert config["effort"] == "high" and config["format"]["type"] == "json_schema"


def test_stable_prefix_is_cached_and_all_counters_are_kept(server: MessagesServer, max_tokens: int) -> None:
    system = ("you design predecoders " * 40, "the knowledge page " * 40, "this round")
    first, second = (lm().complete(asked(text, max_tokens, system=system)) for text in "ab")
    assert [("cache_control" in block) for block in server.requests[0]["system"]] == [False, True, False]
    assert first.usage.cache_creation_input_tokens > 300 and first.usage.cache_read_input_tokens == 0
    assert second.usage.cache_creation_input_tokens == 0
    assert second.usage.cache_read_input_tokens == first.usage.cache_creation_input_tokens
    assert second.usage.input_tokens == tokens("b") + tokens({"type": "text", "text": "this round"})
    total = first.usage + second.usage
    assert (total.input_tokens, total.output_tokens) == (server.billed["input"], server.billed["output"])
    assert total.total == sum(server.billed.values())


def test_cost_is_computed_from_the_price_list(server: MessagesServer) -> None:
    server.script(say("x" * 400))
    response = lm().complete(request(system=("s" * 4000,)))
    usage = response.usage
    expected = (usage.input_tokens * 4 + usage.cache_creation_input_tokens * 4 * 1.25 + usage.output_tokens * 20) / 1e6
    assert response.cost_usd == pytest.approx(expected)


def test_cache_ends_after_the_context(server: MessagesServer) -> None:
    first = request("go", context=("round 1", "round 2"), aside="two cores")
    later = (*first.messages, Message(role="assistant", content="well"), Message(role="user", content="and?"))
    lm().complete(first)
    lm().complete(first.model_copy(update={"messages": later}))
    for body in server.requests:
        one, two, turn = body["messages"][0]["content"]
        assert one == {"type": "text", "text": "round 1"}
        assert (two["text"], two["cache_control"]["type"]) == ("round 2", "ephemeral")
        assert turn == {"type": "text", "text": "go\ntwo cores"}


def test_context_that_grows_is_read_from_the_cache(server: MessagesServer) -> None:
    rounds = tuple(f"round {number}: " + "figures " * 50 for number in range(6))
    usages = [lm().complete(request(f"round {n}", context=rounds[:n])).usage for n in (2, 3, 6)]
    assert usages[0].cache_read_input_tokens == 0
    for before, after in itertools.pairwise(usages):
        assert after.cache_read_input_tokens == before.cache_read_input_tokens + before.cache_creation_input_tokens


@pytest.mark.parametrize("can_count", [True, False])
def test_tokens_are_counted_by_the_provider_or_estimated_from_above(server: MessagesServer, *, can_count: bool) -> None:
    server.can_count = can_count
    server.script(say_json({"what": "gnn", "score": 7}))
    llm_request = request("a" * 1000, system=("b" * 1000,), output=Guess)
    counted, used = lm().count_tokens(llm_request), lm().complete(llm_request).usage.prompt_tokens
    assert counted == used if can_count else counted >= used


@pytest.mark.parametrize("fault", [rate_limited(retry_after_ms=3_600_000), slow(fail(500), 3.0)])
def test_counting_falls_back_to_an_estimate_within_the_time_limit(server: MessagesServer, fault: Behaviour) -> None:
    server.count_fault = fault
    assert lm(timeout_s=0.5).count_tokens(request("go " * 100)) >= 100
    assert len(server.counted) == 1


@pytest.mark.parametrize(
    "fault", [cut(say("x" * 500), 900), overloaded_midway(say("x" * 500))], ids=["cut", "overloaded"]
)
def test_interrupted_stream_is_retried(server: MessagesServer, fault: Behaviour) -> None:
    server.script(fault, say_json({"what": "there", "score": 0}))
    response = lm().complete(asked("go", 64_000, output=Guess))
    assert (response.parsed, response.lost_attempts) == (Guess(what="there", score=0), 1)
    server.answer = lambda body: fault
    with pytest.raises(LlmUnavailableError) as caught:
        lm(max_retries=1).complete(asked("go", 64_000))
    assert caught.value.lost_attempts == 2


FORMS = {
    "text is null": ('"text": "odd!odd!"', '"text": null'),
    "text is a number": ('"text": "odd!odd!"', '"text": 5'),
    "a block is a string": ('{"type": "text", "text": "odd!odd!"}', '"odd!odd!"'),
    "a block is null": ('{"type": "text", "text": "odd!odd!"}', "null"),
    "no type": ('"type": "text", ', ""),
    "content is an object": ('[{"type": "text", "text": "odd!odd!"}]', "[{}]"),
    "a tool call without an id": ('"type": "text", "text": "odd!odd!"', '"type": "tool_use", "name": "x", "input": {}'),
    "model is a number": (f'"model": "{MODEL}"', '"model": 7'),
    "stop_reason is a list": ('"stop_reason": "end_turn"', '"stop_reason": []'),
    "nothing but usage": ('"stop_reason": "end_turn", ', ""),
}  # fmt: skip


@pytest.mark.parametrize("form", sorted(FORMS))
def test_malformed_answers_have_an_error_type(server: MessagesServer, form: str) -> None:
    server.answer = lambda body: edited(say("odd!odd!"), FORMS[form])
    with pytest.raises(LlmBadAnswerError) as caught:
        lm(max_retries=0).complete(request(output=Guess))
    assert caught.value.usage is not None and caught.value.cost_usd is not None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"delta": {"type": "text_delta", "text": "odd!odd"}', '"delta": {"type": "text_delta", "text": null}'),
        ('"content_block": {"type": "text", "text": ""}', '"content_block": "text"'),
        ('"content_block": {"type": "text", "text": ""}', '"content_block": null'),
        ('"index": 0', '"index": 9'),
        ('"usage": {', '"usage": [{'),
        (f'"model": "{MODEL}"', '"model": 7'),
        ('"message": {', '"message": null, "x": {'),
        ('"type": "message_start"', '"type": "message_end"'),
    ],
)
def test_malformed_streams_have_an_error_type(server: MessagesServer, old: str, new: str) -> None:
    server.answer = lambda body: edited(say("odd!odd!"), (old, new))
    with pytest.raises((LlmBadAnswerError, LlmUnavailableError)) as caught:
        lm(max_retries=0).complete(asked("go", 64_000, output=Guess))
    assert caught.value.lost_attempts == 1 or caught.value.usage is not None


@pytest.mark.parametrize("with_key", [True, False])
def test_key_of_the_environment_is_sent_before_its_token(
    server: MessagesServer, monkeypatch: pytest.MonkeyPatch, *, with_key: bool
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", server.key if with_key else "")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "another" if with_key else server.key)
    assert AnthropicLM(MODEL).complete(request()).text == "ok"


def test_wrong_key_is_an_error_also_where_tokens_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-wrong-0123456789")
    with pytest.raises(LlmAuthError):
        lm().count_tokens(request())


def test_loopback_server_rejects_what_the_api_rejects(server: MessagesServer) -> None:
    client = anthropic.Anthropic(api_key=server.key, base_url=server.url, max_retries=0)
    user = {"role": "user", "content": "go"}
    bad = [
        {"extra_body": {"temperature": 0.2}, "messages": [user]},
        {"messages": [user, {"role": "assistant", "content": "{"}]},
        {"messages": [user], "tool_choice": {"type": "any"}},
        {"messages": [user], "output_config": {"format": {"type": "json_schema", "schema": Guess.model_json_schema()}}},
    ]
    for fields in bad:
        with pytest.raises(anthropic.BadRequestError):
            client.messages.create(model=MODEL, max_tokens=100, **fields)
    assert json.dumps(server.statuses) == "[400, 400, 400, 400]"
