"""What was spent on language models, call by call on disk, and the budget that stops before the call that breaks it."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autoqec.llm.base import Caller, LanguageModel, Reply, Request, Usage, estimate_tokens
from autoqec.llm.errors import BudgetExceeded, LmError
from autoqec.store import jsonl

_attempt: ContextVar[str | None] = ContextVar("round_attempt_id", default=None)


@dataclass(frozen=True)
class Worst:
    """Upper bounds of one call; usd is None where no price is known."""

    tokens: int
    usd: float | None

    def times(self, count: int) -> Worst:
        return Worst(self.tokens * count, None if self.usd is None else self.usd * count)


@dataclass
class Spent:
    """Sums over settled calls. cost_usd is None as soon as one call's cost is unknown; known_usd sums the others."""

    calls: int = 0
    failed: int = 0
    usage: Usage = field(default_factory=Usage)
    known_usd: float = 0.0
    unknown_cost_calls: int = 0

    @property
    def cost_usd(self) -> float | None:
        return None if self.unknown_cost_calls else self.known_usd

    def add(self, line: dict[str, Any]) -> None:
        self.calls += 1
        self.failed += line["outcome"] != "ok"
        if line["usage"] is None:
            return
        self.usage += Usage.read(line["usage"], where="ledger")
        if line["cost_usd"] is None:
            self.unknown_cost_calls += 1
        else:
            self.known_usd += line["cost_usd"]

    def to_json(self) -> dict[str, Any]:
        return {
            "calls": self.calls,
            "failed": self.failed,
            **self.usage.dump(),
            "cost_usd": self.cost_usd,
            "unknown_cost_calls": self.unknown_cost_calls,
        }


class Ledger:
    """Two durable lines a call: `asked` with its upper bounds before it is sent, `spent` with what it cost.

    A call that was asked and never settled (the process died, or the answer was lost on its way) counts against the
    budget with its upper bounds, and not as spent. Threads may share a ledger; `path` None keeps it in memory.
    """

    def __init__(
        self, path: Path | None = None, *, max_usd: float | None = None, max_tokens: int | None = None
    ) -> None:
        self.path, self.max_usd, self.max_tokens = path, max_usd, max_tokens
        self.spent = Spent()
        self.by_role: dict[str, Spent] = {}
        self.by_attempt: dict[str, Spent] = {}
        self._open: dict[str, tuple[dict[str, Any], Worst]] = {}
        self._lost: list[Worst] = []
        self._lock = threading.Lock()
        for line in jsonl.read(path) if path else []:
            self._apply(line)

    @property
    def limited(self) -> bool:
        return self.max_usd is not None or self.max_tokens is not None

    @property
    def possible(self) -> Worst:
        """Upper bounds of calls whose cost is not known (yet)."""
        pending = [worst for _, worst in self._open.values()] + self._lost
        return Worst(sum(worst.tokens for worst in pending), sum(worst.usd or 0.0 for worst in pending))

    @contextmanager
    def round(self, round_attempt_id: str) -> Iterator[None]:
        """Calls made inside are booked under this attempt."""
        token = _attempt.set(round_attempt_id)
        try:
            yield
        finally:
            _attempt.reset(token)

    def ask(self, request: Request, model: str, worst: Worst) -> str:
        """Book a call before it is sent; its id. Raises BudgetExceeded, and then nothing was booked."""
        line = {
            "kind": "asked",
            "id": uuid.uuid4().hex,
            "round_attempt_id": _attempt.get(),
            "role": request.role,
            "model": model,
            "worst_tokens": worst.tokens,
            "worst_usd": worst.usd,
        }
        with self._lock:
            self._check(request, model, worst)
            self._write(line)
        return str(line["id"])

    def settle(self, call_id: str, outcome: str, result: Reply | LmError) -> None:
        """Book what the call cost. outcome: `ok`, or the error's name."""
        usage = result.usage
        line = {
            "kind": "spent",
            "id": call_id,
            "outcome": outcome,
            "usage": usage.dump() if usage else None,
            "cost_usd": result.cost_usd,
            "duration_ms": result.duration_ms if isinstance(result, Reply) else None,
            "lost_attempts": result.lost_attempts,
        }
        with self._lock:
            self._write(line)

    def _check(self, request: Request, model: str, worst: Worst) -> None:
        possible = self.possible
        if self.max_tokens is not None:
            after = self.spent.usage.total + possible.tokens + worst.tokens
            if after > self.max_tokens:
                raise BudgetExceeded(
                    f"the next call could take {worst.tokens} tokens, {after} in all; the budget is {self.max_tokens}",
                    where=f"role {request.role}",
                    mend="give a larger budget",
                )
        if self.max_usd is not None:
            if worst.usd is None:
                raise BudgetExceeded(
                    f"no price is known for the model {model!r}, so a budget in dollars cannot be kept",
                    where=f"role {request.role}",
                    mend="give the budget in tokens, or choose a model that autoqec/llm/prices.yaml lists",
                )
            dollars = self.spent.known_usd + (possible.usd or 0.0) + worst.usd
            if dollars > self.max_usd:
                raise BudgetExceeded(
                    f"the next call could cost ${worst.usd:.4f}, ${dollars:.4f} in all; the budget is ${self.max_usd}",
                    where=f"role {request.role}",
                    mend="give a larger budget",
                )

    def _write(self, line: dict[str, Any]) -> None:
        if self.path:
            jsonl.append(self.path, line)
        self._apply(line)

    def _apply(self, line: dict[str, Any]) -> None:
        if line["kind"] == "asked":
            self._open[line["id"]] = (line, Worst(line["worst_tokens"], line["worst_usd"]))
            return
        asked, worst = self._open.pop(line["id"])
        if line["lost_attempts"]:
            self._lost.append(worst.times(line["lost_attempts"]))
        self.spent.add(line)
        self.by_role.setdefault(asked["role"], Spent()).add(line)
        if asked["round_attempt_id"]:
            self.by_attempt.setdefault(asked["round_attempt_id"], Spent()).add(line)


class Metered(Caller):
    """A language model whose every call is booked, and refused before it could break the budget."""

    def __init__(self, inner: LanguageModel, ledger: Ledger) -> None:
        self.inner, self.ledger, self.model = inner, ledger, inner.model
        self.max_output_tokens = getattr(inner, "max_output_tokens", self.max_output_tokens)
        self.takes_tools = inner.takes_tools

    def complete(self, request: Request) -> Reply:
        call = self.ledger.ask(request, self.model, self._worst(request))
        try:
            reply = self.inner.complete(request)
        except LmError as error:
            self.ledger.settle(call, type(error).__name__, error)
            raise
        self.ledger.settle(call, "ok", reply)
        return reply

    def count_tokens(self, request: Request) -> int:
        return self.inner.count_tokens(request)

    def worst_cost_usd(self, request: Request, prompt_tokens: int) -> float | None:
        return self.inner.worst_cost_usd(request, prompt_tokens)

    def _worst(self, request: Request) -> Worst:
        # Counting is a request of its own: only a budget needs the exact figure.
        prompt = self.inner.count_tokens(request) if self.ledger.limited else estimate_tokens(request.text())
        return Worst(prompt + request.max_tokens, self.inner.worst_cost_usd(request, prompt))
