"""Client of the Gemini API through the package google-genai."""

from __future__ import annotations

import json
from typing import Any

from autoqec import optional
from autoqec.llm.base import MIN_MAX_TOKENS, Effort, Request
from autoqec.llm.output_schema import strict_schema
from autoqec.llm.provider import Answer, ProviderLM, RequestFailedError, api_key
from autoqec.llm.reported import token_count
from autoqec.llm.transport import deadline_transport
from autoqec.llm.usage import Usage

_REFUSALS = ("SAFETY", "RECITATION", "BLOCKLIST", "PROHIBITED_CONTENT", "SPII")
_STOP_REASONS = {"STOP": "end_turn", "MAX_TOKENS": "max_tokens"}
_LEVELS = {"low": "LOW", "medium": "MEDIUM", "high": "HIGH", "xhigh": "HIGH", "max": "HIGH"}


class GeminiClient(ProviderLM):
    """One model behind the Gemini API. Instances may be shared by threads.

    Not every model calls functions and answers by a schema in one request, so no tools are offered.

    Args:
        model: Name of the model.
        base_url: Endpoint; None for Google's own.
        key_env: Environment variable of the key; None takes GEMINI_API_KEY or GOOGLE_API_KEY, and no key with an
            explicit `base_url`.
        temperature: Dropped with a warning if the model does not accept it; None for the model's own.
        thinking_budget: Tokens for thinking; 0 for none, -1 for as many as the model likes; None for its default.
        effort: Thinking level, if there is no thinking budget.
        max_retries: Further attempts after overload, rate limits and broken connections.
        timeout_s: Limit of one call with all of its attempts, in seconds.
        max_output_tokens: Limit of an answer to `call`.

    Raises:
        UsageError: The package `google-genai` is not installed.
        LlmAuthError: There is no key.
    """

    supports_tools = False

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        key_env: str | None = None,
        temperature: float | None = None,
        thinking_budget: int | None = None,
        effort: Effort | None = None,
        max_retries: int = 2,
        timeout_s: float = 600.0,
        max_output_tokens: int = MIN_MAX_TOKENS,
    ) -> None:
        options = {
            "temperature": temperature,
            "thinking_budget": thinking_budget,
            "thinking_level": _LEVELS[effort] if effort is not None and thinking_budget is None else None,
        }
        super().__init__(
            model,
            options=options,
            max_retries=max_retries,
            timeout_s=timeout_s,
            max_output_tokens=max_output_tokens,
        )
        optional.require_installed("google.genai", extra="gemini", location="lm.model")
        key = api_key(("GEMINI_API_KEY", "GOOGLE_API_KEY"), base_url, key_env)
        import httpx2
        from google import genai
        from google.genai import types

        self._client: Any = genai.Client(
            api_key=key,
            vertexai=False,
            http_options=types.HttpOptions(
                base_url=base_url,
                timeout=max(1, int(timeout_s * 1000)),
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
