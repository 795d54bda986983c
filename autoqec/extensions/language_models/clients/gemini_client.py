"""Client of the Gemini API through the package google-genai."""

from __future__ import annotations

import json
from typing import Any

from autoqec.extensions.language_models.clients.base import Effort, Request
from autoqec.extensions.language_models.clients.output_schema import strict_schema
from autoqec.extensions.language_models.clients.provider import Answer, ProviderLM, RequestFailedError
from autoqec.extensions.language_models.clients.reported import token_count
from autoqec.extensions.language_models.clients.transport import deadline_transport
from autoqec.extensions.language_models.clients.usage import Usage

_REFUSALS = ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII")
_STOP_REASONS = {"STOP": "end_turn", "MAX_TOKENS": "max_tokens"}
_LEVELS = {"low": "LOW", "medium": "MEDIUM", "high": "HIGH", "xhigh": "HIGH", "max": "HIGH"}


class GeminiClient(ProviderLM):
    """One model behind the Gemini API.

    Not every model calls functions and answers by a schema in one request, so no tools are offered.

    Arguments and errors: see `ProviderLM`. A thinking budget is 0 for no thinking, -1 for as much as the model likes;
    without one, `effort` sets the thinking level.
    """

    supports_tools = False
    package, extra = "google.genai", "gemini"
    key_names = ("GEMINI_API_KEY", "GOOGLE_API_KEY")

    def _thinking_options(self, thinking_budget: int | None, effort: Effort | None) -> dict[str, Any]:
        level = _LEVELS[effort] if effort is not None and thinking_budget is None else None
        return {"thinking_budget": thinking_budget, "thinking_level": level}

    def _connect(self, key: str, base_url: str | None) -> Any:
        import httpx2
        from google import genai
        from google.genai import types

        return genai.Client(
            api_key=key,
            vertexai=False,
            http_options=types.HttpOptions(
                base_url=base_url,
                timeout=max(1, int(self._timeout_s * 1000)),
                retry_options=types.HttpRetryOptions(attempts=1),
                httpx_client=httpx2.Client(transport=deadline_transport()),
            ),
        )

    def _send(self, request: Request, options: dict[str, Any]) -> dict[str, Any]:
        import httpx2
        from google.genai import errors

        try:
            response: Any = self._client.models.generate_content(
                model=self.model, contents=_contents(request), config=_config(request, options)
            )
            body = json.loads(response.sdk_http_response.body)
        except errors.APIError as error:
            # A wrong key is an invalid argument of the API.
            message = str(error.message or error)[:300]
            status = 401 if error.code == 400 and "API key" in message else error.code
            raise RequestFailedError(message, status=status, headers=_headers(error.response)) from None
        except httpx2.HTTPError as error:
            sent = not isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout)
            raise RequestFailedError(str(error) or type(error).__name__, sent=sent) from None
        except (ValueError, RecursionError) as error:
            raise RequestFailedError(f"the endpoint's answer is not JSON ({error})"[:300], sent=True) from None
        if not isinstance(body, dict) or not (body.keys() & {"candidates", "promptFeedback"}):
            raise RequestFailedError("the endpoint answered 200 with something that is no answer", sent=True)
        return body

    def _usage(self, body: dict[str, Any]) -> Usage:
        usage = body.get("usageMetadata")
        usage = usage if isinstance(usage, dict) else {}

        def count(name: str) -> int:
            return token_count(usage.get(name), name)

        cached = min(count("cachedContentTokenCount"), count("promptTokenCount"))
        return Usage(
            input_tokens=count("promptTokenCount") - cached,
            cache_read_input_tokens=cached,
            output_tokens=count("candidatesTokenCount") + count("thoughtsTokenCount"),
        )

    def _read(self, body: dict[str, Any]) -> Answer:
        usage, model = self._usage(body), str(body.get("modelVersion") or self.model)
        blocked = (body.get("promptFeedback") or {}).get("blockReason")
        if blocked is not None or not body.get("candidates"):
            return Answer("", usage, "end_turn", model, refusal=f"prompt blocked ({blocked})")
        candidate = body["candidates"][0]
        reason = candidate.get("finishReason")
        parts = (candidate.get("content") or {}).get("parts") or []
        text = "".join(part["text"] for part in parts if "text" in part and not part.get("thought"))
        refusal = str(reason) if reason in _REFUSALS else None
        blocks = ({"type": "text", "text": text},) if text else ()
        return Answer(text, usage, _STOP_REASONS.get(reason, str(reason)), model, refusal, blocks)


def _contents(request: Request) -> list[dict[str, Any]]:
    roles = {"user": "user", "assistant": "model"}
    contents = []
    for message in request.rendered_messages():
        blocks = message.content
        texts = [blocks] if isinstance(blocks, str) else [b["text"] for b in blocks if b["type"] == "text"]
        contents.append({"role": roles[message.role], "parts": [{"text": text} for text in texts]})
    return contents


def _config(request: Request, options: dict[str, Any]) -> Any:
    from google.genai import types

    fields: dict[str, Any] = {"max_output_tokens": request.max_tokens, "should_return_http_response": True}
    if request.system:
        fields["system_instruction"] = "\n\n".join(request.system)
    if "temperature" in options:
        fields["temperature"] = options["temperature"]
    if thinking := {name: value for name, value in options.items() if name.startswith("thinking_")}:
        fields["thinking_config"] = thinking
    if request.output is not None:
        fields["response_mime_type"] = "application/json"
        fields["response_json_schema"] = strict_schema(request.output)
    return types.GenerateContentConfig(**fields)


def _headers(response: Any) -> dict[str, str]:
    headers = getattr(response, "headers", None)
    return {str(name).lower(): str(value) for name, value in headers.items()} if headers is not None else {}
