"""What only clients of Chat Completions do; the rest is in `test_provider.py`."""

from __future__ import annotations

import pytest

from autoqec.extensions.language_models.clients.config import GeminiConfig, LMConfig, get_lm_client
from autoqec.extensions.language_models.clients.errors import LlmBadAnswerError
from tests.support.llm_requests import request
from tests.support.messages_server import edited, malformed, say, tokens
from tests.support.provider_servers import THOUGHTS, CompletionsServer, GeminiServer

pytest.importorskip("openai", reason="pip install 'autoqec[openai]'")


@pytest.mark.parametrize(
    "body",
    [
        b'{"choices": [], "usage": {}}',
        b'{"choices": [3]}',
        b'{"choices": [{"message": null}]}',
        b'{"choices": [{"message": {"content": {"a": 1}}}]}',
        b'{"choices": [{"message": {"content": "x"}, "finish_reason": []}]}',
        b'{"choices": [{"message": {"tool_calls": [{"id": "1", "function": {"name": "a", "arguments": "{"}}]}}]}',
    ],
)
def test_malformed_answers_have_an_error_type(body: bytes) -> None:
    with CompletionsServer() as server:
        server.answer = lambda sent: malformed(body)
        lm = get_lm_client(LMConfig(model="gpt-6", base_url=server.url, max_retries=0))
        with pytest.raises(LlmBadAnswerError) as caught:
            lm.complete(request())
    assert caught.value.usage is not None


@pytest.mark.parametrize("new", ['"usage": [{}], "x": {', '"usage": null, "x": {'])
def test_missing_usage_is_none_at_all(new: str) -> None:
    with CompletionsServer() as server:
        server.answer = lambda sent: edited(say("hello"), ('"usage": {', new))
        response = get_lm_client(LMConfig(model="gpt-6", base_url=server.url)).complete(request())
    assert response.text == "hello" and response.usage.total == 0


def test_thoughts_of_gemini_are_output_tokens() -> None:
    with GeminiServer() as server:
        server.script(say("hello"))
        usage = get_lm_client(LMConfig(model="gemini-3-pro", base_url=server.url)).complete(request()).usage
        assert usage.prompt_tokens == tokens(server.requests[0]["messages"])
        assert usage.output_tokens == tokens(say("hello").content) + THOUGHTS


def test_thinking_budget_is_sent_to_gemini_unless_the_model_rejects_it(caplog: pytest.LogCaptureFixture) -> None:
    with GeminiServer() as server:
        lm = get_lm_client(GeminiConfig(model="gemini-3-pro", base_url=server.url, thinking_budget=512))
        assert lm.call("", "x") == "ok" and not lm.supports_tools
        assert server.requests[0]["extra_body"] == {"google": {"thinking_config": {"thinking_budget": 512}}}
        server.rejected = ("thinking_budget",)
        assert [lm.call("", "x"), lm.call("", "y")] == ["ok", "ok"]
        assert "extra_body" not in server.requests[-1]
    assert ["thinking_budget" in record.message for record in caplog.records] == [True]


@pytest.mark.parametrize(("model", "name"), [("gpt-6", "xhigh"), ("gemini-3-pro", "high")])
def test_effort_has_the_name_that_the_provider_knows(model: str, name: str) -> None:
    with CompletionsServer(models=(model,)) as server:
        lm = get_lm_client(LMConfig(model=model, base_url=server.url, effort="max"))
        lm.complete(request())
        lm.complete(request(effort="low"))
        assert [sent["reasoning_effort"] for sent in server.requests] == [name, "low"]
