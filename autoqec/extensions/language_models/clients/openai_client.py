"""Client of the Chat Completions API: OpenAI's own, and compatible endpoints (vLLM, Ollama, gateways) by `base_url`."""

from __future__ import annotations

import json
from typing import Any

from autoqec.extensions.language_models.clients.base import Effort, Message, Request
from autoqec.extensions.language_models.clients.output_schema import strict_schema
from autoqec.extensions.language_models.clients.provider import Answer, ProviderLM, RequestFailedError
from autoqec.extensions.language_models.clients.reported import token_count
from autoqec.extensions.language_models.clients.transport import deadline_transport
from autoqec.extensions.language_models.clients.usage import Usage

_STOP_REASONS = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}


class OpenAIClient(ProviderLM):
    """One model behind the Chat Completions API.

    Arguments and errors: see `ProviderLM`. The API has no thinking budget.
    """

    package = extra = "openai"
    key_names = ("OPENAI_API_KEY",)

    def _thinking_options(self, thinking_budget: int | None, effort: Effort | None) -> dict[str, Any]:
        return {"reasoning_effort": "xhigh" if effort == "max" else effort}

    def _connect(self, key: str, base_url: str | None) -> Any:
        import httpx2
        import openai

        # Compatible endpoints know the older name only.
        self._limit_name = "max_completion_tokens" if base_url is None else "max_tokens"
        return openai.OpenAI(
            api_key=key,
            base_url=base_url or "https://api.openai.com/v1",
            max_retries=0,
            timeout=openai.Timeout(self._timeout_s, connect=min(5.0, self._timeout_s)),
            http_client=httpx2.Client(transport=deadline_transport()),
        )

    def _send(self, request: Request, options: dict[str, Any]) -> dict[str, Any]:
        import openai

        try:
            response = self._client.chat.completions.with_raw_response.create(**self._body(request), **options)
            body = json.loads(response.http_response.content)
        except openai.APIStatusError as error:
            raise RequestFailedError(
                _message(error), status=error.status_code, headers=error.response.headers, parameter=error.param
            ) from None
        except openai.APIConnectionError as error:
            raise RequestFailedError(str(error.__cause__ or error), sent=_may_be_processed(error)) from None
        except (openai.OpenAIError, ValueError, RecursionError) as error:
            raise RequestFailedError(f"the endpoint's answer is not JSON ({error})"[:300], sent=True) from None
        if not isinstance(body, dict) or not isinstance(body.get("choices"), list):
            raise RequestFailedError("the endpoint answered 200 with something that is no completion", sent=True)
        return body

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
        if request.effort is not None:
            body["reasoning_effort"] = "xhigh" if request.effort == "max" else request.effort
        return body

    def _usage(self, body: dict[str, Any]) -> Usage:
        usage = body.get("usage")
        usage = usage if isinstance(usage, dict) else {}
        details = usage.get("prompt_tokens_details")
        prompt = token_count(usage.get("prompt_tokens"), "prompt_tokens")
        cached = token_count(details.get("cached_tokens"), "cached_tokens") if isinstance(details, dict) else 0
        return Usage(
            input_tokens=prompt - min(cached, prompt),
            cache_read_input_tokens=min(cached, prompt),
            output_tokens=token_count(usage.get("completion_tokens"), "completion_tokens"),
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
        return Answer(text, self._usage(body), stop, str(body.get("model") or self.model), refusal, tuple(blocks))


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


def _message(error: Any) -> str:
    body = error.body
    message = body.get("message") if isinstance(body, dict) else None
    return str(message or error)[:300]


def _may_be_processed(error: Any) -> bool:
    import httpx2

    return not isinstance(error.__cause__, httpx2.ConnectError | httpx2.ConnectTimeout)
