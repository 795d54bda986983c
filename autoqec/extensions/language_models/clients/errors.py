"""Errors of language models; each keeps what the call is known to have cost."""

from __future__ import annotations

from autoqec.errors import AutoqecError
from autoqec.extensions.language_models.clients.environment import encodable, redact
from autoqec.store.model_calls import Usage

NO_KEY_HINT = (
    "set it; a local endpoint needs no key: name it by `base_url`, or that of a role by AUTOQEC_<ROLE>_BASE_URL"
)


class LlmError(AutoqecError):
    """A call without a usable answer. Keys are removed from its message.

    Attributes:
        usage: Tokens that the provider charged, if known.
        cost_usd: Their cost, if known.
        lost_attempts: Requests that were sent and not answered, so that their cost is unknown.
        answer: Text of an answer that was rejected, to be shown to the model.
        is_permanent: Whether every further call would fail in the same way.
    """

    exit_code = 1
    is_permanent = False

    def __init__(
        self,
        message: str,
        *,
        location: str | None = None,
        hint: str | None = None,
        usage: Usage | None = None,
        cost_usd: float | None = None,
        lost_attempts: int = 0,
        answer: str | None = None,
    ) -> None:
        super().__init__(redact(message), location=location, hint=hint)
        self.answer = None if answer is None else encodable(answer)
        self.usage, self.cost_usd, self.lost_attempts = usage, cost_usd, lost_attempts


class LlmRefusalError(LlmError):
    """The model declined to answer."""


class LlmTruncatedError(LlmError):
    """The answer reached max_tokens or the end of the context window."""


class LlmBadAnswerError(LlmError):
    """An answer came that is not what was requested: not JSON, a field missing, too long."""


class LlmUnavailableError(LlmError):
    """No answer after all retries: overloaded, rate limited, cut off, too slow, not installed."""


class LlmAuthError(LlmError):
    """There is no key, or the provider refuses it."""

    exit_code = 2
    is_permanent = True


class LlmBadRequestError(LlmError):
    """The provider refuses the request itself, such as a prompt that is too long."""

    exit_code = 2


class LlmNoAccessError(LlmBadRequestError):
    """The provider has no such model, or there is no credit."""

    is_permanent = True


def rejected_request(status: int, detail: str, model: str) -> LlmBadRequestError:
    """Return the error of a request that a provider rejected with an HTTP status, with what it said."""
    message = f"the provider rejects the request ({status}): {detail}"
    if status in (402, 404) or "credit balance" in detail:
        return LlmNoAccessError(message, location=model, hint="check the name of the model and the account")
    return LlmBadRequestError(message, location=model)


class CassetteMissError(LlmError):
    """A replay requested a call that the cassette does not hold."""

    exit_code = 2


class BudgetExceededError(LlmError):
    """The next call could break the budget, so it was not made."""

    exit_code = 3
