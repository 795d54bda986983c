"""Calls on tape, at the protocol's seam: record them once, replay them without a key, a network or a model.

One JSON line a call: its fingerprint, what was asked, and the reply or the typed error. The n-th call with the same
fingerprint gets the n-th answer; a call that the tape does not hold is an error. Keys are removed from every line.
"""

from __future__ import annotations

import threading
from collections import defaultdict
from pathlib import Path
from typing import Any, Literal

from autoqec.errors import InputError
from autoqec.llm import errors, prices
from autoqec.llm.base import MIN_MAX_TOKENS, Caller, LanguageModel, Reply, Request, Usage, with_output
from autoqec.llm.errors import LmCassetteMiss, LmError
from autoqec.llm.redact import redact_value
from autoqec.store import jsonl

Mode = Literal["live", "record", "replay"]

_KINDS: dict[str, type[LmError]] = {
    kind.__name__: kind for kind in (errors.LmRefusal, errors.LmTruncated, errors.LmBadAnswer, errors.LmUnavailable)
}  # an answer that a model gave; faults of the machine (no key, no credit) are not worth replaying


class Tape:
    """One file of calls; roles share it. Threads may share it."""

    def __init__(self, path: Path, mode: Mode) -> None:
        self.path, self.mode = path, mode
        self._lock = threading.Lock()
        self._rows: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._played: dict[str, int] = defaultdict(int)
        if mode == "replay":
            if not path.is_file():
                raise InputError("the cassette is not there", where=str(path), mend="record one first")
            for row in jsonl.read(path):
                self._rows[row["key"]].append(row)

    def write(self, row: dict[str, Any]) -> None:
        with self._lock:
            jsonl.append(self.path, redact_value(row))

    def next(self, key: str, request: Request, model: str, *, what: str) -> dict[str, Any]:
        with self._lock:
            rows, index = self._rows.get(key, []), self._played[key]
            if index < len(rows):
                self._played[key] = index + 1
                return rows[index]
        again = f", asked for the {index + 1}. time" if rows else ""
        raise LmCassetteMiss(
            f"the cassette holds no such {what} of role {request.role} to {model} (key {key[:12]}{again})",
            where=str(self.path),
            mend="record the run again, or replay it with the versions that it was recorded with",
        )


class Cassette(Caller):
    """A language model on tape. inner: the model behind it; None is enough for a replay.

    model: the name under which the calls were recorded. The other options: as the recorded model had them.
    """

    def __init__(
        self,
        tape: Tape,
        model: str,
        inner: LanguageModel | None = None,
        *,
        takes_tools: bool = True,
        max_output_tokens: int = MIN_MAX_TOKENS,
        max_call_usd: float | None = None,
    ) -> None:
        if inner is None and tape.mode != "replay":
            raise InputError(f"mode `{tape.mode}` needs a model behind the cassette", where=str(tape.path))
        self.tape, self.model, self.inner = tape, model, inner
        self.takes_tools, self.max_output_tokens, self._max_call_usd = takes_tools, max_output_tokens, max_call_usd

    def complete(self, request: Request) -> Reply:
        key = request.fingerprint(self.model)
        if self.tape.mode == "replay":
            return self._replay(key, request)
        row = {"kind": "complete", "key": key, "role": request.role, "model": self.model, "request": request.dump()}
        try:
            reply = self._inner().complete(request)
        except LmError as error:
            if type(error).__name__ in _KINDS and self.tape.mode == "record":
                self.tape.write({**row, "reply": None, "error": _error_row(error)})
            raise
        if self.tape.mode == "record":
            self.tape.write({**row, "reply": reply.dump(), "error": None})
        return reply

    def count_tokens(self, request: Request) -> int:
        """As recorded: a replay must meet its budget at the same call."""
        key = "count:" + request.fingerprint(self.model)
        if self.tape.mode == "replay":
            return int(self.tape.next(key, request, self.model, what="token count")["tokens"])
        tokens = self._inner().count_tokens(request)
        if self.tape.mode == "record":
            self.tape.write({"kind": "count", "key": key, "role": request.role, "model": self.model, "tokens": tokens})
        return tokens

    def worst_cost_usd(self, request: Request, prompt_tokens: int) -> float | None:
        if self.inner is not None:
            return self.inner.worst_cost_usd(request, prompt_tokens)
        known = prices.worst_cost_usd(self.model, prompt_tokens, request)
        return known if known is not None else self._max_call_usd

    def _inner(self) -> LanguageModel:
        assert self.inner is not None  # checked when built
        return self.inner

    def _replay(self, key: str, request: Request) -> Reply:
        row = self.tape.next(key, request, self.model, what="call")
        if row["error"] is None:
            return with_output(Reply.read(row["reply"], where=str(self.tape.path)), request)
        error = row["error"]
        usage = Usage.read(error["usage"], where=str(self.tape.path)) if error["usage"] else None
        raise _KINDS[error["kind"]](
            error["what"],
            where=error["where"],
            mend=error["mend"],
            usage=usage,
            cost_usd=error["cost_usd"],
            lost_attempts=error["lost_attempts"],
        )


def _error_row(error: LmError) -> dict[str, Any]:
    return {
        "kind": type(error).__name__,
        "what": error.what,
        "where": error.where,
        "mend": error.mend,
        "usage": error.usage.dump() if error.usage else None,
        "cost_usd": error.cost_usd,
        "lost_attempts": error.lost_attempts,
    }
