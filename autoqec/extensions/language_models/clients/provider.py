"""What clients of providers share: keys and typed answers; a base for packages that only send one request.

The base has retries, deadline, typed errors, and options that are dropped.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

from autoqec import optional
from autoqec.extensions.language_models.clients import prices
from autoqec.extensions.language_models.clients.base import (
    MAX_RESPONSE_CHARS,
    MIN_MAX_TOKENS,
    BaseLanguageModel,
    Effort,
    Request,
    Response,
    ToolCall,
    estimate_tokens,
    parse_output,
)
from autoqec.extensions.language_models.clients.errors import (
    NO_KEY_HINT,
    LlmAuthError,
    LlmBadAnswerError,
    LlmError,
    LlmRefusalError,
    LlmTruncatedError,
    LlmUnavailableError,
    rejected_request,
)
from autoqec.extensions.language_models.clients.redact import add_secret
from autoqec.extensions.language_models.clients.transport import (
    CallAttempts,
    call_attempts,
    check_pause,
    requested_pause_s,
)
from autoqec.extensions.language_models.clients.usage import Usage

LOGGER = logging.getLogger("autoqec.extensions.language_models.clients")
PERMANENT_STATUSES = (400, 402, 404, 413, 422)
# What reading an answer of another form raises.
FORM_ERRORS = (AssertionError, AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError)


class RequestFailedError(Exception):
    """One attempt that failed, in the terms that every provider shares.

    Attributes:
        status: HTTP status; None if the connection failed.
        headers: Of the response.
        sent: Whether the request may have been processed, so that its cost is unknown.
        parameter: The request's parameter that the provider rejects, if it names one.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int | None = None,
        headers: Mapping[str, str] | None = None,
        sent: bool = False,
        parameter: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.headers, self.sent, self.parameter = status, headers or {}, sent, parameter


@dataclass(frozen=True)
class Answer:
    """One answer in the terms that every provider shares.

    `stop_reason` is that of the Messages API or a fault, and `blocks` are content blocks of that API.
    """

    text: str
    usage: Usage
    stop_reason: str
    model: str
    refusal: str | None = None
    blocks: tuple[dict[str, Any], ...] = field(default=())


class ProviderLM(BaseLanguageModel):
    """One model behind a provider's package. Subclasses send one request and read one answer.

    Instances may be shared by threads. An option that the model rejects is dropped with a warning.

    Args:
        model: Name of the model.
        base_url: Endpoint; None for the provider's own.
        key_env: Environment variable of the key; None takes the first of `key_names` that is set, and no key with an
            explicit `base_url`.
        temperature: None for the model's own.
        thinking_budget: Tokens for thinking, of models that have such a limit; None for the model's default.
        effort: Reasoning effort; None for the model's default.
        max_retries: Further attempts after overload, rate limits and broken connections.
        timeout_s: Limit of one call with all of its attempts, in seconds.
        max_output_tokens: Limit of an answer to `call`.

    Attributes:
        package: The provider's package, by the name under which it is imported.
        extra: The extra of autoqec that installs it.
        key_names: Environment variables of the key.

    Raises:
        UsageError: The package is not installed.
        LlmAuthError: There is no key.
    """

    package: str
    extra: str
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
        self._max_retries, self._timeout_s = max_retries, timeout_s
        options = {"temperature": temperature, **self._thinking_options(thinking_budget, effort)}
        self._options = {name: value for name, value in options.items() if value is not None}
        optional.require_installed(self.package, extra=self.extra, location="lm.model")
        self._client: Any = self._connect(environment_key(self.key_names, base_url, key_env), base_url)

    def _thinking_options(self, thinking_budget: int | None, effort: Effort | None) -> dict[str, Any]:
        """Return the provider's options for thinking; those with the value None are not sent."""
        raise NotImplementedError

    def _connect(self, key: str, base_url: str | None) -> Any:
        """Return the package's client, without retries of its own and with the transport that keeps deadlines."""
        raise NotImplementedError

    def _send(self, request: Request, options: dict[str, Any]) -> dict[str, Any]:
        """Send the request once and return the JSON object of the answer, or raise RequestFailedError."""
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
            body = self._send_with_retries(request, attempts)
            usage = self._usage(body)
            cost = prices.cost_usd(self.model, usage)
            try:
                duration_ms = int((time.monotonic() - start) * 1000)
                return response_of(request, self._read(body), attempts, self.model, cost, duration_ms)
            except FORM_ERRORS as error:
                raise LlmBadAnswerError(
                    f"the answer does not have the form of the API ({type(error).__name__})",
                    location=self.model,
                    usage=usage,
                    cost_usd=cost,
                ) from error

    def count_tokens(self, request: Request) -> int:
        """Return an upper estimate."""
        return estimate_tokens(request.text())

    def max_cost_usd(self, request: Request, prompt_tokens: int) -> float | None:
        """Return the most that the call can cost in dollars; None if no price is known."""
        return prices.max_cost_usd(self.model, prompt_tokens, request)

    def _send_with_retries(self, request: Request, attempts: CallAttempts) -> dict[str, Any]:
        for tries in range(self._max_retries + 1):
            if time.monotonic() > attempts.deadline:
                raise LlmUnavailableError("no answer within the time limit of the call", location=self.model)
            try:
                return self._send_accepted(request)
            except RequestFailedError as error:
                attempts.lost += error.sent
                self._raise_permanent(error)
                pause = requested_pause_s(error.headers) or min(0.5 * 2.0**tries, 8.0)
                last_error = error
            if tries < self._max_retries:
                check_pause(pause, attempts.deadline)
                time.sleep(pause)
        raise LlmUnavailableError(f"no answer after all retries: {last_error}", location=self.model) from None

    def _send_accepted(self, request: Request) -> dict[str, Any]:
        """Send the request, and again without an option that the model rejects; every later request is without it."""
        while True:
            try:
                return self._send(request, self._options)
            except RequestFailedError as error:
                rejected = self._rejected_option(error)
                if rejected is None:
                    raise
                LOGGER.warning("the model %s does not accept `%s`; it is not sent", self.model, rejected)
                self._options = {name: value for name, value in self._options.items() if name != rejected}

    def _rejected_option(self, error: RequestFailedError) -> str | None:
        if error.status not in (400, 422):
            return None
        text = _letters(f"{error.parameter} {error}")
        named = [name for name in self._options if _letters(name) in text]
        return named[0] if named else None

    def _raise_permanent(self, error: RequestFailedError) -> None:
        if error.status in (401, 403):
            raise LlmAuthError(
                f"the provider rejects the key: {error}", location=self.model, hint="check the key"
            ) from None
        if error.status is not None and error.status in PERMANENT_STATUSES:
            raise rejected_request(error.status, str(error), self.model) from None


def response_of(
    request: Request, answer: Answer, attempts: CallAttempts, model: str, cost_usd: float | None, duration_ms: int
) -> Response:
    """Return the response to a request.

    Args:
        request: The request.
        answer: What the provider answered.
        attempts: Attempts of the call.
        model: The requested model, which errors name.
        cost_usd: Price of the answer, if known.
        duration_ms: Duration of the call.

    Raises:
        LlmError: The model refused, or the answer is cut off or malformed; with its usage and cost.
        ValueError: The answer does not have its form.
    """
    try:
        # What is recorded and sent back has to be text; a lone surrogate raises UnicodeEncodeError, a ValueError.
        json.dumps([answer.text, answer.model, answer.blocks], ensure_ascii=False).encode()
        answer = replace(answer, blocks=_with_distinct_ids(answer.blocks))
        response = Response(
            text=answer.text,
            tool_calls=_tool_calls(answer, model),
            usage=answer.usage,
            stop_reason=answer.stop_reason,
            model=answer.model,
            cost_usd=cost_usd,
            duration_ms=duration_ms,
            blocks=answer.blocks,
            lost_attempts=attempts.lost,
        )
        _check_answer(answer, model)
        parsed = None if request.output is None or response.tool_calls else parse_output(request.output, answer.text)
    except LlmError as error:
        error.usage, error.cost_usd = answer.usage, cost_usd
        raise
    return response.model_copy(update={"parsed": parsed})


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


def _tool_calls(answer: Answer, model: str) -> tuple[ToolCall, ...]:
    """Return the tool calls of an answer. Raises LlmBadAnswerError for one whose input is not a JSON object."""
    calls = [block for block in answer.blocks if block["type"] == "tool_use"]
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
        raise LlmBadAnswerError(
            f"the answer has {len(answer.text)} characters; {MAX_RESPONSE_CHARS} are allowed", location=model
        )


def _letters(text: str) -> str:
    """Return the text for a comparison of names: providers write `thinkingBudget` and `thinking_budget`."""
    return text.replace("_", "").lower()


def environment_key(names: tuple[str, ...], base_url: str | None, key_env: str | None) -> str:
    """Return the key of the environment: of `key_env`, else of the first of `names` that is set.

    With an explicit `base_url` only `key_env` is read, so that a local endpoint never sees a key of a provider.

    Raises:
        LlmAuthError: No variable is set.
    """
    if key_env is None and base_url is not None:
        return "none"
    for name in (key_env,) if key_env is not None else names:
        if key := os.environ.get(name):
            add_secret(key)
            return key
    raise LlmAuthError(
        "there is no key for the language model",
        location=f"environment variable {key_env or ' or '.join(names)}",
        hint=NO_KEY_HINT,
    )
