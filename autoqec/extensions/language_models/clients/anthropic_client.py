"""Client of the Messages API: Anthropic's own, and compatible endpoints (Ollama, llama.cpp, gateways) by `base_url`.

Facts of the API as the `anthropic` package 2.x knows them: https://platform.claude.com/docs/en/api/messages.
No temperature, no prefill, no forced tool choice: current models refuse them.
"""

from __future__ import annotations

import logging
import os
import time
from typing import TYPE_CHECKING, Any, Literal

from pydantic import ValidationError

from autoqec.extensions.language_models.clients import prices
from autoqec.extensions.language_models.clients.anthropic_transport import track_attempts
from autoqec.extensions.language_models.clients.base import (
    MIN_MAX_TOKENS,
    BaseLanguageModel,
    Effort,
    Request,
    Response,
    estimate_tokens,
)
from autoqec.extensions.language_models.clients.errors import (
    LlmAuthError,
    LlmBadAnswerError,
    LlmBadRequestError,
    LlmError,
    LlmUnavailableError,
    rejected_request,
)
from autoqec.extensions.language_models.clients.provider import (
    FORM_ERRORS,
    PERMANENT_STATUSES,
    Answer,
    environment_key,
    response_of,
)
from autoqec.extensions.language_models.clients.reported import token_count
from autoqec.extensions.language_models.clients.transport import (
    CallAttempts,
    call_attempts,
    count_lost_attempt,
    deadline_transport,
)
from autoqec.extensions.language_models.clients.usage import Usage

if TYPE_CHECKING:
    import anthropic

_LOGGER = logging.getLogger("autoqec.extensions.language_models.clients")
# Longer answers take minutes; an idle connection does not live that long, a stream does.
STREAM_ABOVE = 21_000
_KEY_NAMES = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN")
_RETRIED_IN_STREAM = ("overloaded_error", "api_error", "rate_limit_error", "timeout_error")


class AnthropicLM(BaseLanguageModel):
    """One model behind the Messages API. Instances may be shared by threads.

    Args:
        model: Name of the model.
        base_url: Endpoint; None for Anthropic's own.
        api_key: None takes the key of the environment.
        key_env: Environment variable of the key; None takes ANTHROPIC_API_KEY or ANTHROPIC_AUTH_TOKEN, and no key with
            an explicit `base_url`, so that a local endpoint never sees one.
        effort: Reasoning effort of requests that name none.
        max_retries: Further attempts after overload, rate limits and broken connections.
        timeout_s: Limit of one call with all of its attempts, in seconds.
        cache_ttl: How long the stable part of the prompt stays cached.
        stream: Stream every answer; long ones are streamed in any case.
        max_output_tokens: Limit of an answer to `call`.
        temperature: For endpoints that accept one; dropped with a warning if the endpoint rejects it.
    """

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        key_env: str | None = None,
        effort: Effort | None = None,
        max_retries: int = 2,
        timeout_s: float = 600.0,
        cache_ttl: Literal["5m", "1h"] = "5m",
        stream: bool = False,
        max_output_tokens: int = MIN_MAX_TOKENS,
        temperature: float | None = None,
    ) -> None:
        self.model, self.max_output_tokens = model, max_output_tokens
        self._effort, self._cache_ttl, self._stream, self._temperature = effort, cache_ttl, stream, temperature
        self._max_retries, self._timeout_s = max_retries, timeout_s
        key, token = (api_key, None) if api_key is not None else _credentials(base_url, key_env)
        self._client = _client(base_url, key, token, max_retries, timeout_s)

    def complete(self, request: Request) -> Response:
        """Ask the model; see `LanguageModel.complete`. Any answer that is not a message of the API is a bad answer."""
        start = time.monotonic()
        message = None
        with call_attempts(self._timeout_s) as attempts:
            try:
                message = self._ask(request, attempts)
                return self._to_response(request, message, attempts, int((time.monotonic() - start) * 1000))
            except FORM_ERRORS as error:
                reported = getattr(message, "usage", None) or (attempts.body or {}).get("usage")
                usage, hour = _usage(reported)
                came = message is not None or attempts.body is not None
                raise LlmBadAnswerError(
                    f"the endpoint's answer does not have the form of the Messages API ({type(error).__name__})",
                    location=self.model,
                    usage=usage if came else None,
                    cost_usd=prices.cost_usd(self.model, usage, cache_write_1h_tokens=hour) if came else None,
                ) from error

    def count_tokens(self, request: Request) -> int:
        """Return the provider's count; an upper estimate if the endpoint cannot count."""
        import anthropic

        body = self._body(request)
        body.pop("max_tokens"), body.pop("extra_body", None)
        try:
            with call_attempts(self._timeout_s):
                count = token_count(self._client.messages.count_tokens(**body).input_tokens, "input_tokens")
            return count or estimate_tokens(request.text())
        except (anthropic.AuthenticationError, anthropic.PermissionDeniedError) as error:
            raise _lm_error(error, self.model) from None
        except (anthropic.AnthropicError, LlmUnavailableError, *FORM_ERRORS):
            return estimate_tokens(request.text())

    def max_cost_usd(self, request: Request, prompt_tokens: int) -> float | None:
        """Return the most that the call can cost in dollars; None if no price is known."""
        return prices.max_cost_usd(self.model, prompt_tokens, request, cache_hour=self._cache_ttl == "1h")

    def _body(self, request: Request) -> dict[str, Any]:
        import anthropic

        body: dict[str, Any] = {
            "model": self.model,
            "max_tokens": request.max_tokens,
            "messages": self._messages(request),
        }
        if request.system:
            body["system"] = self._system(request.system)
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
        if self._temperature is not None:
            body["extra_body"] = {"temperature": self._temperature}
        return body

    def _messages(self, request: Request) -> list[dict[str, Any]]:
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
            context[-1]["cache_control"] = {"type": "ephemeral", "ttl": self._cache_ttl}
            turns[0]["content"] = [*context, *rest]
        return turns

    def _system(self, blocks: tuple[str, ...]) -> list[dict[str, Any]]:
        """Return the text blocks; the cache ends after the stable part: all but the last block, or the only one."""
        system: list[dict[str, Any]] = [{"type": "text", "text": text} for text in blocks]
        system[max(len(system) - 2, 0)]["cache_control"] = {"type": "ephemeral", "ttl": self._cache_ttl}
        return system

    def _ask(self, request: Request, attempts: CallAttempts) -> Any:
        """Return the message, asked for again without a temperature that the endpoint rejects."""
        streamed = self._stream or request.max_tokens > STREAM_ABOVE
        try:
            return self._stream_message(request) if streamed else self._create_message(request, attempts)
        except LlmBadRequestError as error:
            if self._temperature is None or "temperature" not in error.message:
                raise
            _LOGGER.warning("the model %s does not accept `temperature`; it is not sent", self.model)
            self._temperature = None
            return self._ask(request, attempts)

    def _create_message(self, request: Request, attempts: CallAttempts) -> Any:
        """Return the answer in one piece; the package retries."""
        import anthropic

        try:
            return self._client.messages.create(**self._body(request))
        except ValidationError:
            # The message does not have the form of the API; what came is still there, with its usage.
            if attempts.body is None:
                raise
            return anthropic.types.Message.construct(**_as_message(attempts.body))
        except anthropic.AnthropicError as error:
            raise _lm_error(error, self.model) from None

    def _stream_message(self, request: Request) -> Any:
        """Return the streamed answer. The package does not retry what breaks inside a stream; this does."""
        import anthropic
        import httpx2

        body = self._body(request)
        for tries in range(self._max_retries + 1):
            if tries:
                time.sleep(min(0.5 * 2.0 ** (tries - 1), 8.0))
            try:
                with self._client.messages.stream(**body) as stream:
                    message = stream.get_final_message()
                if message.stop_reason is not None:
                    return message
                last_error: Exception = LlmUnavailableError("the stream ended before the answer did")
            except (httpx2.HTTPError, *FORM_ERRORS) as error:
                last_error = error
            except anthropic.AnthropicError as error:
                if getattr(error, "status_code", 0) != 200 or getattr(error, "type", "") not in _RETRIED_IN_STREAM:
                    raise _lm_error(error, self.model) from None
                last_error = error
            count_lost_attempt()
        raise _lm_error(last_error, self.model) from None

    def _to_response(self, request: Request, message: Any, attempts: CallAttempts, duration_ms: int) -> Response:
        usage, hour = _usage(message.usage)
        cost = prices.cost_usd(self.model, usage, cache_write_1h_tokens=hour)
        answer = Answer(
            text="".join(block.text for block in message.content if block.type == "text"),
            usage=usage,
            stop_reason=message.stop_reason,
            model=message.model or self.model,
            refusal=_refusal(message),
            blocks=tuple(_block_dict(block) for block in message.content),
        )
        return response_of(request, answer, attempts, self.model, cost, duration_ms)


def _credentials(base_url: str | None, key_env: str | None) -> tuple[str | None, str | None]:
    """Return key and token of the environment; one of them is None."""
    key = environment_key(_KEY_NAMES, base_url, key_env)
    if base_url is None and key_env is None and not os.environ.get(_KEY_NAMES[0]):
        return None, key
    return key, None


def _client(
    base_url: str | None, api_key: str | None, token: str | None, max_retries: int, timeout_s: float
) -> anthropic.Anthropic:
    import anthropic

    return anthropic.Anthropic(
        api_key=api_key,
        auth_token=token,
        base_url=base_url,
        max_retries=max_retries,
        timeout=anthropic.Timeout(timeout_s, connect=min(5.0, timeout_s)),
        http_client=anthropic.DefaultHttpxClient(transport=deadline_transport()),
        middleware=[track_attempts],
    )


def _as_message(body: dict[str, Any]) -> dict[str, Any]:
    defaults = {"id": "", "type": "message", "role": "assistant", "model": "", "stop_reason": None}
    return {**defaults, **body}


def _usage(usage: Any) -> tuple[Usage, int]:
    """Return the four counters, and how many tokens were written to the cache for an hour."""
    counters = {name: token_count(_field(usage, name), name) for name in Usage.model_fields}
    name = "ephemeral_1h_input_tokens"
    return Usage(**counters), token_count(_field(_field(usage, "cache_creation"), name), name)


def _field(value: Any, name: str) -> Any:
    """Return a field of an object or a JSON object; None if there is none."""
    return value.get(name) if isinstance(value, dict) else getattr(value, name, None)


def _refusal(message: Any) -> str | None:
    """Return why the model declined to answer; None if it did not."""
    if message.stop_reason != "refusal":
        return None
    details = getattr(message, "stop_details", None)
    return str(getattr(details, "explanation", None) or getattr(details, "category", None) or "no reason given")


def _block_dict(block: Any) -> dict[str, Any]:
    """Return a content block in the form in which it is sent back."""
    plain: dict[str, Any] = block.to_dict() if hasattr(block, "to_dict") else dict(block)
    return plain


def _lm_error(error: Exception, model: str) -> LlmError:
    """Return the LlmError for an error of the `anthropic` package; raise it `from None`, to hide the request."""
    import anthropic

    detail = str(getattr(error, "api_message", None) or error)[:300]
    if isinstance(error, anthropic.AuthenticationError | anthropic.PermissionDeniedError | anthropic.CredentialsError):
        return LlmAuthError(f"the provider rejects the API key: {detail}", location=model, hint="check the key")
    status = getattr(error, "status_code", None)
    if isinstance(error, anthropic.APIStatusError) and status in PERMANENT_STATUSES:
        return rejected_request(status, detail, model)
    return LlmUnavailableError(f"no answer after all retries: {detail}", location=model)
