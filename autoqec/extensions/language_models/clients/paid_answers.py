"""Answers that a crash left unused: the next attempt gets them instead of paying for the same calls again."""

from __future__ import annotations

import logging
from collections import defaultdict, deque
from collections.abc import Collection
from pathlib import Path
from typing import Any

from autoqec.extensions.language_models.clients.base import (
    BaseLanguageModel,
    LanguageModel,
    Request,
    Response,
    with_parsed_output,
)
from autoqec.extensions.language_models.clients.cassette import is_answer, recorded_answer
from autoqec.extensions.language_models.clients.errors import LlmError
from autoqec.extensions.language_models.clients.ledger import Ledger, current_booking
from autoqec.extensions.language_models.clients.usage import Usage
from autoqec.store import jsonl

LOGGER = logging.getLogger("autoqec.extensions.language_models.clients")


class PaidAnswers:
    """The recorded answers of attempts that ended before a round was planned.

    They serve one later attempt, the first that asks. The n-th call with a fingerprint gets the n-th answer.

    Args:
        cassette: cassette.jsonl of the run.
        attempts: Ids of these attempts.

    Attributes:
        attempts: Ids of these attempts.
        served_last: Whether the latest call got one of the answers.
    """

    def __init__(self, cassette: Path, attempts: Collection[str]) -> None:
        self.location, self.served_last = str(cassette), False
        self.attempts = frozenset(attempts)
        self._served_attempt: str | None = None
        self._rows: dict[str, deque[dict[str, Any]]] = defaultdict(deque)
        for row in jsonl.read(cassette) if attempts else []:
            if row.get("round_attempt_id") in attempts and is_answer(row):
                self._rows[row["key"]].append(row)

    def take(self, key: str) -> dict[str, Any] | None:
        """Return the next unused answer to the request with this fingerprint; None if there is none."""
        row = self._next(key)
        self.served_last = row is not None
        return row

    def _next(self, key: str) -> dict[str, Any] | None:
        attempt = current_booking().get("round_attempt_id")
        if attempt is None or attempt in self.attempts:
            return None
        if self._served_attempt is None:
            self._served_attempt = attempt
        rows = self._rows.get(key)
        return rows.popleft() if rows and attempt == self._served_attempt else None


class PaidAnswersLM(BaseLanguageModel):
    """A language model that asks only for what was not answered before; a recorded answer costs nothing again."""

    def __init__(self, wrapped: LanguageModel, answers: PaidAnswers) -> None:
        self._wrapped, self._answers, self.model = wrapped, answers, wrapped.model
        self.max_output_tokens = getattr(wrapped, "max_output_tokens", self.max_output_tokens)
        self.supports_tools = wrapped.supports_tools

    def complete(self, request: Request) -> Response:
        """Return the recorded answer or raise the recorded error, without usage and cost; otherwise ask."""
        row = self._answers.take(request.fingerprint(self.model))
        if row is None:
            return self._wrapped.complete(request)
        LOGGER.info("the answer to an interrupted attempt is used again for the role %s", request.role)
        try:
            answer = with_parsed_output(recorded_answer(row, location=self._answers.location), request)
        except LlmError as error:
            error.usage, error.cost_usd, error.lost_attempts = None, None, 0
            raise
        free = {"usage": Usage(), "cost_usd": 0.0, "duration_ms": 0, "lost_attempts": 0}
        return answer.model_copy(update=free)

    def count_tokens(self, request: Request) -> int:
        """Return the wrapped model's count."""
        return self._wrapped.count_tokens(request)

    def max_cost_usd(self, request: Request, prompt_tokens: int) -> float | None:
        """Return the wrapped model's bound."""
        return self._wrapped.max_cost_usd(request, prompt_tokens)


def settle_recorded_calls(ledger: Ledger, cassette: Path) -> None:
    """Settle the calls whose answer was recorded before the process died, with what they cost."""
    for row in jsonl.read(cassette) if ledger.pending_calls else []:
        call_id = row.get("call_id")
        if call_id not in ledger.pending_calls:
            continue
        try:
            ledger.settle(call_id, "ok", recorded_answer(row, location=str(cassette)))
        except LlmError as error:
            ledger.settle(call_id, type(error).__name__, error)
