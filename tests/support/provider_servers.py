"""Loopback servers of the Chat Completions API and of the Gemini API, scripted like the server of the Messages API.

They reject what the APIs reject (unknown fields, wrong key, unknown model, options that a model does not accept) and
answer in the APIs' forms, so that a client that works here sends what the APIs expect.
"""

from __future__ import annotations

import json
import time
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

from tests.support.messages_server import ApiError, Behaviour, MessagesServer, make_handler, tokens

COMPLETION_FIELDS = {
    "model", "messages", "max_tokens", "max_completion_tokens", "temperature", "reasoning_effort", "response_format",
    "tools", "tool_choice", "stream",
}  # fmt: skip
GEMINI_FIELDS = {"contents", "systemInstruction", "generationConfig", "tools", "safetySettings"}
GENERATION_FIELDS = {"maxOutputTokens", "temperature", "thinkingConfig", "responseMimeType", "responseJsonSchema"}
GEMINI_STATUS = {400: "INVALID_ARGUMENT", 403: "PERMISSION_DENIED", 404: "NOT_FOUND", 429: "RESOURCE_EXHAUSTED"}


class RejectedOption(ApiError):
    """A parameter that the model does not accept."""

    def __init__(self, parameter: str) -> None:
        super().__init__(400, f"Unsupported parameter: '{parameter}' is not supported with this model.")
        self.parameter = parameter


class ProviderServer(MessagesServer):
    """Base of the two servers. `rejected` are options that the model does not accept."""

    path = ""

    def __init__(self, *, key: str = "none", models: tuple[str, ...], rejected: tuple[str, ...] = ()) -> None:
        self.rejected = rejected
        super().__init__(key=key, models=models)

    def given_key(self, headers: Any) -> str:
        raise NotImplementedError

    def check(self, body: dict[str, Any], path: str) -> None:
        """Reject what the API rejects."""
        raise NotImplementedError

    def form(self, body: dict[str, Any], behaviour: Behaviour) -> dict[str, Any]:
        """The answer in the API's form."""
        raise NotImplementedError

    def error_body(self, error: ApiError) -> dict[str, Any]:
        raise NotImplementedError

    def handler(self) -> type[BaseHTTPRequestHandler]:
        server, base = self, make_handler(self)

        class Handler(base):  # type: ignore[misc,valid-type]
            def _authorised(self, data: bytes) -> dict[str, Any]:
                if server.given_key(self.headers) != server.key:
                    raise server.wrong_key()
                return json.loads(data)  # type: ignore[no-any-return]

            def _route(self, body: dict[str, Any]) -> None:
                behaviour = server.next(body, {name.lower(): value for name, value in self.headers.items()})
                server.check(body, urlsplit(self.path).path)
                time.sleep(behaviour.delay_s)
                if behaviour.raw is not None:
                    return self._bytes(200, behaviour.raw, {})
                if behaviour.status != 200:
                    raise ApiError(behaviour.status, behaviour.message, behaviour.headers)
                data = json.dumps(server.form(body, behaviour)).encode()
                for old, new in behaviour.replaced:
                    assert old in data, (old, data)
                    data = data.replace(old, new)
                self._bytes(200, data, {}, behaviour.cut_after, behaviour.byte_delay_s)

            def _error(self, error: ApiError) -> None:
                self._send(error.status, server.error_body(error), error.headers)

        return Handler

    def wrong_key(self) -> ApiError:
        return ApiError(401, "Incorrect API key provided")


def text_of(behaviour: Behaviour) -> str:
    return "".join(block["text"] for block in behaviour.content if block["type"] == "text")


class CompletionsServer(ProviderServer):
    """The Chat Completions API under /v1."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"models": ("gpt-6", "o5-mini", "qwen3"), **options})

    @property
    def url(self) -> str:
        return super().url + "/v1"

    def given_key(self, headers: Any) -> str:
        return str(headers.get("authorization", "")).removeprefix("Bearer ")

    def check(self, body: dict[str, Any], path: str) -> None:
        if path != "/v1/chat/completions":
            raise ApiError(404, f"Invalid URL (POST {path})")
        for name in body.keys() - COMPLETION_FIELDS:
            raise ApiError(400, f"Unrecognized request argument supplied: {name}")
        if body["model"] not in self.models:
            raise ApiError(404, f"The model `{body['model']}` does not exist or you do not have access to it.")
        for name in self.rejected:
            if name in body:
                raise RejectedOption(name)
        asked: set[str] = set()
        for message in body["messages"]:
            if message["role"] == "tool":
                asked.remove(message["tool_call_id"])
            elif asked:
                raise ApiError(400, f"tool_call_ids did not have response messages: {sorted(asked)}")
            asked |= {call["id"] for call in message.get("tool_calls", ())}
        if schema := body.get("response_format", {}).get("json_schema"):
            _check_strict(schema["schema"])

    def form(self, body: dict[str, Any], behaviour: Behaviour) -> dict[str, Any]:
        calls = [
            {
                "id": block["id"],
                "type": "function",
                "function": {"name": block["name"], "arguments": json.dumps(block["input"])},
            }
            for block in behaviour.content
            if block["type"] == "tool_use"
        ]
        reasons = {"end_turn": "stop", "max_tokens": "length", "tool_use": "tool_calls", "refusal": "stop"}
        refused = behaviour.stop_reason == "refusal"
        message: dict[str, Any] = {"role": "assistant", "content": None if refused else text_of(behaviour) or None}
        message["refusal"] = text_of(behaviour) if refused else None
        if calls:
            message["tool_calls"] = calls
        prompt, output = tokens(body["messages"]), tokens(behaviour.content) + behaviour.extra_output_tokens
        return {
            "id": f"chatcmpl-{len(self.requests)}",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": reasons[behaviour.stop_reason]}],
            "usage": {
                "prompt_tokens": prompt,
                "completion_tokens": output,
                "total_tokens": prompt + output,
                "prompt_tokens_details": {"cached_tokens": prompt // 2},
            },
        }

    def error_body(self, error: ApiError) -> dict[str, Any]:
        parameter = error.parameter if isinstance(error, RejectedOption) else None
        code = "unsupported_parameter" if parameter else None
        return {"error": {"message": str(error), "type": "invalid_request_error", "param": parameter, "code": code}}


def _check_strict(schema: Any) -> None:
    """Strict schemas are closed and require every property."""
    if isinstance(schema, list):
        for item in schema:
            _check_strict(item)
    if not isinstance(schema, dict):
        return
    closed = schema.get("additionalProperties") is False
    if schema.get("type") == "object" and not (closed and set(schema["required"]) == set(schema["properties"])):
        raise ApiError(400, "Invalid schema for response_format: 'required' must include every key in properties")
    for value in schema.values():
        _check_strict(list(value.values()) if isinstance(value, dict) else value)


class GeminiServer(ProviderServer):
    """The Gemini API under /v1."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"models": ("gemini-3-pro",), **options})

    def given_key(self, headers: Any) -> str:
        return str(headers.get("x-goog-api-key", ""))

    def wrong_key(self) -> ApiError:
        return ApiError(400, "API key not valid. Please pass a valid API key.")

    def check(self, body: dict[str, Any], path: str) -> None:
        model, _, method = path.removeprefix("/v1/models/").partition(":")
        if method != "generateContent":
            raise ApiError(404, f"no method {path}")
        if model not in self.models:
            raise ApiError(404, f"models/{model} is not found for API version v1")
        config = body.get("generationConfig", {})
        for name in (body.keys() - GEMINI_FIELDS) | (config.keys() - GENERATION_FIELDS):
            raise ApiError(400, f'Invalid JSON payload received. Unknown name "{name}": Cannot find field.')
        if not body.get("contents") or {content["role"] for content in body["contents"]} - {"user", "model"}:
            raise ApiError(400, "Please use a valid role: user, model.")
        thinking = {name.replace("_b", "B").replace("_l", "L") for name in config.get("thinkingConfig", {})}
        for name in self.rejected:  # JSON of protocol buffers has two spellings of a name
            if name in config or name in thinking:
                raise RejectedOption(name)

    def form(self, body: dict[str, Any], behaviour: Behaviour) -> dict[str, Any]:
        prompt, output = tokens(body["contents"]), tokens(behaviour.content) + behaviour.extra_output_tokens
        usage = {"promptTokenCount": prompt, "cachedContentTokenCount": prompt // 2, "candidatesTokenCount": output}
        usage |= {"thoughtsTokenCount": 5, "totalTokenCount": prompt + output + 5}
        head = {"usageMetadata": usage, "modelVersion": self.models[0]}
        if behaviour.stop_reason == "refusal":
            return {"promptFeedback": {"blockReason": "SAFETY"}, **head}
        parts = [{"text": "a thought", "thought": True}, {"text": text_of(behaviour)}]
        reason = {"end_turn": "STOP", "max_tokens": "MAX_TOKENS"}[behaviour.stop_reason]
        return {"candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": reason}], **head}

    def error_body(self, error: ApiError) -> dict[str, Any]:
        status = GEMINI_STATUS.get(error.status, "INTERNAL")
        return {"error": {"code": error.status, "message": str(error), "status": status}}
