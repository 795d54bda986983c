"""Base of the clients of providers: keys, options that are dropped, typed answers and typed errors.

The provider's package sends and retries (`max_retries`), through the HTTP client of `transport`.
"""

from __future__ import annotations

import json
import logging
import os
import time
from dataclasses import dataclass, field
from itertools import count
from types import ModuleType
from typing import Any

from autoqec.extensions.language_models.clients import prices
from autoqec.extensions.language_models.clients.base import (
    MAX_RESPONSE_CHARS,
    MIN_MAX_TOKENS,
    Effort,
    LanguageModel,
    Request,
    Response,
    ToolCall,
    with_parsed_output,
)
from autoqec.extensions.language_models.clients.environment import add_secret
from autoqec.extensions.language_models.clients.errors import (
    NO_KEY_HINT,
    LlmAuthError,
    LlmBadAnswerError,
    LlmBadRequestError,
    LlmError,
    LlmRefusalError,
    LlmTruncatedError,
    LlmUnavailableError,
    rejected_request,
)
from autoqec.extensions.language_models.clients.transport import AttemptClient, call_attempts
from autoqec.store.model_calls import Usage

LOGGER = logging.getLogger("autoqec.extensions.language_models.clients")
PERMANENT_STATUSES = (400, 402, 404, 413, 422)
# What reading an answer of another form raises.
FORM_ERRORS = (AssertionError, AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError)


@dataclass(frozen=True)
class Answer:
    """One answer in the terms that every provider shares.

    `stop_reason` is that of the Messages API or a fault, and `blocks` are content blocks of that API.
    """

    text: str
    stop_reason: Any
    model: Any
    refusal: str | None = None
    blocks: tuple[dict[str, Any], ...] = field(default=())


class ProviderLM(LanguageModel):
    """One model behind a provider's package. Subclasses send one request and read one answer.

    Instances may be shared by threads. An option that the model rejects is dropped with a warning.

    Args:
        model: Name of the model.
        base_url: Endpoint; None for the provider's own.
        key_env: Environment variable of the key; None takes the first of `key_names` that is set, and no key with an
            explicit `base_url`, so that a local endpoint never sees one.
        temperature: None for the model's own.
        thinking_budget: Tokens for thinking, of models that have such a limit; None for the model's default.
        effort: Reasoning effort of requests that name none; None for the model's default.
        max_retries: Further attempts after overload, rate limits and broken connections.
        timeout_s: Limit of one call with all of its attempts, in seconds.
        max_output_tokens: Limit of an answer to `call`.

    Attributes:
        package: The provider's package.
        package_error: Base of its errors.
        path: End of the path of the API under which answers come.
        key_names: Environment variables of the key.

    Raises:
        LlmAuthError: There is no key.
    """

    package: ModuleType
    package_error: type[Exception]
    path: str
    key_names: tuple[str, ...]

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
        self.model, self.max_output_tokens = model, max_output_tokens
        self._base_url, self._effort, self._timeout_s = base_url, effort, timeout_s
        self._options = self._sent_options(temperature, thinking_budget)
        name, key = _environment_key(self.key_names, base_url, key_env)
        self._client: Any = self._connect(
            name,
            key,
            max_retries=max_retries,
            timeout=self.package.Timeout(timeout_s, connect=min(5.0, timeout_s)),
            http_client=AttemptClient(self.path, self._is_answer, self.package_error),
        )

    def _sent_options(self, temperature: float | None, thinking_budget: int | None) -> dict[str, Any]:
        """Return the options of every request that the model may reject."""
        return {} if temperature is None else {"temperature": temperature}

    def _connect(self, key_name: str | None, key: str, **limits: Any) -> Any:
        """Return the package's client for a key, and the variable that it comes from."""
        raise NotImplementedError

    def _is_answer(self, body: dict[str, Any]) -> bool:
        """Return whether a JSON object is an answer of the model."""
        raise NotImplementedError

    def _send(self, request: Request, options: dict[str, Any]) -> dict[str, Any]:
        """Send the request through the package, and return the JSON object of the answer."""
        raise NotImplementedError

    def _read(self, body: dict[str, Any]) -> Answer:
        """Read the JSON object of an answer; may raise any of FORM_ERRORS for one of another form."""
        raise NotImplementedError

    def _usage(self, body: dict[str, Any]) -> Usage:
        """Return the usage in an answer, with counts that cannot be true brought into range."""
        raise NotImplementedError

    def complete(self, request: Request) -> Response:
        """Ask the model; see `LanguageModel.complete`. An answer that is not of the API's form is a bad answer."""
        start = time.monotonic()
        with call_attempts(self._timeout_s) as attempts:
            usage: Usage | None = None
            try:
                body = self._send_accepted(request)
                usage = self._usage(body)
                response = self._response(self._read(body), usage, start)
                response = response.model_copy(update={"lost_attempts": attempts.lost})
                return with_parsed_output(response, request)
            except FORM_ERRORS as error:
                attempts.lost += usage is None
                message = f"the answer does not have the form of the API ({type(error).__name__})"
                failure = LlmBadAnswerError(message, location=self.model)
                raise self._with_cost(failure, usage) from error

    def _with_cost(self, error: LlmError, usage: Usage | None) -> LlmError:
        error.usage, error.cost_usd = usage, None if usage is None else prices.cost_usd(self.model, usage)
        return error

    def _send_accepted(self, request: Request) -> dict[str, Any]:
        """Send the request, and again without an option that the model rejects; every later request is without it."""
        while True:
            try:
                return self._send(request, self._options)
            except self.package_error as error:
                failure = self._failure(error)
                rejected = self._rejected_option(failure, error)
                if rejected is None:
                    raise failure from None  # the package's error holds the request
            LOGGER.warning("the model %s does not accept `%s`; it is not sent", self.model, rejected)
            self._options = {name: value for name, value in self._options.items() if name != rejected}

    def _rejected_option(self, failure: LlmError, error: Exception) -> str | None:
        if not isinstance(failure, LlmBadRequestError):
            return None
        text = _letters(f"{getattr(error, 'param', None)} {failure.message}")
        return next((name for name in self._options if _letters(name) in text), None)

    def _failure(self, error: Exception) -> LlmError:
        """Return the LlmError for an error of the package."""
        if isinstance(error.__cause__, LlmError):
            return error.__cause__
        status, detail = getattr(error, "status_code", None), _detail(error)
        if status in (401, 403) or (status == 400 and "API key" in detail):  # Gemini: an invalid argument
            return LlmAuthError(
                f"the provider rejects the API key: {detail}", location=self.model, hint="check the key"
            )
        if status in PERMANENT_STATUSES:
            return rejected_request(status, detail, self.model)
        return LlmUnavailableError(f"no answer after all retries: {detail}", location=self.model)

    def _response(self, answer: Answer, usage: Usage, start: float) -> Response:
        """Return the response of an answer.

        Raises:
            LlmError: The model refused, or the answer is cut off or malformed; with its usage and cost.
            ValueError: The answer does not have its form.
        """
        # What is recorded and sent back has to be text; a lone surrogate raises UnicodeEncodeError, a ValueError.
        json.dumps([answer.text, answer.model, answer.blocks], ensure_ascii=False).encode()
        blocks = _with_distinct_ids(answer.blocks)
        try:
            response = Response(
                text=answer.text,
                tool_calls=_tool_calls(blocks, self.model),
                usage=usage,
                stop_reason=answer.stop_reason,
                model=answer.model or self.model,
                cost_usd=prices.cost_usd(self.model, usage),
                duration_ms=int((time.monotonic() - start) * 1000),
                blocks=blocks,
            )
            _check_answer(answer, self.model)
        except LlmError as error:
            raise self._with_cost(error, usage) from error.__cause__
        return response


def _with_distinct_ids(blocks: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
    """Return the blocks; tool calls that share an id, as some endpoints send them, get ones of their own."""
    taken = {str(block.get("id")) for block in blocks}
    seen, found = {""}, []
    for block in blocks:
        call_id = block.get("id")
        if block["type"] == "tool_use" and isinstance(call_id, str):
            if call_id in seen:
                call_id = next(each for n in count(1) if (each := f"{call_id or 'call'}_{n}") not in taken)
                block = {**block, "id": call_id}
            taken.add(call_id)
            seen.add(call_id)
        found.append(block)
    return tuple(found)


def _tool_calls(blocks: tuple[dict[str, Any], ...], model: str) -> tuple[ToolCall, ...]:
    """Return the tool calls of an answer. Raises LlmBadAnswerError for one whose input is not a JSON object."""
    calls = [block for block in blocks if block["type"] == "tool_use"]
    try:
        json.dumps([call["input"] for call in calls], allow_nan=False)  # what is recorded has to be JSON
        return tuple(ToolCall(id=call["id"], name=call["name"], input=call["input"]) for call in calls)
    except (LookupError, TypeError, ValueError) as error:
        message = f"a tool call does not have the form of the API ({type(error).__name__})"
        raise LlmBadAnswerError(message, location=model) from error


def _check_answer(answer: Answer, model: str) -> None:
    """Raise the typed error of a stop reason that is not an answer."""
    reason = answer.stop_reason
    if answer.refusal is not None:
        raise LlmRefusalError(f"the model declined to answer: {answer.refusal[:300]}", location=model)
    if reason in ("max_tokens", "model_context_window_exceeded"):
        raise LlmTruncatedError(f"the answer was cut off ({reason})", location=model, hint="allow more tokens")
    if reason not in ("end_turn", "tool_use", "stop_sequence"):
        raise LlmBadAnswerError(f"the answer ended with {reason!r}", location=model)
    if len(answer.text) > MAX_RESPONSE_CHARS:
        message = f"the answer has {len(answer.text)} characters; {MAX_RESPONSE_CHARS} are allowed"
        raise LlmBadAnswerError(message, location=model)


def _detail(error: Exception) -> str:
    """Return what the provider said, or why there is no answer."""
    body: Any = getattr(error, "body", None)
    body = body[0] if isinstance(body, list) and body else body  # as Gemini answers
    body = body.get("error", body) if isinstance(body, dict) else None
    message = body.get("message") if isinstance(body, dict) else None
    return str(message or error.__cause__ or error)[:300]


def _letters(text: str) -> str:
    """Return the text for a comparison of names: providers write `thinkingBudget` and `thinking_budget`."""
    return text.replace("_", "").lower()


def _environment_key(names: tuple[str, ...], base_url: str | None, key_env: str | None) -> tuple[str | None, str]:
    """Return the key of the environment and its variable: `key_env`, else the first of `names` that is set.

    With an explicit `base_url` only `key_env` is read.

    Raises:
        LlmAuthError: No variable is set.
    """
    if key_env is None and base_url is not None:
        return None, "none"
    for name in (key_env,) if key_env is not None else names:
        if key := os.environ.get(name):
            add_secret(key)
            return name, key
    raise LlmAuthError(
        "there is no key for the language model",
        location=f"environment variable {key_env or ' or '.join(names)}",
        hint=NO_KEY_HINT,
    )
