"""What can go wrong with a language model, typed; each keeps what the call is known to have cost."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autoqec.errors import AutoqecError
from autoqec.llm.redact import redact

if TYPE_CHECKING:
    from autoqec.llm.base import Usage


class LmError(AutoqecError):
    """A call without an answer that can be used.

    usage, cost_usd: what the provider charged for it, where that is known. lost_attempts: requests that were sent and
    never answered, so that their cost is unknown. No message carries a key.
    """

    exit_code = 1

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        hint: str | None = None,
        usage: Usage | None = None,
        cost_usd: float | None = None,
        lost_attempts: int = 0,
    ) -> None:
        super().__init__(redact(what), where=where, hint=hint)
        self.usage, self.cost_usd, self.lost_attempts = usage, cost_usd, lost_attempts


class LmRefusal(LmError):
    """The model declined to answer."""


class LmTruncated(LmError):
    """The answer ran into max_tokens or the context window before its end."""


class LmBadAnswer(LmError):
    """An answer came, and is not what was asked for: no JSON, a field missing, too long."""


class LmUnavailable(LmError):
    """No answer after all retries: overloaded, rate limited, cut off, too slow, not installed."""


class LmAuth(LmError):
    """No key, or one that the provider does not take."""

    exit_code = 2


class LmBadRequest(LmError):
    """The provider refuses the request itself: unknown model, prompt too long, no credit."""

    exit_code = 2


class LmCassetteMiss(LmError):
    """A replay asked for a call that the cassette does not hold."""

    exit_code = 2


class BudgetExceeded(LmError):
    """The next call could break the budget, so it was not made."""

    exit_code = 3
