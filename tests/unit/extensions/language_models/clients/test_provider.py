"""What the clients of all providers have in common, through the real packages, against loopback servers."""

from __future__ import annotations

import json
import logging
import math
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from email.utils import formatdate
from typing import Any

import pytest
from pydantic import BaseModel, Field

from autoqec.errors import UsageError
from autoqec.extensions.language_models.clients.base import LanguageModel, Message, Request, Tool, tool_results
from autoqec.extensions.language_models.clients.config import LMConfig, get_lm_client
from autoqec.extensions.language_models.clients.environment import redact
from autoqec.extensions.language_models.clients.errors import (
    LlmAuthError,
    LlmBadAnswerError,
    LlmBadRequestError,
    LlmError,
    LlmRefusalError,
    LlmTruncatedError,
    LlmUnavailableError,
)
from autoqec.extensions.language_models.clients.usage import MAX_TOKENS
from tests.support.messages_server import (
    Behaviour,
    MessagesServer,
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
from tests.support.provider_servers import CompletionsServer, GeminiServer

pytest.importorskip("openai", reason="pip install 'autoqec[openai]'")

MODELS = {"messages": "claude-opus-5-5", "stream": "claude-opus-5-5", "openai": "gpt-6", "gemini": "gemini-3-pro"}
SERVERS: dict[str, Callable[[], MessagesServer]] = {
    "messages": lambda: MessagesServer(key="none"),
    "stream": lambda: MessagesServer(key="none"),
    "openai": CompletionsServer,
    "gemini": GeminiServer,
}
TOOL = Tool(name="look", description="Looks.", input_schema={"type": "object", "properties": {}})
OF_A_PROVIDER = "of-a-provider-0123"


class Idea(BaseModel):
    """A structured answer."""

    what: str
    share: float = Field(ge=0, le=1, default=0.5)


@pytest.fixture(params=list(MODELS))
def api(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["messages", "stream", "openai"])
def api_with_tools(request: pytest.FixtureRequest) -> str:
    return str(request.param)


class Client:
    """A server, and clients of it; answers of the API `stream` are long enough to be streamed."""

    def __init__(self, api: str, server: MessagesServer) -> None:
        self.api, self.server = api, server

    def lm(self, **options: Any) -> LanguageModel:
        return get_lm_client(LMConfig(**{"model": MODELS[self.api], "base_url": self.server.url, **options}))

    def request(self, text: str = "go", **fields: Any) -> Request:
        turn = Message(role="user", content=text)
        return Request(**{"messages": (turn,), "max_tokens": 64_000 if self.api == "stream" else 8192, **fields})

    def ask(self, *script: Behaviour, options: dict[str, Any] | None = None, **fields: Any) -> Any:
        self.server.script(*script)
        return self.lm(**options or {}).complete(self.request(**fields))


@pytest.fixture
def client(api: str) -> Iterator[Client]:
    with SERVERS[api]() as server:
        yield Client(api, server)


@pytest.fixture
def tool_client(api_with_tools: str) -> Iterator[Client]:
    with SERVERS[api_with_tools]() as server:
        yield Client(api_with_tools, server)


def test_text_answer_with_system_prompt_and_usage(client: Client) -> None:
    response = client.ask(say("hello, Δ"), system=("be brief", "and kind"), context=("long record",), aside="two cores")
    assert (response.text, response.stop_reason) == ("hello, Δ", "end_turn")
    assert (response.model, response.parsed) == (MODELS[client.api], None)
    assert response.usage.prompt_tokens > 0 and response.usage.output_tokens > 0
    sent = json.dumps(client.server.requests[0])
    assert all(text in sent for text in ("be brief", "and kind", "long record", "go\\ntwo cores"))
    assert client.server.requests[0].get("stream", False) is (client.api == "stream")


def test_structured_answer_is_parsed_and_its_bounds_are_checked(client: Client) -> None:
    assert client.ask(say_json({"what": "gnn", "share": 0.25}), output=Idea).parsed == Idea(what="gnn", share=0.25)
    with pytest.raises(LlmBadAnswerError, match="share") as caught:
        client.ask(say_json({"what": "gnn", "share": 2}), output=Idea)
    assert caught.value.usage is not None and caught.value.usage.output_tokens > 0


@pytest.mark.parametrize("text", ["I think a GNN would do.", "", '{"what": "gnn"', "[]", "null"])
def test_text_instead_of_json_is_a_bad_answer(client: Client, text: str) -> None:
    with pytest.raises(LlmBadAnswerError) as caught:
        client.ask(say(text), output=Idea)
    assert caught.value.usage is not None


@pytest.mark.parametrize(("behaviour", "error"), [(refuse(), LlmRefusalError), (truncate(), LlmTruncatedError)])
def test_refused_and_truncated_answers_have_an_error_type(
    client: Client, behaviour: Behaviour, error: type[LlmError]
) -> None:
    with pytest.raises(error) as caught:
        client.ask(behaviour, output=Idea)
    assert caught.value.usage is not None and len(client.server.requests) == 1


def test_conversation_keeps_its_turns(client: Client) -> None:
    roles = ("user", "assistant", "user")
    client.ask(messages=tuple(Message(role=role, content=role) for role in roles))  # type: ignore[arg-type]
    assert [turn["role"] for turn in client.server.requests[0]["messages"]] == list(roles)


def test_call_reserves_tokens_for_thinking(client: Client) -> None:
    assert client.lm(max_output_tokens=100).call("system", "user") == "ok"
    sent = client.server.requests[0]
    assert 8192 in (sent.get("max_tokens"), sent.get("max_completion_tokens")) and "temperature" not in sent


@pytest.mark.parametrize("fault", [rate_limited(), fail(500), fail(529)])
def test_transient_errors_are_retried(client: Client, fault: Behaviour) -> None:
    response = client.ask(fault, say("done"))
    assert (response.text, response.lost_attempts, len(client.server.requests)) == ("done", 0, 2)


@pytest.mark.parametrize("fault", [malformed(), malformed(b"<html>"), malformed(b"[]"), cut(say("x" * 5000), 900)])
def test_answer_that_does_not_arrive_whole_is_lost_and_asked_for_again(client: Client, fault: Behaviour) -> None:
    response = client.ask(fault, say("done"))
    assert (response.text, response.lost_attempts, len(client.server.requests)) == ("done", 1, 2)


@pytest.mark.parametrize("fault", [rate_limited(), fail(503), malformed(), cut(say("x" * 500))])
def test_errors_that_stay_have_their_type(client: Client, fault: Behaviour) -> None:
    client.server.answer = lambda body: fault
    with pytest.raises(LlmUnavailableError) as caught:
        client.ask(options={"max_retries": 1})
    assert len(client.server.requests) == 2 and caught.value.lost_attempts == (2 if fault.status == 200 else 0)


@pytest.mark.parametrize(
    "headers", [{"retry-after": "9999"}, {"retry-after-ms": "3600000"}, {"retry-after": formatdate(4e9, usegmt=True)}]
)
@pytest.mark.parametrize("status", [429, 500])
def test_long_pauses_are_refused_in_every_form(client: Client, status: int, headers: dict[str, str]) -> None:
    with pytest.raises(LlmUnavailableError, match="asks to wait"):
        client.ask(replace(fail(status), headers=headers))
    assert len(client.server.requests) == 1


@pytest.mark.parametrize(
    ("fault", "error"),
    [
        (fail(401, "no"), LlmAuthError),
        (fail(403, "no"), LlmAuthError),
        (fail(400, "prompt too long"), LlmBadRequestError),
        (fail(404, "no such model"), LlmBadRequestError),
    ],
)
def test_permanent_errors_are_not_retried(client: Client, fault: Behaviour, error: type[LlmError]) -> None:
    with pytest.raises(error):
        client.ask(fault)
    assert len(client.server.requests) == 1


def test_unknown_model_and_wrong_key_are_errors(client: Client) -> None:
    backend = {"stream": "anthropic", "messages": "anthropic"}.get(client.api, client.api)
    with pytest.raises(LlmBadRequestError, match="unknown-model"):
        client.ask(options={"model": "unknown-model", "backend": backend})
    client.server.key = "another"
    with pytest.raises(LlmAuthError):
        client.ask()


@pytest.mark.parametrize("behaviour", [slow(say("late"), 2), trickled(say("x" * 400), 0.05)])
def test_slow_and_trickling_answers_are_cut_off(client: Client, behaviour: Behaviour) -> None:
    client.server.answer = lambda body: behaviour
    with pytest.raises(LlmUnavailableError) as caught:
        client.ask(options={"timeout_s": 0.5, "max_retries": 1})
    assert caught.value.lost_attempts == 1


def test_unreachable_server_loses_no_answer(client: Client) -> None:
    with pytest.raises(LlmUnavailableError) as caught:
        client.ask(options={"base_url": "http://127.0.0.1:9", "max_retries": 0})
    assert caught.value.lost_attempts == 0


def test_oversized_answer_is_a_bad_answer(client: Client) -> None:
    with pytest.raises(LlmBadAnswerError, match="2000001 characters"):
        client.ask(say("x" * 2_000_001))


def test_tool_calls_with_one_id_get_results_of_their_own(tool_client: Client) -> None:
    calls = [use_tool("look", {"at": at}, call_id=call_id).content[0]
             for at, call_id in enumerate(("call_1", "call_1_1", "call_1", "call_1"))]  # fmt: skip
    first = tool_client.ask(Behaviour(tuple(calls), stop_reason="tool_use"), tools=(TOOL,))
    assert first.stop_reason == "tool_use" and first.parsed is None
    assert [call.input for call in first.tool_calls] == [{"at": at} for at in range(4)]
    results = {call.id: f"row {call.input}" for call in first.tool_calls}
    assert len(results) == 4
    turns = (*tool_client.request().messages, first.turn(), tool_results(results))
    again = tool_client.ask(say_json({"what": "mlp"}), messages=turns, tools=(TOOL,), output=Idea)
    assert again.parsed == Idea(what="mlp"), "the server compares calls and results"


@pytest.mark.parametrize("arguments", [["mlp"], "mlp", 7, None, True, {"at": math.nan}])
def test_tool_call_whose_input_is_no_json_object_is_a_bad_answer(tool_client: Client, arguments: Any) -> None:
    with pytest.raises(LlmBadAnswerError) as caught:
        tool_client.ask(use_tool("look", arguments), tools=(TOOL,))
    assert caught.value.usage is not None


@pytest.mark.parametrize("value", ["-5", "-1e8", "1e999", "NaN", '"many"', "{}", "[3]", "null", "1e30"])
def test_impossible_usage_is_clamped(client: Client, value: str, caplog: pytest.LogCaptureFixture) -> None:
    name = "completion_tokens" if client.api in ("openai", "gemini") else "cache_read_input_tokens"
    server, plain = client.server, say("fine")
    key = f'"{name}": 0' if name.startswith("cache") else f'"{name}": '
    new = f'"{name}": {value}' + ("" if name.startswith("cache") else ', "x": ')
    server.answer = lambda body: edited(plain, (key, new))
    response = client.ask(options={"max_retries": 0})
    assert 0 <= response.usage.total <= 2 * MAX_TOKENS
    assert value == "null" or name in caplog.text


def test_temperature_is_sent_and_dropped_with_one_warning(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    if isinstance(client.server, CompletionsServer):
        client.ask(options={"temperature": 0.3})
        assert client.server.requests[-1]["temperature"] == 0.3
        client.server.rejected = ("temperature",)
    lm = client.lm(temperature=0.3)
    with caplog.at_level(logging.WARNING, logger="autoqec.extensions.language_models.clients"):
        assert [lm.call("", "x"), lm.call("", "y")] == ["ok", "ok"]
    assert ["temperature" in record.message for record in caplog.records] == [True]
    assert "temperature" not in client.server.requests[-1]


def test_custom_endpoint_gets_a_key_only_if_the_config_names_its_variable(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "OPENAI_API_KEY", "GEMINI_API_KEY", "GOOGLE_API_KEY"):
        monkeypatch.setenv(name, OF_A_PROVIDER)
    client.ask()
    assert OF_A_PROVIDER not in str(client.server.headers)
    monkeypatch.setenv("MY_GATEWAY_KEY", "of-the-gateway-0123")
    client.server.key = "of-the-gateway-0123"
    assert client.ask(options={"api_key_env": "MY_GATEWAY_KEY"}).text == "ok"
    assert redact("key of-the-gateway-0123") == "key [key removed]"
    with pytest.raises(LlmAuthError, match="NOT_SET_KEY"):
        client.lm(api_key_env="NOT_SET_KEY")


@pytest.mark.parametrize(
    ("model", "name"),
    [("claude-opus-5-5", "ANTHROPIC_API_KEY"), ("gpt-6", "OPENAI_API_KEY"), ("gemini-3-pro", "GEMINI_API_KEY")],
)
def test_missing_key_is_reported_before_the_first_call(model: str, name: str) -> None:
    with pytest.raises(LlmAuthError, match=name):
        get_lm_client(LMConfig(model=model))


def test_no_key_in_errors_or_logs(client: Client, caplog: pytest.LogCaptureFixture) -> None:
    client.server.key = key = "sk-loopback-0123456789abcdef"
    caplog.set_level(logging.DEBUG)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LOOPBACK_KEY", key)
        with pytest.raises(LlmError) as caught:
            client.ask(fail(400, f"you sent {key}, it is wrong"), options={"api_key_env": "LOOPBACK_KEY"})
        client.ask(options={"api_key_env": "LOOPBACK_KEY"})
    assert key not in str(caught.value) and key not in repr(caught.value.__dict__) and key not in caplog.text


@pytest.mark.parametrize("model", ["gpt-6", "gemini-3-pro"])
def test_missing_package_has_an_install_hint(monkeypatch: pytest.MonkeyPatch, model: str) -> None:
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(UsageError, match="not installed") as caught:
        get_lm_client(LMConfig(model=model, base_url="http://127.0.0.1:9"))
    assert caught.value.hint == "pip install 'autoqec[openai]'"


def test_values_of_custom_headers_are_redacted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", "X-Team: qec\nX-Gateway-Token: of-the-gateway-0123")
    assert redact("team qec, token of-the-gateway-0123") == "team qec, token [key removed]"
