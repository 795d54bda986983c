"""Cassettes: calls recorded once and replayed without a key, a network or a model.

One JSON line per call: its fingerprint, the request, the response or the typed error, and under which attempt and
which id the ledger booked it. The n-th call with a fingerprint gets the n-th answer; a call that the file does not hold
is an error. Keys are removed from every line.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from pathlib import Path
from typing import Any, Literal

from autoqec.errors import ContractError, UsageError
from autoqec.extensions.language_models.clients import errors, prices
from autoqec.extensions.language_models.clients.base import (
    MIN_MAX_TOKENS,
    BaseLanguageModel,
    LanguageModel,
    Request,
    Response,
    with_parsed_output,
)
from autoqec.extensions.language_models.clients.errors import CassetteMissError, LlmError
from autoqec.extensions.language_models.clients.ledger import current_booking
from autoqec.extensions.language_models.clients.redact import redact_value
from autoqec.extensions.language_models.clients.usage import Usage
from autoqec.store import jsonl

Mode = Literal["live", "record", "replay"]

_RECORDED_ERRORS: dict[str, type[LlmError]] = {  # names as cassettes hold them
    "LmRefusal": errors.LlmRefusalError,
    "LmTruncated": errors.LlmTruncatedError,
    "LmBadAnswer": errors.LlmBadAnswerError,
    "LmUnavailable": errors.LlmUnavailableError,
}  # what a model answered; local failures (no key, no credit) are not replayed
_RECORDED_NAMES = {kind: name for name, kind in _RECORDED_ERRORS.items()}
_ERROR_FIELDS = {"kind", "what", "where", "mend", "usage", "cost_usd", "lost_attempts"}
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


class CassetteLM(BaseLanguageModel):
    """A language model that records or replays.

    Args:
        cassette_file: File of calls.
        model: Name under which the calls were recorded.
        wrapped: The recorded model; None is enough for a replay.
        supports_tools: As the recorded model.
        max_output_tokens: As the recorded model.
        max_call_usd: As the recorded model.
    """

    def __init__(
        self,
        cassette_file: CassetteFile,
        model: str,
        wrapped: LanguageModel | None = None,
        *,
        supports_tools: bool = True,
        max_output_tokens: int = MIN_MAX_TOKENS,
        max_call_usd: float | None = None,
    ) -> None:
        if wrapped is None and cassette_file.mode != "replay":
            raise UsageError(
                f"mode `{cassette_file.mode}` needs a model behind the cassette", location=str(cassette_file.path)
            )
        self.cassette_file, self.model, self.wrapped = cassette_file, model, wrapped
        self.supports_tools, self.max_output_tokens, self._max_call_usd = (
            supports_tools,
            max_output_tokens,
            max_call_usd,
        )

    def complete(self, request: Request) -> Response:
        """Answer from the file, or ask the wrapped model and record the answer."""
        key = request.fingerprint(self.model)
        if self.cassette_file.mode == "replay":
            return self._replay(key, request)
        row = {
            "kind": "complete", "key": key, "role": request.role, "model": self.model, **current_booking(),
            "request": request.dump(),
        }  # fmt: skip
        try:
            response = self._wrapped_model().complete(request)
        except LlmError as error:
            if type(error) in _RECORDED_NAMES and self.cassette_file.mode == "record":
                self.cassette_file.write({**row, "reply": None, "error": _error_row(error)})
            raise
        if self.cassette_file.mode == "record":
            self.cassette_file.write({**row, "reply": response.dump(), "error": None})
        return response

    def count_tokens(self, request: Request) -> int:
        """Return the recorded count, so that a replay meets its budget at the same call."""
        key = "count:" + request.fingerprint(self.model)
        if self.cassette_file.mode == "replay":
            return int(self.cassette_file.next(key, request, self.model, what="token count")["tokens"])
        tokens = self._wrapped_model().count_tokens(request)
        if self.cassette_file.mode == "record":
            self.cassette_file.write(
                {"kind": "count", "key": key, "role": request.role, "model": self.model, "tokens": tokens}
            )
        return tokens

    def max_cost_usd(self, request: Request, prompt_tokens: int) -> float | None:
        """Return the most that the call can cost in dollars; None if no price is known."""
        if self.wrapped is not None:
            return self.wrapped.max_cost_usd(request, prompt_tokens)
        known = prices.max_cost_usd(self.model, prompt_tokens, request)
        return known if known is not None else self._max_call_usd

    def _wrapped_model(self) -> LanguageModel:
        assert self.wrapped is not None  # checked when built
        return self.wrapped

    def _replay(self, key: str, request: Request) -> Response:
        row = self.cassette_file.next(key, request, self.model, what="call")
        return with_parsed_output(recorded_answer(row, location=str(self.cassette_file.path)), request)


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
    return row.get("kind") == "complete" and (error is None or error["kind"] != "LmUnavailable")


def recorded_answer(row: dict[str, Any], *, location: str) -> Response:
    """Return the answer of a recorded call, or raise the error that it ended with."""
    error = row["error"]
    if error is None:
        return Response.read(row["reply"], location=location)
    usage = Usage.read(error["usage"], location=location) if error["usage"] else None
    raise _RECORDED_ERRORS[error["kind"]](
        error["what"],
        location=error["where"],
        hint=error["mend"],
        usage=usage,
        cost_usd=error["cost_usd"],
        lost_attempts=error["lost_attempts"],
        answer=error.get("answer"),  # cassettes of earlier versions have none
    )


def _error_row(error: LlmError) -> dict[str, Any]:
    return {
        "kind": _RECORDED_NAMES[type(error)],
        "what": error.message,
        "where": error.location,
        "mend": error.hint,
        "usage": error.usage.dump() if error.usage else None,
        "cost_usd": error.cost_usd,
        "lost_attempts": error.lost_attempts,
        "answer": error.answer,
    }
