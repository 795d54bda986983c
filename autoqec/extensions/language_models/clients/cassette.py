"""Cassettes: calls recorded once, and answered again without a key, a network or a model.

One JSON line per call: its fingerprint, the request, the response or the typed error, and under which attempt and
which id the ledger booked it. The n-th call with a fingerprint gets the n-th answer; a call that the file does not hold
is an error. Keys are removed from every line. After a crash, the answers that it left unused serve the next attempt,
which does not pay for the same calls again (`PaidAnswers`).
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict, deque
from collections.abc import Collection
from pathlib import Path
from typing import Any, Literal

from autoqec.errors import ContractError, UsageError
from autoqec.extensions.language_models.clients.base import (
    MIN_MAX_TOKENS,
    LanguageModel,
    Request,
    Response,
    WrappedLM,
    with_parsed_output,
)
from autoqec.extensions.language_models.clients.environment import redact_value
from autoqec.extensions.language_models.clients.errors import (
    CassetteMissError,
    LlmBadAnswerError,
    LlmError,
    LlmRefusalError,
    LlmTruncatedError,
    LlmUnavailableError,
)
from autoqec.extensions.language_models.clients.ledger import Ledger, current_booking
from autoqec.store import jsonl
from autoqec.store.model_calls import Usage

Mode = Literal["record", "replay"]

# What a model answered. Local failures (no key, no credit) are not replayed.
_RECORDED_ERRORS: dict[str, type[LlmError]] = {
    kind.__name__: kind for kind in (LlmRefusalError, LlmTruncatedError, LlmBadAnswerError, LlmUnavailableError)
}
_ERROR_FIELDS = {"kind", "what", "where", "hint", "usage", "cost_usd", "lost_attempts", "answer"}
LOGGER = logging.getLogger("autoqec.extensions.language_models.clients")
_MISS_HINT = "replay with the version and the options of the recording (its run.json names them), or record it again"


class CassetteFile:
    """One file of calls, which roles and threads may share."""

    def __init__(self, path: Path, mode: Mode) -> None:
        self.path, self.mode = path, mode
        self._lock = threading.Lock()
        self._rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._n_replayed: dict[str, int] = defaultdict(int)
        self._calls: list[tuple[int, dict[str, Any]]] = []  # all recorded calls, with the numbers of their lines
        if mode == "replay":
            if not path.is_file():
                raise UsageError("the cassette does not exist", location=str(path), hint="record one first")
            for number, row in enumerate(jsonl.read(path), start=1):
                _check_row(row, f"{path}:{number}")
                self._rows[row["key"]].append(row)
                self._calls += [(number, row)] if row["kind"] == "complete" else []

    def write(self, row: dict[str, Any]) -> None:
        """Append one call."""
        with self._lock:
            jsonl.append(self.path, redact_value(row))

    def next(self, key: str, request: Request, model: str, *, what: str) -> dict[str, Any]:
        """Return the next recorded call with this fingerprint; CassetteMissError if there is none."""
        with self._lock:
            rows, index = self._rows.get(key, []), self._n_replayed[key]
            if index < len(rows):
                self._n_replayed[key] = index + 1
                return rows[index]
            why = f"asked for the {index + 1}. time" if rows else self._difference(request, model)
        raise CassetteMissError(
            f"the cassette does not hold this {what} of role {request.role} to {model} (key {key[:12]}): {why}",
            location=str(self.path),
            hint=_MISS_HINT,
        )

    def _difference(self, request: Request, model: str) -> str:
        """Return what distinguishes a request from the next recorded call of its role that was not replayed."""
        unplayed, left = list[tuple[int, dict[str, Any]]](), dict(self._n_replayed)
        for number, row in self._calls:
            if left.get(row["key"], 0):
                left[row["key"]] -= 1
            elif row.get("role") == request.role:
                unplayed.append((number, row))
        if not unplayed:
            return f"all recorded calls of role {request.role} were replayed"
        number, row = unplayed[0]
        if row.get("model") != model:
            return f"line {number}, the next one of this role, went to {row.get('model')}"
        recorded, asked = row.get("request"), redact_value(request.dump())
        recorded = recorded if isinstance(recorded, dict) else {}
        fields = [name for name in asked if name != "aside" and (recorded.get(name) or None) != (asked[name] or None)]
        if not fields and row["key"] == request.fingerprint(model):
            return "tokens were not counted, since it was recorded without a budget"
        return f"line {number}, the next one of this role, differs in {', '.join(fields) or 'the form of the answer'}"


class RecordingLM(WrappedLM):
    """A language model whose calls are written to a cassette."""

    def __init__(self, wrapped: LanguageModel, cassette_file: CassetteFile) -> None:
        super().__init__(wrapped)
        self._file = cassette_file

    def complete(self, request: Request) -> Response:
        """Ask the wrapped model and record the answer."""
        row = {
            "kind": "complete",
            "key": request.fingerprint(self.model),
            "role": request.role,
            "model": self.model,
            **current_booking(),
            "request": request.dump(),
        }
        try:
            response = self.wrapped.complete(request)
        except LlmError as error:
            if type(error).__name__ in _RECORDED_ERRORS:
                self._file.write({**row, "reply": None, "error": _error_row(error)})
            raise
        self._file.write({**row, "reply": response.dump(), "error": None})
        return response

    def count_tokens(self, request: Request) -> int:
        """Return the wrapped model's count, which is recorded as well."""
        tokens = self.wrapped.count_tokens(request)
        key = "count:" + request.fingerprint(self.model)
        row = {"kind": "count", "key": key, "role": request.role, "model": self.model, "tokens": tokens}
        self._file.write(row)
        return tokens


class ReplayLM(LanguageModel):
    """Answers from a cassette.

    Args:
        cassette_file: File of calls.
        model: Name under which the calls were recorded.
        supports_tools: As the recorded model.
        max_output_tokens: As the recorded model.
        max_call_usd: As the recorded model.
    """

    def __init__(
        self,
        cassette_file: CassetteFile,
        model: str,
        *,
        supports_tools: bool = True,
        max_output_tokens: int = MIN_MAX_TOKENS,
        max_call_usd: float | None = None,
    ) -> None:
        self._file, self.model, self._max_call_usd = cassette_file, model, max_call_usd
        self.supports_tools, self.max_output_tokens = supports_tools, max_output_tokens

    def complete(self, request: Request) -> Response:
        """Return the recorded answer, or raise the recorded error."""
        row = self._file.next(request.fingerprint(self.model), request, self.model, what="call")
        return with_parsed_output(recorded_answer(row, location=str(self._file.path)), request)

    def count_tokens(self, request: Request) -> int:
        """Return the recorded count, so that a replay meets its budget at the same call."""
        key = "count:" + request.fingerprint(self.model)
        return int(self._file.next(key, request, self.model, what="token count")["tokens"])

    def max_cost_usd(self, request: Request, prompt_tokens: int) -> float | None:
        """Return the most that the call can cost in dollars; None if no price is known."""
        known = super().max_cost_usd(request, prompt_tokens)
        return known if known is not None else self._max_call_usd


def _check_row(row: dict[str, Any], location: str) -> None:
    """Raise ContractError for a line that holds neither a call with its answer nor a token count."""
    kind, error, tokens = row.get("kind"), row.get("error"), row.get("tokens")
    if error is None:
        answered = isinstance(row.get("reply"), dict)
    else:
        answered = isinstance(error, dict) and error.keys() >= _ERROR_FIELDS and str(error["kind"]) in _RECORDED_ERRORS
    counted = isinstance(tokens, int) and tokens >= 0
    if not isinstance(row.get("key"), str) or not (answered if kind == "complete" else counted and kind == "count"):
        hint = "choose cassette.jsonl of a run, or record it again"
        raise ContractError("the line is not a recorded call", location=location, hint=hint)


def is_answer(row: dict[str, Any]) -> bool:
    """Return whether a line holds what a model answered, usable or not; an outage is not an answer."""
    error = row.get("error")
    return row.get("kind") == "complete" and (error is None or error["kind"] != LlmUnavailableError.__name__)


def recorded_answer(row: dict[str, Any], *, location: str) -> Response:
    """Return the answer of a recorded call, or raise the error that it ended with."""
    error = row["error"]
    if error is None:
        return Response.read(row["reply"], location=location)
    usage = Usage.read(error["usage"], location=location) if error["usage"] else None
    raise _RECORDED_ERRORS[error["kind"]](
        error["what"],
        location=error["where"],
        hint=error["hint"],
        usage=usage,
        cost_usd=error["cost_usd"],
        lost_attempts=error["lost_attempts"],
        answer=error["answer"],
    )


def _error_row(error: LlmError) -> dict[str, Any]:
    return {
        "kind": type(error).__name__,
        "what": error.message,
        "where": error.location,
        "hint": error.hint,
        "usage": error.usage.dump() if error.usage else None,
        "cost_usd": error.cost_usd,
        "lost_attempts": error.lost_attempts,
        "answer": error.answer,
    }


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


class PaidAnswersLM(WrappedLM):
    """A language model that asks only for what was not answered before; a recorded answer costs nothing again."""

    def __init__(self, wrapped: LanguageModel, answers: PaidAnswers) -> None:
        super().__init__(wrapped)
        self._answers = answers

    def complete(self, request: Request) -> Response:
        """Return the recorded answer or raise the recorded error, without usage and cost; otherwise ask."""
        row = self._answers.take(request.fingerprint(self.model))
        if row is None:
            return self.wrapped.complete(request)
        LOGGER.info("the answer to an interrupted attempt is used again for the role %s", request.role)
        try:
            answer = with_parsed_output(recorded_answer(row, location=self._answers.location), request)
        except LlmError as error:
            error.usage, error.cost_usd, error.lost_attempts = None, None, 0
            raise
        free = {"usage": Usage(), "cost_usd": 0.0, "duration_ms": 0, "lost_attempts": 0}
        return answer.model_copy(update=free)


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
