"""Calls of language models that a run has made: tokens and cost, in all, by role and by attempt."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from autoqec.contracts.base import Contract
from autoqec.store import jsonl

Count = Annotated[int, Field(ge=0)]


class Usage(Contract):
    """Tokens of one call or of several: the four counters that the provider bills."""

    input_tokens: Count = 0
    output_tokens: Count = 0
    cache_creation_input_tokens: Count = 0
    cache_read_input_tokens: Count = 0

    def __add__(self, other: Usage) -> Usage:
        return Usage(**{name: getattr(self, name) + getattr(other, name) for name in type(self).model_fields})

    @property
    def prompt_tokens(self) -> int:
        """All input tokens, cached or not."""
        return self.input_tokens + self.cache_creation_input_tokens + self.cache_read_input_tokens

    @property
    def total(self) -> int:
        """All tokens, input and output."""
        return self.prompt_tokens + self.output_tokens


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


class ModelCalls:
    """The calls that `ledger.jsonl` holds, summed: `asked` before a call is sent, `spent` once its cost is known.

    Attributes:
        path: The file; None: the calls are kept in memory alone.
        totals: Sums over all calls.
        by_role: Sums by the role that called.
        by_attempt: Sums by the attempt that the calls belong to.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.totals = UsageTotals()
        self.by_role: dict[str, UsageTotals] = {}
        self.by_attempt: dict[str, UsageTotals] = {}
        self.pending: dict[str, dict[str, Any]] = {}
        for line in jsonl.read(path) if path else []:
            self.apply(line)

    def apply(self, line: dict[str, Any]) -> None:
        """Add one line of the file."""
        if line["kind"] == "asked":
            self.pending[line["id"]] = line
            return
        asked = self.pending.pop(line["id"])
        self.totals.add(line)
        self.by_role.setdefault(asked["role"], UsageTotals()).add(line)
        if asked["round_attempt_id"]:
            self.by_attempt.setdefault(asked["round_attempt_id"], UsageTotals()).add(line)
