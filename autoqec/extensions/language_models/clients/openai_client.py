"""Client of the Chat Completions API: OpenAI, Gemini, and other endpoints (vLLM, Ollama, gateways) by `base_url`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import openai

from autoqec.extensions.language_models.clients.base import Effort, Message, Request, strict_schema
from autoqec.extensions.language_models.clients.provider import Answer, ProviderLM
from autoqec.extensions.language_models.clients.usage import token_count
from autoqec.store.model_calls import Usage

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class OpenAIClient(ProviderLM):
    """One model behind the Chat Completions API.

    Arguments and errors: see `ProviderLM`. The API has no thinking budget.

    Attributes:
        endpoint: The provider's own.
        efforts: Reasoning effort -> name that the API has for it, where that is another one.
    """

    package, package_error, path = openai, openai.OpenAIError, "/chat/completions"
    key_names: tuple[str, ...] = ("OPENAI_API_KEY",)
    endpoint = "https://api.openai.com/v1"
    efforts: Mapping[Effort, str] = {"max": "xhigh"}

    def _connect(self, key_name: str | None, key: str, **limits: Any) -> Any:
        # Compatible endpoints know the older name only.
        official = self._base_url is None and self.endpoint == OpenAIClient.endpoint
        self._limit_name = "max_completion_tokens" if official else "max_tokens"
        return openai.OpenAI(api_key=key, base_url=self._base_url or self.endpoint, **limits)

    def _is_answer(self, body: dict[str, Any]) -> bool:
        return isinstance(body.get("choices"), list)

    def _sent_options(self, temperature: float | None, thinking_budget: int | None) -> dict[str, Any]:
        effort = None if self._effort is None else self.efforts.get(self._effort, self._effort)
        options = {"temperature": temperature, "reasoning_effort": effort}
        return {name: value for name, value in options.items() if value is not None}

    def _send(self, request: Request, options: dict[str, Any]) -> dict[str, Any]:
        if request.effort is not None:
            options = options | {"reasoning_effort": self.efforts.get(request.effort, request.effort)}
        response = self._client.chat.completions.with_raw_response.create(**self._body(request), **options)
        return dict(response.http_response.json())

    def _body(self, request: Request) -> dict[str, Any]:
        messages: list[dict[str, Any]] = []
        if request.system:
            messages.append({"role": "system", "content": "\n\n".join(request.system)})
        for message in request.rendered_messages():
            messages += _messages(message)
        body: dict[str, Any] = {"model": self.model, "messages": messages, self._limit_name: request.max_tokens}
        if request.tools:
            body["tools"] = [
                {
                    "type": "function",
                    "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
                }
                for tool in request.tools
            ]
        if request.output is not None:
            schema = {"name": request.output.__name__, "strict": True, "schema": strict_schema(request.output)}
            body["response_format"] = {"type": "json_schema", "json_schema": schema}
        return body

    def _usage(self, body: dict[str, Any]) -> Usage:
        usage = body.get("usage")
        usage = usage if isinstance(usage, dict) else {}
        details = usage.get("prompt_tokens_details")
        prompt, completion, total = (
            token_count(usage.get(name), name) for name in ("prompt_tokens", "completion_tokens", "total_tokens")
        )
        cached = token_count(details.get("cached_tokens"), "cached_tokens") if isinstance(details, dict) else 0
        return Usage(
            input_tokens=prompt - min(cached, prompt),
            cache_read_input_tokens=min(cached, prompt),
            output_tokens=max(completion, total - prompt),  # Gemini counts thoughts in the total only
        )

    def _read(self, body: dict[str, Any]) -> Answer:
        choice = body["choices"][0]
        message, reason = choice["message"], choice.get("finish_reason")
        text = message.get("content") or ""
        blocks = [{"type": "text", "text": text}] if text else []
        for call in message.get("tool_calls") or []:
            function = call["function"]
            arguments = json.loads(function["arguments"] or "{}")
            if not isinstance(arguments, dict):
                raise TypeError("the arguments of a tool call are not an object")
            blocks.append({"type": "tool_use", "id": call["id"], "name": function["name"], "input": arguments})
        refusal = message.get("refusal") or ("content filter" if reason == "content_filter" else None)
        # Some endpoints end a turn of tool calls with `stop`.
        stop = "tool_use" if len(blocks) > bool(text) else _STOP_REASONS.get(reason, str(reason))
        return Answer(text, stop, body.get("model"), refusal, tuple(blocks))


class GeminiClient(OpenAIClient):
    """One model behind the Gemini API, through its endpoint for Chat Completions.

    Not every model calls functions and answers by a schema in one request, so no tools are offered.

    Arguments and errors: see `ProviderLM`. A thinking budget is 0 for no thinking, -1 for as much as the model likes;
    without one, `effort` sets the thinking level.
    """

    supports_tools = False
    key_names = ("GEMINI_API_KEY", "GOOGLE_API_KEY")
    endpoint = "https://generativelanguage.googleapis.com/v1beta/openai/"
    efforts: Mapping[Effort, str] = {"xhigh": "high", "max": "high"}

    def _sent_options(self, temperature: float | None, thinking_budget: int | None) -> dict[str, Any]:
        options = super()._sent_options(temperature, None)
        if thinking_budget is not None:
            options.pop("reasoning_effort", None)
            options["thinking_budget"] = thinking_budget
        return options

    def _send(self, request: Request, options: dict[str, Any]) -> dict[str, Any]:
        options, budget = dict(options), options.get("thinking_budget")
        if budget is not None:
            del options["thinking_budget"]
            options["extra_body"] = {"extra_body": {"google": {"thinking_config": {"thinking_budget": budget}}}}
            request = request.model_copy(update={"effort": None})
        return super()._send(request, options)


def _messages(message: Message) -> list[dict[str, Any]]:
    """Return one turn as messages of the API: each tool result is a message of its own."""
    if isinstance(message.content, str):
        return [{"role": message.role, "content": message.content}]
    text = "\n\n".join(block["text"] for block in message.content if block["type"] == "text")
    results = [
        {"role": "tool", "tool_call_id": block["tool_use_id"], "content": block["content"]}
        for block in message.content
        if block["type"] == "tool_result"
    ]
    calls = [
        {
            "id": block["id"],
            "type": "function",
            "function": {"name": block["name"], "arguments": json.dumps(block["input"], ensure_ascii=False)},
        }
        for block in message.content
        if block["type"] == "tool_use"
    ]
    own: dict[str, Any] = {"role": message.role, "content": text or None, **({"tool_calls": calls} if calls else {})}
    return [*results, *([own] if text or calls else [])]
