"""Client of the Messages API: Anthropic's own, and compatible endpoints (Ollama, llama.cpp, gateways) by `base_url`.

Facts of the API as the `anthropic` package 2.x knows them: https://platform.claude.com/docs/en/api/messages.
No prefill, no forced tool choice: current models refuse them. A temperature is for endpoints that accept one.
"""

from __future__ import annotations

from typing import Any

import anthropic

from autoqec.extensions.language_models.clients.base import Request, estimate_tokens
from autoqec.extensions.language_models.clients.errors import LlmAuthError, LlmError
from autoqec.extensions.language_models.clients.provider import FORM_ERRORS, Answer, ProviderLM
from autoqec.extensions.language_models.clients.transport import call_attempts
from autoqec.extensions.language_models.clients.usage import token_count
from autoqec.store.model_calls import Usage

# Longer answers take minutes; an idle connection does not live that long, a stream does.
STREAM_ABOVE = 21_000
_CACHED = {"cache_control": {"type": "ephemeral", "ttl": "5m"}}


class AnthropicLM(ProviderLM):
    """One model behind the Messages API. Arguments and errors: see `ProviderLM`. The API has no thinking budget."""

    package, package_error, path = anthropic, anthropic.AnthropicError, "/messages"
    key_names = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")

    def _connect(self, key_name: str | None, key: str, **limits: Any) -> Any:
        token = key if key_name == "ANTHROPIC_AUTH_TOKEN" else None
        return anthropic.Anthropic(base_url=self._base_url, api_key=None if token else key, auth_token=token, **limits)

    def _is_answer(self, body: dict[str, Any]) -> bool:
        return isinstance(body.get("usage"), dict) and isinstance(body.get("content"), list)

    def count_tokens(self, request: Request) -> int:
        """Return the provider's count; an upper estimate if the endpoint cannot count."""
        body = self._body(request)
        del body["max_tokens"]
        try:
            with call_attempts(self._timeout_s):
                count = token_count(self._client.messages.count_tokens(**body).input_tokens, "input_tokens")
            return count or estimate_tokens(request.text())
        except anthropic.AnthropicError as error:
            failure: LlmError = self._failure(error)
            if isinstance(failure, LlmAuthError):
                raise failure from None
        except FORM_ERRORS:
            pass
        return estimate_tokens(request.text())

    def _send(self, request: Request, options: dict[str, Any]) -> dict[str, Any]:
        body, extra = self._body(request), {"extra_body": options} if options else {}
        if request.max_tokens > STREAM_ABOVE:
            with self._client.messages.stream(**body, **extra) as stream:
                return dict(stream.get_final_message().to_dict(warnings=False))
        return dict(self._client.messages.with_raw_response.create(**body, **extra).http_response.json())

    def _body(self, request: Request) -> dict[str, Any]:
        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": request.max_tokens,
            "messages": _messages(request),
        }
        if request.system:
            system: list[dict[str, Any]] = [{"type": "text", "text": text} for text in request.system]
            # The cache ends after the stable part: all but the last block, or the only one.
            system[max(len(system) - 2, 0)] |= _CACHED
            body["system"] = system
        if request.tools:
            body["tools"] = [tool.dump() for tool in request.tools]
        output_config: dict[str, Any] = {}
        if effort := request.effort or self._effort:
            output_config["effort"] = effort
        if request.output is not None:
            # The schema of the fingerprint and of the token estimate, which leaves out what a model may not choose.
            schema = anthropic.transform_schema(request.output.model_json_schema())
            output_config["format"] = {"type": "json_schema", "schema": schema}
        if output_config:
            body["output_config"] = output_config
        return body

    def _usage(self, body: dict[str, Any]) -> Usage:
        return Usage(**{name: token_count(body["usage"].get(name), name) for name in Usage.model_fields})

    def _read(self, body: dict[str, Any]) -> Answer:
        refusal = None
        if body["stop_reason"] == "refusal":
            details = body.get("stop_details") or {}
            refusal = str(details.get("explanation") or details.get("category") or "no reason given")
        return Answer(
            text="".join(block["text"] for block in body["content"] if block["type"] == "text"),
            stop_reason=body["stop_reason"],
            model=body.get("model"),
            refusal=refusal,
            blocks=tuple(map(dict, body["content"])),
        )


def _messages(request: Request) -> list[dict[str, Any]]:
    """Return the turns; the first one begins with the blocks of the context, at whose end the cache ends."""
    turns: list[dict[str, Any]] = [
        {"role": m.role, "content": m.content if isinstance(m.content, str) else list(m.content)}
        for m in request.rendered_messages(with_context=False)
    ]
    if request.context:
        first = turns[0]["content"]
        rest = [{"type": "text", "text": first}] if isinstance(first, str) else first
        context: list[dict[str, Any]] = [{"type": "text", "text": text} for text in request.context]
        # The provider looks for the longest cached prefix at this and at the 20 blocks before it.
        context[-1] |= _CACHED
        turns[0]["content"] = [*context, *rest]
    return turns
