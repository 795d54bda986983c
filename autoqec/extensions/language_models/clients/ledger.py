"""Ledger of calls to language models, and the budget that refuses a call before it is sent."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
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
from autoqec.extensions.language_models.clients.usage import Usage
from autoqec.store import jsonl

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


@dataclass
class UsageTotals:
    """Sums over settled calls. `cost_usd` is None once one cost is unknown; `known_usd` sums the others."""

    calls: int = 0
    failed: int = 0
    usage: Usage = field(default_factory=Usage)
    known_usd: float = 0.0
    unknown_cost_calls: int = 0

    @property
    def cost_usd(self) -> float | None:
        """Cost in dollars; None if the cost of a call is unknown."""
        return None if self.unknown_cost_calls else self.known_usd

    def add(self, line: dict[str, Any]) -> None:
        """Add one settled call."""
        self.calls += 1
        self.failed += line["outcome"] != "ok"
        if line["usage"] is None:
            return
        self.usage += Usage.read(line["usage"], location="ledger")
        if line["cost_usd"] is None:
            self.unknown_cost_calls += 1
        else:
            self.known_usd += line["cost_usd"]

    def to_json(self) -> dict[str, Any]:
        """Return the sums as JSON values."""
        return {
            "calls": self.calls,
            "failed": self.failed,
            **self.usage.dump(),
            "cost_usd": self.cost_usd,
            "unknown_cost_calls": self.unknown_cost_calls,
        }


class Ledger:
    """Two durable lines per call: `asked` with its upper bounds before it is sent, `spent` with what it cost.

    A call that was not settled (the process died, or the answer was lost) counts against the budget with its upper
    bounds, and not as spent. Threads may share a ledger; `path` None keeps it in memory.
    """

    def __init__(
        self, path: Path | None = None, *, max_usd: float | None = None, max_tokens: int | None = None
    ) -> None:
        self.path, self.max_usd, self.max_tokens = path, max_usd, max_tokens
        self.totals = UsageTotals()
        self.by_role: dict[str, UsageTotals] = {}
        self.by_attempt: dict[str, UsageTotals] = {}
        self._pending: dict[str, tuple[dict[str, Any], CostBound]] = {}
        self._lost_bounds: list[CostBound] = []
        self._lock = threading.Lock()
        for line in jsonl.read(path) if path else []:
            self._apply(line)

    @property
    def has_limit(self) -> bool:
        """Whether there is a budget."""
        return self.max_usd is not None or self.max_tokens is not None

    @property
    def unsettled(self) -> CostBound:
        """Upper bounds of calls whose cost is not known (yet)."""
        pending = [bound for _, bound in self._pending.values()] + self._lost_bounds
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
        return frozenset(self._pending)

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
        self._apply(line)

    def _apply(self, line: dict[str, Any]) -> None:
        if line["kind"] == "asked":
            self._pending[line["id"]] = (line, CostBound(line["worst_tokens"], line["worst_usd"]))
            return
        reservation, bound = self._pending.pop(line["id"])
        if line["lost_attempts"]:
            self._lost_bounds.append(bound.times(line["lost_attempts"]))
        self.totals.add(line)
        self.by_role.setdefault(reservation["role"], UsageTotals()).add(line)
        if reservation["round_attempt_id"]:
            self.by_attempt.setdefault(reservation["round_attempt_id"], UsageTotals()).add(line)


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
