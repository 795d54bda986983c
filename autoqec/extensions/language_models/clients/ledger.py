"""Ledger of calls to language models, and the budget that refuses a call before it is sent."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autoqec.extensions.language_models.clients.base import (
    LanguageModel,
    Request,
    Response,
    WrappedLM,
    estimate_tokens,
)
from autoqec.extensions.language_models.clients.errors import BudgetExceededError, LlmError
from autoqec.store import jsonl
from autoqec.store.model_calls import ModelCalls

_current_attempt_id: ContextVar[str | None] = ContextVar("round_attempt_id", default=None)
_current_call_id: ContextVar[str | None] = ContextVar("call_id", default=None)


def current_booking() -> dict[str, str]:
    """Return the attempt and the ledger's id of the call that is being made, those that are known."""
    ids = {"round_attempt_id": _current_attempt_id.get(), "call_id": _current_call_id.get()}
    return {name: value for name, value in ids.items() if value is not None}


@dataclass(frozen=True)
class CostBound:
    """Upper bounds of one call; `usd` is None if no price is known."""

    tokens: int
    usd: float | None

    def times(self, count: int) -> CostBound:
        """Return the bounds of several such calls."""
        return CostBound(self.tokens * count, None if self.usd is None else self.usd * count)


class Ledger(ModelCalls):
    """Two durable lines per call: `asked` with its upper bounds before it is sent, `spent` with what it cost.

    A call that was not settled (the process died, or the answer was lost) counts against the budget with its upper
    bounds, and not as spent. Threads may share a ledger; `path` None keeps it in memory.
    """

    def __init__(
        self, path: Path | None = None, *, max_usd: float | None = None, max_tokens: int | None = None
    ) -> None:
        self.max_usd, self.max_tokens = max_usd, max_tokens
        self._lost_bounds: list[CostBound] = []
        self._lock = threading.Lock()
        super().__init__(path)

    @property
    def has_limit(self) -> bool:
        """Whether there is a budget."""
        return self.max_usd is not None or self.max_tokens is not None

    @property
    def unsettled(self) -> CostBound:
        """Upper bounds of calls whose cost is not known (yet)."""
        pending = [_bound(asked) for asked in self.pending.values()] + self._lost_bounds
        return CostBound(sum(bound.tokens for bound in pending), sum(bound.usd or 0.0 for bound in pending))

    @contextmanager
    def round(self, round_attempt_id: str) -> Iterator[None]:
        """Book the calls made inside the block under this attempt."""
        token = _current_attempt_id.set(round_attempt_id)
        try:
            yield
        finally:
            _current_attempt_id.reset(token)

    def reserve(self, request: Request, model: str, bound: CostBound) -> str:
        """Book a call before it is sent and return its id.

        Raises:
            BudgetExceededError: The call could break the budget; nothing was booked.
        """
        line = {
            "kind": "asked",
            "id": uuid.uuid4().hex,
            "round_attempt_id": _current_attempt_id.get(),
            "role": request.role,
            "model": model,
            "worst_tokens": bound.tokens,
            "worst_usd": bound.usd,
        }
        with self._lock:
            self._check(request, model, bound)
            self._write(line)
        return str(line["id"])

    @property
    def pending_calls(self) -> frozenset[str]:
        """Ids of calls that were booked and not settled."""
        return frozenset(self.pending)

    def settle(self, call_id: str, outcome: str, result: Response | LlmError) -> None:
        """Book what the call cost. `outcome` is `ok` or the error's name."""
        usage = result.usage
        line = {
            "kind": "spent",
            "id": call_id,
            "outcome": outcome,
            "usage": usage.dump() if usage else None,
            "cost_usd": result.cost_usd,
            "duration_ms": result.duration_ms if isinstance(result, Response) else None,
            "lost_attempts": result.lost_attempts,
        }
        with self._lock:
            self._write(line)

    def _check(self, request: Request, model: str, bound: CostBound) -> None:
        unsettled = self.unsettled
        if self.max_tokens is not None:
            after = self.totals.usage.total + unsettled.tokens + bound.tokens
            if after > self.max_tokens:
                raise BudgetExceededError(
                    f"the next call could take {bound.tokens} tokens, {after} in all; the budget is {self.max_tokens}",
                    location=f"role {request.role}",
                    hint="give a larger budget",
                )
        if self.max_usd is not None:
            if bound.usd is None:
                raise BudgetExceededError(
                    f"no price is known for the model {model!r}, so a budget in dollars cannot be kept",
                    location=f"role {request.role}",
                    hint="add --price in=X,out=Y, or use --budget tokens=COUNT",
                )
            dollars = self.totals.known_usd + (unsettled.usd or 0.0) + bound.usd
            if dollars > self.max_usd:
                raise BudgetExceededError(
                    f"the next call could cost ${bound.usd:.4f}, ${dollars:.4f} in all; the budget is ${self.max_usd}",
                    location=f"role {request.role}",
                    hint="give a larger budget",
                )

    def _write(self, line: dict[str, Any]) -> None:
        if self.path:
            jsonl.append(self.path, line)
        self.apply(line)

    def apply(self, line: dict[str, Any]) -> None:
        """Add one line of the file, and the bounds of attempts whose answer was lost."""
        if line["kind"] == "spent" and line["lost_attempts"]:
            self._lost_bounds.append(_bound(self.pending[line["id"]]).times(line["lost_attempts"]))
        super().apply(line)


def _bound(asked: dict[str, Any]) -> CostBound:
    return CostBound(asked["worst_tokens"], asked["worst_usd"])


class MeteredLM(WrappedLM):
    """A language model whose calls are booked, and refused if they could break the budget."""

    def __init__(self, wrapped: LanguageModel, ledger: Ledger) -> None:
        super().__init__(wrapped)
        self.ledger = ledger

    def complete(self, request: Request) -> Response:
        """Book the call and ask the wrapped model."""
        call = self.ledger.reserve(request, self.model, self._cost_bound(request))
        token = _current_call_id.set(call)
        try:
            response = self.wrapped.complete(request)
        except LlmError as error:
            self.ledger.settle(call, type(error).__name__, error)
            raise
        finally:
            _current_call_id.reset(token)
        self.ledger.settle(call, "ok", response)
        return response

    def _cost_bound(self, request: Request) -> CostBound:
        # Counting is a request of its own: only a budget needs the exact figure.
        prompt = self.wrapped.count_tokens(request) if self.ledger.has_limit else estimate_tokens(request.text())
        return CostBound(prompt + request.max_tokens, self.wrapped.max_cost_usd(request, prompt))
