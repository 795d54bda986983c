"""A loopback server of the Chat Completions API, scripted like the server of the Messages API.

It rejects what the APIs reject (unknown fields, wrong key, unknown model, options that a model does not accept) and
answers in their form, so that a client that works here sends what they expect.
"""

from __future__ import annotations

import json
import time
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import urlsplit

from tests.support.messages_server import ApiError, Behaviour, MessagesServer, make_handler, tokens

FIELDS = {
    "model", "messages", "max_tokens", "max_completion_tokens", "temperature", "reasoning_effort", "response_format",
    "tools", "tool_choice", "stream",
}  # fmt: skip
THOUGHTS = 5  # tokens that Gemini counts in the total only


class RejectedOption(ApiError):
    """A parameter that the model does not accept."""

    def __init__(self, parameter: str) -> None:
        super().__init__(400, f"Unsupported parameter: '{parameter}' is not supported with this model.")
        self.parameter = parameter


class CompletionsServer(MessagesServer):
    """The Chat Completions API under /v1. `rejected` are options that the model does not accept."""

    extra_fields: frozenset[str] = frozenset()

    def __init__(
        self, *, key: str = "none", models: tuple[str, ...] = ("gpt-6", "qwen3"), rejected: tuple[str, ...] = ()
    ) -> None:
        self.rejected = rejected
        super().__init__(key=key, models=models)

    @property
    def url(self) -> str:
        return super().url + "/v1"

    def wrong_key(self) -> ApiError:
        return ApiError(401, "Incorrect API key provided")

    def handler(self) -> type[BaseHTTPRequestHandler]:
        server, base = self, make_handler(self)

        class Handler(base):  # type: ignore[misc,valid-type]
            def _authorised(self, data: bytes) -> dict[str, Any]:
                if str(self.headers.get("authorization", "")).removeprefix("Bearer ") != server.key:
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

    def check(self, body: dict[str, Any], path: str) -> None:
        """Reject what the API rejects."""
        if path != "/v1/chat/completions":
            raise ApiError(404, f"Invalid URL (POST {path})")
        for name in body.keys() - FIELDS - self.extra_fields:
            raise ApiError(400, f"Unrecognized request argument supplied: {name}")
        if body["model"] not in self.models:
            raise ApiError(404, f"The model `{body['model']}` does not exist or you do not have access to it.")
        for name in self.rejected:
            if f'"{name}"' in json.dumps(body):
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
        """Return the answer in the API's form."""
        calls = [
            {
                "id": block["id"],
                "type": "function",
                "function": {"name": block["name"], "arguments": json.dumps(block["input"])},
            }
            for block in behaviour.content
            if block["type"] == "tool_use"
        ]
        text = "".join(block["text"] for block in behaviour.content if block["type"] == "text")
        reasons = {"end_turn": "stop", "max_tokens": "length", "tool_use": "tool_calls", "refusal": "stop"}
        refused = behaviour.stop_reason == "refusal"
        message: dict[str, Any] = {"role": "assistant", "content": None if refused else text or None}
        message["refusal"] = text if refused else None
        if calls:
            message["tool_calls"] = calls
        return {
            "id": f"chatcmpl-{len(self.requests)}",
            "object": "chat.completion",
            "created": 0,
            "model": body["model"],
            "choices": [{"index": 0, "message": message, "finish_reason": reasons[behaviour.stop_reason]}],
            "usage": self.used(body, behaviour),
        }

    def used(self, body: dict[str, Any], behaviour: Behaviour) -> dict[str, Any]:
        prompt, output = tokens(body["messages"]), tokens(behaviour.content) + behaviour.extra_output_tokens
        return {
            "prompt_tokens": prompt,
            "completion_tokens": output,
            "total_tokens": prompt + output,
            "prompt_tokens_details": {"cached_tokens": prompt // 2},
        }

    def error_body(self, error: ApiError) -> Any:
        parameter = error.parameter if isinstance(error, RejectedOption) else None
        code = "unsupported_parameter" if parameter else None
        return {"error": {"message": str(error), "type": "invalid_request_error", "param": parameter, "code": code}}


class GeminiServer(CompletionsServer):
    """The Chat Completions API of Gemini: options below `extra_body`, thoughts in the total alone, errors in a list."""

    extra_fields = frozenset({"extra_body"})

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"models": ("gemini-3-pro",), **options})

    def wrong_key(self) -> ApiError:
        return ApiError(400, "API key not valid. Please pass a valid API key.")

    def used(self, body: dict[str, Any], behaviour: Behaviour) -> dict[str, Any]:
        used = super().used(body, behaviour)
        return used | {"total_tokens": used["total_tokens"] + THOUGHTS}

    def error_body(self, error: ApiError) -> Any:
        return [{"error": {"code": error.status, "message": str(error), "status": "INVALID_ARGUMENT"}}]


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
