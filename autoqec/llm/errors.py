"""Errors of language models; each keeps what the call is known to have cost."""

from __future__ import annotations

from autoqec.errors import AutoqecError
from autoqec.llm.redact import redact
from autoqec.llm.usage import Usage

NO_KEY_HINT = (
    "set it; a local endpoint needs no key: name it by `base_url`, or that of a role by AUTOQEC_<ROLE>_BASE_URL"
)


class LlmError(AutoqecError):
    """A call without a usable answer. Keys are removed from its message.

    Attributes:
        usage: Tokens that the provider charged, if known.
        cost_usd: Their cost, if known.
        lost_attempts: Requests that were sent and not answered, so that their cost is unknown.
    """

    exit_code = 1

    def __init__(
        self,
        message: str,
        *,
        location: str | None = None,
        hint: str | None = None,
        usage: Usage | None = None,
        cost_usd: float | None = None,
        lost_attempts: int = 0,
    ) -> None:
        super().__init__(redact(message), location=location, hint=hint)
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


class LlmBadRequestError(LlmError):
    """The provider refuses the request itself: unknown model, prompt too long, no credit."""

    exit_code = 2


class CassetteMissError(LlmError):
    """A replay requested a call that the cassette does not hold."""

    exit_code = 2


class BudgetExceededError(LlmError):
    """The next call could break the budget, so it was not made."""

    exit_code = 3
