"""Calls on tape, at the protocol's seam: record them once, replay them without a key, a network or a model.

One JSON line a call: its fingerprint, what was asked, and the reply or the typed error. The n-th call with the same
fingerprint gets the n-th answer; a call that the tape does not hold is an error. Keys are removed from every line.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from pathlib import Path
from typing import Any, Literal

from autoqec.errors import UsageError
from autoqec.llm import errors, prices
from autoqec.llm.base import (
    MIN_MAX_TOKENS,
    BaseLanguageModel,
    LanguageModel,
    Request,
    Response,
    Usage,
    with_parsed_output,
)
from autoqec.llm.errors import CassetteMissError, LlmError
from autoqec.llm.redact import redact_value
from autoqec.store import jsonl

Mode = Literal["live", "record", "replay"]

_RECORDED_ERRORS: dict[str, type[LlmError]] = {  # names as cassettes hold them
    "LmRefusal": errors.LlmRefusalError,
    "LmTruncated": errors.LlmTruncatedError,
    "LmBadAnswer": errors.LlmBadAnswerError,
    "LmUnavailable": errors.LlmUnavailableError,
}  # what a model answered; local failures (no key, no credit) are not replayed
_RECORDED_NAMES = {kind: name for name, kind in _RECORDED_ERRORS.items()}


class CassetteFile:
    """One file of calls; roles share it. Threads may share it."""

    def __init__(self, path: Path, mode: Mode) -> None:
        self.path, self.mode = path, mode
        self._lock = threading.Lock()
        self._rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._n_replayed: dict[str, int] = defaultdict(int)
        if mode == "replay":
            if not path.is_file():
                raise UsageError("the cassette is not there", location=str(path), hint="record one first")
            for row in jsonl.read(path):
                self._rows[row["key"]].append(row)

    def write(self, row: dict[str, Any]) -> None:
        with self._lock:
            jsonl.append(self.path, redact_value(row))

    def next(self, key: str, request: Request, model: str, *, what: str) -> dict[str, Any]:
        with self._lock:
            rows, index = self._rows.get(key, []), self._n_replayed[key]
            if index < len(rows):
                self._n_replayed[key] = index + 1
                return rows[index]
        again = f", asked for the {index + 1}. time" if rows else ""
        raise CassetteMissError(
            f"the cassette holds no such {what} of role {request.role} to {model} (key {key[:12]}{again})",
            location=str(self.path),
            hint="record the run again, or replay it with the versions that it was recorded with",
        )


class CassetteLM(BaseLanguageModel):
    """A language model on tape. inner: the model behind it; None is enough for a replay.

    model: the name under which the calls were recorded. The other options: as the recorded model had them.
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
        key = request.fingerprint(self.model)
        if self.cassette_file.mode == "replay":
            return self._replay(key, request)
        row = {"kind": "complete", "key": key, "role": request.role, "model": self.model, "request": request.dump()}
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
        """As recorded: a replay must meet its budget at the same call."""
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
        if self.wrapped is not None:
            return self.wrapped.max_cost_usd(request, prompt_tokens)
        known = prices.max_cost_usd(self.model, prompt_tokens, request)
        return known if known is not None else self._max_call_usd

    def _wrapped_model(self) -> LanguageModel:
        assert self.wrapped is not None  # checked when built
        return self.wrapped

    def _replay(self, key: str, request: Request) -> Response:
        row = self.cassette_file.next(key, request, self.model, what="call")
        if row["error"] is None:
            return with_parsed_output(Response.read(row["reply"], location=str(self.cassette_file.path)), request)
        error = row["error"]
        usage = Usage.read(error["usage"], location=str(self.cassette_file.path)) if error["usage"] else None
        raise _RECORDED_ERRORS[error["kind"]](
            error["what"],
            location=error["where"],
            hint=error["mend"],
            usage=usage,
            cost_usd=error["cost_usd"],
            lost_attempts=error["lost_attempts"],
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
    }
