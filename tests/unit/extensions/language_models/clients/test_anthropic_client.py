"""The Messages API through the real package, against a loopback server."""

from __future__ import annotations

import itertools
import json
import logging
import math
from dataclasses import replace
from typing import Any

import pytest
from pydantic import BaseModel, Field

from autoqec.extensions.language_models.clients.anthropic_client import AnthropicLM
from autoqec.extensions.language_models.clients.base import LanguageModel, Message, Tool, tool_results
from autoqec.extensions.language_models.clients.errors import (
    LlmAuthError,
    LlmBadAnswerError,
    LlmBadRequestError,
    LlmError,
    LlmRefusalError,
    LlmTruncatedError,
    LlmUnavailableError,
)
from autoqec.extensions.language_models.clients.reported import MAX_TOKENS
from autoqec.extensions.language_models.clients.transport import requested_pause_s
from autoqec.extensions.language_models.clients.usage import Usage
from tests.support.llm_requests import request
from tests.support.messages_server import (
    Behaviour,
    MessagesServer,
    cut,
    edited,
    fail,
    malformed,
    overloaded_midway,
    rate_limited,
    refuse,
    say,
    say_json,
    slow,
    tokens,
    trickled,
    truncate,
    use_tool,
)

MODEL = "claude-opus-5-5"


class Guess(BaseModel):
    what: str
    score: int = Field(ge=0, le=10)


def lm(server: MessagesServer, **options: object) -> AnthropicLM:
    return AnthropicLM(MODEL, base_url=server.url, api_key=server.key, **options)  # type: ignore[arg-type]


@pytest.fixture(params=[False, True], ids=["whole", "stream"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_client_implements_the_protocol(server: MessagesServer) -> None:
    assert isinstance(lm(server), LanguageModel)


def test_text_answer_with_usage(server: MessagesServer, stream: bool) -> None:
    server.script(say("hello, Δ"))
    response = lm(server, stream=stream).complete(request())
    assert (response.text, response.stop_reason, response.model, response.parsed) == (
        "hello, Δ",
        "end_turn",
        MODEL,
        None,
    )
    assert server.requests[0].get("stream", False) is stream


def test_long_answers_are_streamed(server: MessagesServer) -> None:
    lm(server).complete(request(max_tokens=64_000))
    assert server.requests[0]["stream"] is True


def test_structured_answer_is_parsed(server: MessagesServer, stream: bool) -> None:
    server.script(say_json({"what": "gnn", "score": 7}))
    response = lm(server, stream=stream).complete(request(output=Guess))
    assert response.parsed == Guess(what="gnn", score=7)
    assert server.requests[0]["output_config"]["format"]["type"] == "json_schema"


def test_effort_is_sent_with_the_schema(server: MessagesServer, stream: bool) -> None:
    server.script(say_json({"what": "gnn", "score": 7}))
    lm(server, stream=stream, effort="low").complete(request(output=Guess, effort="high"))
    config = server.requests[0]["output_config"]
    assert config["effort"] == "high" and "format" in config


def test_bounds_are_checked_by_the_client_and_usage_is_kept(server: MessagesServer, stream: bool) -> None:
    server.script(say_json({"what": "gnn", "score": 99}))
    with pytest.raises(LlmBadAnswerError, match="score") as caught:
        lm(server, stream=stream).complete(request(output=Guess))
    assert caught.value.usage is not None and caught.value.usage.output_tokens == server.billed["output"]
    assert caught.value.cost_usd is not None and caught.value.cost_usd > 0


@pytest.mark.parametrize("text", ["I think a GNN would do.", "", '{"what": "gnn"', "[]", "null"])
def test_text_instead_of_json_is_a_bad_answer(server: MessagesServer, stream: bool, text: str) -> None:
    server.script(say(text))
    with pytest.raises(LlmBadAnswerError) as caught:
        lm(server, stream=stream).complete(request(output=Guess))
    assert caught.value.usage is not None


def test_refusal_is_an_error_with_usage(server: MessagesServer, stream: bool) -> None:
    server.script(refuse("we do not do that"))
    with pytest.raises(LlmRefusalError, match="we do not do that") as caught:
        lm(server, stream=stream).complete(request(output=Guess))
    assert caught.value.usage is not None and caught.value.usage.total == sum(server.billed.values())


def test_truncated_answer_is_an_error_with_usage(server: MessagesServer, stream: bool) -> None:
    server.script(truncate())
    with pytest.raises(LlmTruncatedError) as caught:
        lm(server, stream=stream).complete(request(output=Guess))
    assert caught.value.usage is not None and caught.value.usage.output_tokens > 0


def test_tool_calls_and_results_round_trip(server: MessagesServer, stream: bool) -> None:
    tool = Tool(name="query_history", description="rows", input_schema={"type": "object", "properties": {}})
    server.script(use_tool("query_history", {"last": 3}, text="Let me look."), say_json({"what": "mlp", "score": 1}))
    model = lm(server, stream=stream)
    first = request(output=Guess, tools=(tool,))
    response = model.complete(first)
    assert response.stop_reason == "tool_use" and response.parsed is None
    (call,) = response.tool_calls
    assert (call.name, call.input) == ("query_history", {"last": 3})
    turns = (*first.messages, response.turn(), tool_results({call.id: "[]"}))
    assert model.complete(first.model_copy(update={"messages": turns})).parsed == Guess(what="mlp", score=1)


def test_tool_calls_with_one_id_get_results_of_their_own(server: MessagesServer, stream: bool) -> None:
    calls = [use_tool("look", {"at": at}, call_id=call_id).content[0]
             for at, call_id in enumerate(("toolu_1", "toolu_1_1", "toolu_1", "toolu_1"))]  # fmt: skip
    server.script(Behaviour(tuple(calls), stop_reason="tool_use"), say_json({"what": "mlp", "score": 1}))
    model, first = lm(server, stream=stream), request(output=Guess, tools=(TOOL,))
    response = model.complete(first)
    ids = [call.id for call in response.tool_calls]
    assert len(set(ids)) == 4 and ids[:2] == ["toolu_1", "toolu_1_1"]
    assert [call.input for call in response.tool_calls] == [{"at": at} for at in range(4)]
    results = tool_results({call.id: f"row {call.input}" for call in response.tool_calls})
    turns = (*first.messages, response.turn(), results)
    assert model.complete(first.model_copy(update={"messages": turns})).parsed == Guess(what="mlp", score=1)
    asked, answered = (message["content"] for message in server.requests[-1]["messages"][-2:])
    assert [block["id"] for block in asked] == [block["tool_use_id"] for block in answered] == ids


def test_stable_prefix_is_cached_and_all_counters_are_kept(server: MessagesServer, stream: bool) -> None:
    system = ("you design predecoders " * 40, "the knowledge page " * 40, "this round")
    model = lm(server, stream=stream)
    first, second = model.complete(request("a", system=system)), model.complete(request("b", system=system))
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
    response = lm(server).complete(request(system=("s" * 4000,)))
    usage = response.usage
    expected = (usage.input_tokens * 4 + usage.cache_creation_input_tokens * 4 * 1.25 + usage.output_tokens * 20) / 1e6
    assert response.cost_usd == pytest.approx(expected)


def test_one_hour_cache_costs_more(server: MessagesServer) -> None:
    cheap = lm(server).complete(request(system=("s" * 4000,)))
    dear = lm(server, cache_ttl="1h").complete(request(system=("t" * 4000,)))  # not cached yet
    assert server.requests[1]["system"][0]["cache_control"]["ttl"] == "1h"
    assert cheap.cost_usd is not None and dear.cost_usd is not None
    assert dear.cost_usd > 1.4 * cheap.cost_usd


def test_unknown_price_is_null() -> None:
    with MessagesServer(models=("qwen3:8b",)) as server:
        response = AnthropicLM("qwen3:8b", base_url=server.url, api_key=server.key).complete(request())
    assert response.cost_usd is None and response.usage.total > 0


def test_aside_text_follows_the_cached_turn(server: MessagesServer, stream: bool) -> None:
    server.script(say("ok"), say("ok"))
    llm_request = request("go", aside="two cores")
    lm(server, stream=stream).complete(llm_request)
    later = (*llm_request.messages, Message(role="assistant", content="well"), Message(role="user", content="and?"))
    lm(server, stream=stream).complete(llm_request.model_copy(update={"messages": later}))
    for body in server.requests:
        assert "go\ntwo cores" in json.dumps(body["messages"][0], ensure_ascii=False).replace("\\n", "\n")
    assert "two cores" not in json.dumps(server.requests[1]["messages"][1:])


def test_cache_ends_after_the_context(server: MessagesServer, stream: bool) -> None:
    server.script(say("ok"))
    lm(server, stream=stream).complete(request("go", context=("round 1", "round 2"), aside="two cores"))
    first, second, turn = server.requests[0]["messages"][0]["content"]
    assert first == {"type": "text", "text": "round 1"}
    assert (second["text"], second["cache_control"]["type"]) == ("round 2", "ephemeral")
    assert turn == {"type": "text", "text": "go\ntwo cores"}


def test_context_that_grows_is_read_from_the_cache(server: MessagesServer) -> None:
    rounds = tuple(f"round {number}: " + "figures " * 50 for number in range(6))
    usages = [lm(server).complete(request(f"round {n}", context=rounds[:n])).usage for n in (2, 3, 6)]
    assert usages[0].cache_read_input_tokens == 0
    for before, after in itertools.pairwise(usages):
        assert after.cache_read_input_tokens == before.cache_read_input_tokens + before.cache_creation_input_tokens


def test_tokens_are_counted_by_the_provider(server: MessagesServer) -> None:
    server.script(say_json({"what": "gnn", "score": 7}))
    model, llm_request = lm(server), request("a" * 1000, system=("b" * 1000,), output=Guess)
    counted = model.count_tokens(llm_request)
    assert counted == model.complete(llm_request).usage.prompt_tokens
    assert len(server.counted) == 1


def test_token_count_without_a_counting_endpoint_is_an_upper_bound(server: MessagesServer) -> None:
    server.can_count = False
    server.script(say_json({"what": "gnn", "score": 7}))
    llm_request = request("a" * 1000, system=("b" * 1000,), output=Guess)
    assert lm(server).count_tokens(llm_request) >= lm(server).complete(llm_request).usage.prompt_tokens


@pytest.mark.parametrize(
    "fault", [rate_limited(), fail(500), fail(529), malformed(), malformed(b"<html>"), malformed(b"[]")]
)
def test_transient_errors_are_retried(server: MessagesServer, fault: object) -> None:
    server.script(fault, say("there"))  # type: ignore[arg-type]
    assert lm(server).complete(request()).text == "there"
    assert len(server.requests) == 2


@pytest.mark.parametrize("fault", [rate_limited(), fail(500), fail(529)])
def test_transient_errors_before_a_stream_are_retried(server: MessagesServer, fault: object) -> None:
    server.script(fault, say("there"))  # type: ignore[arg-type]
    assert lm(server, stream=True).complete(request()).text == "there"


def test_interrupted_answer_is_retried_and_counted_as_lost(server: MessagesServer) -> None:
    server.script(cut(say("x" * 500)), say("there"))
    response = lm(server).complete(request())
    assert (response.text, response.lost_attempts) == ("there", 1)


@pytest.mark.parametrize(
    "fault", [cut(say("x" * 500), 900), overloaded_midway(say("x" * 500))], ids=["cut", "overloaded"]
)
def test_interrupted_stream_is_retried(server: MessagesServer, fault: object) -> None:
    server.script(fault, say_json({"what": "there", "score": 0}))  # type: ignore[arg-type]
    response = lm(server, stream=True).complete(request(output=Guess))
    assert (response.parsed, response.lost_attempts) == (Guess(what="there", score=0), 1)


def test_slow_answer_times_out(server: MessagesServer) -> None:
    server.script(slow(say("late"), 1.5))
    with pytest.raises(LlmUnavailableError) as caught:
        lm(server, timeout_s=0.2, max_retries=0).complete(request())
    assert caught.value.lost_attempts == 1


@pytest.mark.parametrize("fault", [rate_limited(), fail(500), fail(529), malformed(), cut(say("x" * 500))])
def test_permanent_errors_have_their_type(server: MessagesServer, fault: object) -> None:
    server.answer = lambda body: fault  # type: ignore[assignment, return-value]
    with pytest.raises(LlmUnavailableError):
        lm(server, max_retries=1).complete(request())
    assert len(server.requests) == 2


def test_permanent_error_inside_a_stream_has_its_type(server: MessagesServer) -> None:
    server.answer = lambda body: cut(say("x" * 500), 900)
    with pytest.raises(LlmUnavailableError) as caught:
        lm(server, stream=True, max_retries=1).complete(request())
    assert caught.value.lost_attempts == 2


def test_excessive_retry_after_is_refused(server: MessagesServer, stream: bool) -> None:
    server.script(rate_limited(retry_after_ms=None, retry_after_s=86_400))
    with pytest.raises(LlmUnavailableError, match="86400 s"):
        lm(server, stream=stream).complete(request())


DATE = "Wed, 21 Oct 2199 07:28:00 GMT"


@pytest.mark.parametrize("status", [429, 500, 529])
@pytest.mark.parametrize("headers", [{"retry-after": DATE}, {"retry-after-ms": "3600000"}, {"retry-after": "9999"}])
def test_long_pauses_are_refused_in_every_form(
    server: MessagesServer, stream: bool, status: int, headers: dict[str, str]
) -> None:
    server.answer = lambda body: replace(fail(status), headers=headers)
    with pytest.raises(LlmUnavailableError, match="asks to wait"):
        lm(server, stream=stream).complete(request())
    assert len(server.requests) == 1


def test_retry_after_is_parsed_like_the_package_does() -> None:
    assert requested_pause_s({"retry-after-ms": "250", "retry-after": "9"}) == 0.25
    assert requested_pause_s({"retry-after": "9"}) == 9
    assert requested_pause_s({"retry-after": DATE}) > 1e9
    assert requested_pause_s({"retry-after": "Wed, 21 Oct 1999 07:28:00 GMT"}) == 0
    assert requested_pause_s({"retry-after": "soon"}) == requested_pause_s({}) == 0


@pytest.mark.parametrize("fault", [rate_limited(retry_after_ms=3_600_000), slow(fail(500), 3.0)])
def test_counting_falls_back_to_an_estimate_within_the_time_limit(server: MessagesServer, fault: Behaviour) -> None:
    server.count_fault = fault
    assert lm(server, timeout_s=0.5).count_tokens(request("go " * 100)) >= 100
    assert len(server.counted) == 1


def test_slowly_streamed_answer_is_cut_off(server: MessagesServer, stream: bool) -> None:
    server.answer = lambda body: trickled(say("x" * 200), 0.02)
    with pytest.raises(LlmUnavailableError):
        lm(server, stream=stream, timeout_s=0.5, max_retries=1).complete(request())


TOOL = Tool(name="query_history", description="rows", input_schema={"type": "object", "properties": {}})
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
        lm(server, max_retries=0).complete(request(output=Guess))
    assert caught.value.usage is not None and caught.value.cost_usd is not None


@pytest.mark.parametrize("arguments", [["mlp"], "mlp", 7, None, True, {"at": math.nan}])
def test_tool_call_whose_input_is_no_json_object_is_a_bad_answer(
    server: MessagesServer, stream: bool, arguments: Any
) -> None:
    server.answer = lambda body: use_tool("query_history", arguments)
    with pytest.raises(LlmBadAnswerError) as caught:
        lm(server, stream=stream, max_retries=0).complete(request(tools=(TOOL,)))
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
    with pytest.raises((LlmBadAnswerError, LlmUnavailableError)):
        lm(server, stream=True, max_retries=0).complete(request(output=Guess))


@pytest.mark.parametrize("value", ["-5", "-1e8", "1e999", "NaN", '"many"', "{}", "[3]", "null", "1e30"])
def test_impossible_usage_is_clamped(
    server: MessagesServer, stream: bool, value: str, caplog: pytest.LogCaptureFixture
) -> None:
    answer = say("fine")
    server.answer = lambda body: edited(answer, ('"cache_read_input_tokens": 0', f'"cache_read_input_tokens": {value}'))
    response = lm(server, stream=stream, max_retries=0).complete(request())
    assert 0 <= response.usage.cache_read_input_tokens <= MAX_TOKENS and response.cost_usd is not None
    assert 0 <= response.cost_usd < 1e3
    assert value == "null" or "cache_read_input_tokens" in caplog.text


def test_unreachable_server_is_an_error() -> None:
    with pytest.raises(LlmUnavailableError) as caught:
        AnthropicLM(MODEL, base_url="http://127.0.0.1:9", max_retries=0).complete(request())
    assert caught.value.lost_attempts == 0


def test_missing_key_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(LlmAuthError, match="ANTHROPIC_API_KEY"):
        AnthropicLM(MODEL)


def test_wrong_key_is_an_error(server: MessagesServer, stream: bool) -> None:
    model = AnthropicLM(MODEL, base_url=server.url, api_key="sk-ant-wrong-0123456789", stream=stream)
    with pytest.raises(LlmAuthError):
        model.complete(request())
    with pytest.raises(LlmAuthError):
        model.count_tokens(request())


def test_key_is_read_from_the_environment(server: MessagesServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", server.key)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    assert AnthropicLM(MODEL).complete(request()).text == "ok"


@pytest.mark.parametrize("with_key", [True, False])
def test_key_of_the_environment_is_sent_before_its_token(
    server: MessagesServer, monkeypatch: pytest.MonkeyPatch, *, with_key: bool
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", server.key if with_key else "")
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", "another" if with_key else server.key)
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    assert AnthropicLM(MODEL).complete(request()).text == "ok"


def test_custom_endpoint_never_receives_the_key_of_the_environment(
    server: MessagesServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", server.key)
    monkeypatch.setenv("ANTHROPIC_AUTH_TOKEN", server.key)
    with pytest.raises(LlmAuthError):
        AnthropicLM(MODEL, base_url=server.url).complete(request())


def test_unknown_model_is_an_error(server: MessagesServer) -> None:
    with pytest.raises(LlmBadRequestError, match="claude-nonesuch"):
        AnthropicLM("claude-nonesuch", base_url=server.url, api_key=server.key).complete(request())


def test_oversized_answer_is_a_bad_answer(server: MessagesServer, stream: bool) -> None:
    server.script(say("x" * 2_000_001))
    with pytest.raises(LlmBadAnswerError, match="2000001 characters"):
        lm(server, stream=stream).complete(request())


def test_call_reserves_tokens_for_thinking(server: MessagesServer) -> None:
    assert lm(server, max_output_tokens=2048).call("be brief", "hello") == "ok"
    assert server.requests[0]["max_tokens"] == 8192
    assert "temperature" not in server.requests[0]


def test_no_key_in_errors_or_logs(server: MessagesServer, caplog: pytest.LogCaptureFixture) -> None:
    server.script(fail(400, f"you sent {server.key}, it is wrong"))
    caplog.set_level(logging.DEBUG)
    with pytest.raises(LlmError) as caught:
        lm(server).complete(request())
    lm(server).complete(request())
    assert server.key not in str(caught.value) and server.key not in repr(caught.value.__dict__)
    assert server.key not in caplog.text


def test_missing_usage_is_not_estimated() -> None:
    assert Usage() + Usage(input_tokens=1) == Usage(input_tokens=1)
    with pytest.raises(ValueError):
        Usage(input_tokens=-1)


def test_loopback_server_rejects_what_the_api_rejects(server: MessagesServer) -> None:
    import anthropic

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
