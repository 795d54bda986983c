"""Clients of OpenAI-compatible endpoints and of Gemini, with loopback servers of both APIs."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Iterator
from email.utils import formatdate
from typing import Any

import pytest
from pydantic import BaseModel, Field

from autoqec.errors import UsageError
from autoqec.extensions.language_models.clients import redact
from autoqec.extensions.language_models.clients.base import LanguageModel, Message, Request, Tool, tool_results
from autoqec.extensions.language_models.clients.config import GeminiConfig, LMConfig, get_lm_client
from autoqec.extensions.language_models.clients.errors import (
    LlmAuthError,
    LlmBadAnswerError,
    LlmBadRequestError,
    LlmRefusalError,
    LlmTruncatedError,
    LlmUnavailableError,
)
from tests.support.llm_requests import request
from tests.support.messages_server import (
    Behaviour,
    cut,
    edited,
    fail,
    malformed,
    rate_limited,
    refuse,
    say,
    say_json,
    slow,
    trickled,
    truncate,
    use_tool,
)
from tests.support.provider_servers import CompletionsServer, GeminiServer, ProviderServer

MODELS = {"openai": "gpt-6", "gemini": "gemini-3-pro"}
SERVERS = {"openai": CompletionsServer, "gemini": GeminiServer}


class Idea(BaseModel):
    """A structured answer."""

    what: str
    share: float = Field(ge=0, le=1, default=0.5)


@pytest.fixture(params=["openai", "gemini"])
def api(request: pytest.FixtureRequest) -> str:
    package = {"openai": "openai", "gemini": "google.genai"}[request.param]
    pytest.importorskip(package, reason=f"pip install 'autoqec[{request.param}]'")
    return str(request.param)


@pytest.fixture
def server(api: str) -> Iterator[ProviderServer]:
    with SERVERS[api]() as running:
        yield running


@pytest.fixture
def client(api: str, server: ProviderServer) -> Callable[..., LanguageModel]:
    def build(**options: Any) -> LanguageModel:
        return get_lm_client(LMConfig(**{"model": MODELS[api], "base_url": server.url, **options}))

    return build


def test_text_answer_with_system_prompt_and_usage(server, client, api):
    server.script(say("hello"))
    response = client().complete(request(system=("be brief", "and kind")))
    assert (response.text, response.stop_reason, response.model) == ("hello", "end_turn", MODELS[api])
    assert response.usage.cache_read_input_tokens > 0 and response.usage.output_tokens > 0
    assert "be brief\n\nand kind" in str(server.requests[0]).replace("\\n", "\n")
    assert response.cost_usd is None and isinstance(client(), LanguageModel)


def test_context_precedes_the_first_turn(server, client):
    server.script(say("hello"))
    client().complete(request("go", context=("long record",), aside="two cores"))
    assert "long record\ngo\ntwo cores" in str(server.requests[0]).replace("\\n", "\n")


def test_call_reserves_tokens_for_thinking(server, client):
    server.script(say("hello"))
    assert client(max_output_tokens=100).call("system", "user") == "hello"
    assert "8192" in str(server.requests[0])


def test_structured_answer_is_parsed(server, client):
    server.script(say_json({"what": "gnn", "share": 0.25}), say_json({"what": "gnn", "share": 2}))
    assert client().complete(request(output=Idea)).parsed == Idea(what="gnn", share=0.25)
    with pytest.raises(LlmBadAnswerError, match="share") as raised:
        client().complete(request(output=Idea))
    assert raised.value.usage is not None and raised.value.usage.output_tokens > 0


def test_conversation_keeps_its_turns(server, client):
    turns = (
        Message(role="user", content="a"),
        Message(role="assistant", content="b"),
        Message(role="user", content="c"),
    )
    client().complete(Request(messages=turns))
    sent = server.requests[0]
    assert [turn["role"] for turn in sent.get("messages") or sent["contents"]] in (
        ["user", "assistant", "user"],
        ["user", "model", "user"],
    )


@pytest.mark.parametrize(("behaviour", "error"), [(refuse(), LlmRefusalError), (truncate(), LlmTruncatedError)])
def test_refused_and_truncated_answers_have_an_error_type(server, client, behaviour, error):
    server.script(behaviour)
    with pytest.raises(error) as raised:
        client().complete(request(output=Idea))
    assert raised.value.usage is not None and len(server.requests) == 1


@pytest.mark.parametrize(
    "fault", [rate_limited(), fail(500), fail(529), malformed(), cut(say("x" * 500)), malformed(b"[]")]
)
def test_transient_errors_are_retried(server, client, fault):
    server.script(fault, say("done"))
    response = client().complete(request())
    assert response.text == "done" and len(server.requests) == 2
    assert response.lost_attempts == (fault.status == 200)


@pytest.mark.parametrize("fault", [rate_limited(), fail(503), malformed(), cut(say("x" * 500))])
def test_permanent_errors_have_their_type(server, client, fault):
    server.answer = lambda body: fault
    with pytest.raises(LlmUnavailableError) as raised:
        client(max_retries=1).complete(request())
    assert len(server.requests) == 2 and raised.value.lost_attempts == (2 if fault.status == 200 else 0)


@pytest.mark.parametrize(
    "headers",
    [{"retry-after": "9999"}, {"retry-after-ms": "3600000"}, {"retry-after": formatdate(4e9, usegmt=True)}],
)
def test_long_pauses_are_refused_in_every_form(server, client, headers):
    server.script(rate_limited(retry_after_ms=None).__class__(status=429, message="slow down", headers=headers))
    with pytest.raises(LlmUnavailableError, match="asks to wait"):
        client().complete(request())
    assert len(server.requests) == 1


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (fail(401, "no"), LlmAuthError),
        (fail(403, "no"), LlmAuthError),
        (fail(400, "prompt too long"), LlmBadRequestError),
        (fail(404, "no such model"), LlmBadRequestError),
    ],
)
def test_permanent_errors_are_not_retried(server, client, fault, error):
    server.script(fault)
    with pytest.raises(error):
        client().complete(request())
    assert len(server.requests) == 1


def test_unknown_model_and_wrong_key_are_errors(server, client):
    with pytest.raises(LlmBadRequestError, match="unknown-model"):
        client(model="unknown-model", backend="openai" if isinstance(server, CompletionsServer) else "gemini").call(
            "", "x"
        )
    server.key = "another"
    with pytest.raises(LlmAuthError):
        client().call("", "x")


def test_slow_and_trickling_answers_are_cut_off(server, client):
    for behaviour in (slow(say("late"), 3), trickled(say("x" * 400), 0.05)):
        server.script(behaviour)
        with pytest.raises(LlmUnavailableError):
            client(timeout_s=0.5, max_retries=0).complete(request())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"model"', '"modal"'),
        ("hello", '", "content": 3, "text": 3, "x": "'),
        ('"candidatesTokenCount": ', '"candidatesTokenCount": -'),
        ('"completion_tokens": ', '"completion_tokens": -'),
        ('"promptTokenCount": ', '"promptTokenCount": 1e999, "x": '),
        ('"prompt_tokens": ', '"prompt_tokens": NaN, "x": '),
        ('"usage": {', '"usage": [{}], "x": {'),
        ('"usageMetadata": {', '"usageMetadata": "many", "x": {'),
    ],
)
def test_impossible_usage_and_fields_are_tolerated(server, client, old, new):
    try:
        server.script(edited(say("hello"), (old, new)))
        response = client().complete(request())
    except LlmBadAnswerError:
        return
    except LlmUnavailableError:  # the other API has no such field: its server refuses the edit
        pytest.skip("a field of the other API")
    assert 0 <= response.usage.total < 10**9


@pytest.mark.parametrize(
    "body",
    [
        b'{"choices": [], "usage": {}}',
        b'{"choices": [3], "candidates": [3]}',
        b'{"choices": [{"message": null}], "candidates": [{"content": {"parts": [{"text": null}]}}]}',
        b'{"choices": [{"message": {"content": {"a": 1}}}], "candidates": {"a": 1}}',
        b'{"choices": [{"message": {"tool_calls": [{"function": {"arguments": "[]"}}]}}], "candidates": [[]]}',
        b'{"choices": [{"message": {"content": "x"}, "finish_reason": []}], "candidates": [{"finishReason": {}}]}',
    ],
)
def test_malformed_answers_have_an_error_type(server, client, body):
    server.answer = lambda sent: malformed(body)
    with pytest.raises((LlmBadAnswerError, LlmUnavailableError, LlmRefusalError)):
        client(max_retries=0).complete(request())


def test_temperature_is_sent_and_dropped_with_one_warning(server, client, caplog):
    client(temperature=0.3).call("", "x")
    assert "0.3" in str(server.requests[-1])
    server.rejected = ("temperature",)
    lm = client(temperature=0.3)
    with caplog.at_level(logging.WARNING, logger="autoqec.extensions.language_models.clients"):
        assert [lm.call("", "x"), lm.call("", "y")] == ["ok", "ok"]
    assert ["temperature" in record.message for record in caplog.records] == [True]
    assert "0.3" not in str(server.requests[-1])


def test_without_an_explicit_temperature_none_is_sent(server, client):
    client().call("", "x")
    assert "temperature" not in str(server.requests)


def test_custom_endpoint_gets_a_key_only_if_the_config_names_its_variable(server, client, monkeypatch, caplog):
    for name in ("OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.setenv(name, "of-a-provider-0123")
    client().call("", "x")
    assert "of-a-provider" not in str(server.headers)
    monkeypatch.setenv("MY_GATEWAY_KEY", "of-the-gateway-0123")
    server.key = "of-the-gateway-0123"
    assert client(api_key_env="MY_GATEWAY_KEY").call("", "x") == "ok"
    assert redact.redact("key of-the-gateway-0123") == "key [key removed]"
    with pytest.raises(LlmAuthError, match="NOT_SET_KEY"):
        client(api_key_env="NOT_SET_KEY")


def test_missing_key_is_reported_before_the_first_call(api):
    names = {"openai": "OPENAI_API_KEY", "gemini": "GEMINI_API_KEY"}
    with pytest.raises(LlmAuthError, match=names[api]):
        get_lm_client(LMConfig(model=MODELS[api]))


@pytest.mark.parametrize(("model", "extra"), [("gpt-6", "openai"), ("gemini-3-pro", "gemini")])
def test_missing_package_has_an_install_hint(monkeypatch, model, extra):
    for name in ("openai", "google", "google.genai"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match="not installed") as raised:
        get_lm_client(LMConfig(model=model, base_url="http://127.0.0.1:9"))
    assert raised.value.hint == f"pip install 'autoqec[{extra}]'"


def test_tool_calls_round_trip_through_the_completions_api():
    pytest.importorskip("openai", reason="pip install 'autoqec[openai]'")
    tool = Tool(name="look", description="Looks.", input_schema={"type": "object", "properties": {}})
    with CompletionsServer() as server:
        lm = get_lm_client(LMConfig(model="qwen3", backend="openai", base_url=server.url))
        server.script(use_tool("look", {"at": 1}, call_id="call_1", text="I look."), say("seen"))
        first = lm.complete(request(tools=(tool,)))
        assert first.stop_reason == "tool_use" and first.tool_calls[0].input == {"at": 1} and lm.supports_tools
        turns = (*request().messages, first.turn(), tool_results({"call_1": "found"}))
        assert lm.complete(Request(messages=turns, tools=(tool,))).text == "seen"
        assert [m["role"] for m in server.requests[1]["messages"]] == ["user", "assistant", "tool"]


@pytest.mark.parametrize("call_id", ["call_1", ""])
def test_tool_calls_with_one_id_get_results_of_their_own(call_id):
    pytest.importorskip("openai", reason="pip install 'autoqec[openai]'")
    tool = Tool(name="look", description="Looks.", input_schema={"type": "object", "properties": {}})
    calls = [use_tool("look", {"at": at}, call_id=call_id).content[0] for at in range(2)]
    with CompletionsServer() as server:
        lm = get_lm_client(LMConfig(model="qwen3", backend="openai", base_url=server.url))
        server.script(Behaviour(tuple(calls), stop_reason="tool_use"), say("seen"))
        first = lm.complete(request(tools=(tool,)))
        results = {call.id: f"at {call.input['at']}" for call in first.tool_calls}
        assert len(results) == 2 and all(results)
        turns = (*request().messages, first.turn(), tool_results(results))
        assert lm.complete(Request(messages=turns, tools=(tool,))).text == "seen"
        answers = [each for each in server.requests[1]["messages"] if each["role"] == "tool"]
        assert [(each["tool_call_id"], each["content"]) for each in answers] == list(results.items())


@pytest.mark.parametrize(
    "arguments", ['["mlp"]', '"mlp"', "7", "null", "true", '{"at": NaN}', '{"at": ', '[{"at": 1}]']
)
def test_tool_call_whose_arguments_are_no_json_object_is_a_bad_answer(arguments):
    pytest.importorskip("openai", reason="pip install 'autoqec[openai]'")
    tool = Tool(name="look", description="Looks.", input_schema={"type": "object", "properties": {}})
    with CompletionsServer() as server:
        server.answer = lambda body: edited(use_tool("look", {"at": 1}), ('"{\\"at\\": 1}"', json.dumps(arguments)))
        lm = get_lm_client(LMConfig(model="qwen3", backend="openai", base_url=server.url))
        with pytest.raises(LlmBadAnswerError) as caught:
            lm.complete(request(tools=(tool,)))
    assert caught.value.usage is not None


@pytest.mark.parametrize("call", ['"look"', "[]", '{"name": "look", "args": ["mlp"]}', '{"name": "look", "args": 7}'])
def test_function_call_that_gemini_was_not_offered_is_a_bad_answer(call):
    pytest.importorskip("google.genai", reason="pip install 'autoqec[gemini]'")
    with GeminiServer() as server:
        server.answer = lambda body: edited(say("odd!odd!"), ('"text": "odd!odd!"', f'"functionCall": {call}'))
        lm = get_lm_client(LMConfig(model="gemini-3-pro", base_url=server.url))
        with pytest.raises(LlmBadAnswerError) as caught:
            lm.complete(request(output=Idea))
    assert not lm.supports_tools and caught.value.usage is not None


def test_thinking_budget_is_sent_to_gemini_unless_the_model_rejects_it(caplog):
    pytest.importorskip("google.genai", reason="pip install 'autoqec[gemini]'")
    with GeminiServer() as server:
        lm = get_lm_client(GeminiConfig(model="gemini-3-pro", base_url=server.url, thinking_budget=512))
        assert lm.call("", "x") == "ok"
        assert server.requests[0]["generationConfig"]["thinkingConfig"] == {"thinking_budget": 512}
        server.rejected = ("thinkingBudget",)
        assert [lm.call("", "x"), lm.call("", "y")] == ["ok", "ok"]
        effort = get_lm_client(LMConfig(model="gemini-3-pro", base_url=server.url, effort="max"))
        assert effort.call("", "x") == "ok"
        assert server.requests[-1]["generationConfig"]["thinkingConfig"] == {"thinking_level": "HIGH"}
    assert [record.message for record in caplog.records if "thinking_budget" in record.message] == [
        "the model gemini-3-pro does not accept `thinking_budget`; it is not sent"
    ]


def test_values_of_custom_headers_are_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "X-Team: qec\nX-Gateway-Token: of-the-gateway-0123")
    assert redact.redact("team qec, token of-the-gateway-0123") == "team qec, token [key removed]"
