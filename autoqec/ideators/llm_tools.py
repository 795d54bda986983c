"""Read-only tools of the Ideator: they look at the view and nothing else, and their answers are bounded."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autoqec.contracts.dsl import PredecoderDSL, parse_dsl
from autoqec.contracts.pins import apply_pins
from autoqec.errors import AutoqecError, ContractError
from autoqec.ideators import prompts
from autoqec.llm.base import Tool, ToolCall

MAX_RESULT_CHARS = 3000
MAX_ROWS = 20

_INTEGER = {"type": "integer"}
TOOLS = (
    Tool(
        name="query_history",
        description=f"Rounds of this run, newest first, at most {MAX_ROWS}. Every filter may be left out.",
        input_schema={
            "type": "object",
            "properties": {
                "rounds": {"type": "array", "items": _INTEGER},
                "status": {"type": "string", "description": "ok, compile_error, train_error, killed_by_safety …"},
                "verdict": {"type": "string", "enum": ["VERIFIED", "SUSPICIOUS", "FAILED"]},
                "family": {"type": "string"},
            },
            "additionalProperties": False,
        },
    ),
    Tool(
        name="diff",
        description="Config keys in which round `other` differs from round `one`; 0 is the baseline.",
        input_schema={
            "type": "object",
            "properties": {"one": _INTEGER, "other": _INTEGER},
            "required": ["one", "other"],
            "additionalProperties": False,
        },
    ),
    Tool(
        name="check_proposal",
        description="Whether a predecoder config is valid and new, and what it would cost.",
        input_schema={
            "type": "object",
            "properties": {"proposal": {"type": "object"}},
            "required": ["proposal"],
            "additionalProperties": False,
        },
    ),
)

PredictCost = Callable[[PredecoderDSL], dict[str, Any]]


class ViewTools:
    """The tools over one view. predict_cost: {n_params, flops_per_syndrome} of a config; None leaves costs out."""

    def __init__(self, view: dict[str, Any], predict_cost: PredictCost | None = None) -> None:
        self._view, self._predict_cost = view, predict_cost
        self._names = prompts.round_numbers(view)

    def run(self, call: ToolCall) -> tuple[str, bool]:
        """The answer, and whether the call was a good one. A wrong call is told why; nothing is raised."""
        known = {"query_history": self._history, "diff": self._diff, "check_proposal": self._check}
        if call.name not in known:
            return f"there is no tool {prompts.sanitize(call.name, 64)!r}; there are: {', '.join(known)}", False
        try:
            return prompts.data_block(call.name, known[call.name](call.input)), True
        except (AutoqecError, KeyError, TypeError, ValueError) as error:
            return prompts.sanitize(f"{call.name}: {error}", 400), False

    def _history(self, arguments: dict[str, Any]) -> str:
        rounds = set(arguments.get("rounds") or ())
        matching = [
            row
            for row in self._view["history"][::-1]
            if (not rounds or row["round"] in rounds)
            and arguments.get("status") in (None, row.get("status"))
            and arguments.get("verdict") in (None, row.get("verify_verdict"))
            and arguments.get("family") in (None, (row.get("dsl_config") or {}).get("type"))
        ]
        lines = [prompts.round_line(row, self._names) for row in matching[:MAX_ROWS]]
        return prompts.fit_lines([f"{len(matching)} rounds match", *lines], MAX_RESULT_CHARS)

    def _diff(self, arguments: dict[str, Any]) -> str:
        one, other = (prompts.flatten(self._config(int(arguments[name]))) for name in ("one", "other"))
        keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
        return prompts.fit_lines(
            [f"{key}: {one.get(key)} -> {other.get(key)}" for key in keys] or ["same"], MAX_RESULT_CHARS
        )

    def _config(self, number: int) -> dict[str, Any]:
        if number == 0:
            return dict(self._view["baseline_config"])
        row = next((row for row in self._view["history"] if row["round"] == number), None)
        if row is None or not row.get("dsl_config"):
            raise ValueError(f"round {number} has no config")
        return dict(row["dsl_config"])

    def _check(self, arguments: dict[str, Any]) -> str:
        proposal = apply_pins(arguments["proposal"], self._view.get("pins") or {})
        dsl = parse_dsl(proposal, location="proposal")
        find_equivalent = find_duplicate_round(self._view, dsl)
        novelty = (
            "new"
            if find_equivalent is None
            else f"computes and learns what round {find_equivalent} does: it would be turned down"
        )
        lines = ["valid", novelty]
        if self._predict_cost is not None:
            cost, bounds = self._predict_cost(dsl), (self._view.get("env") or {}).get("constraints") or {}
            lines += [f"{name}: {value}" for name, value in cost.items()]
            for name, bound in (("n_params", "max_params"), ("flops_per_syndrome", "max_flops_per_syndrome")):
                if bound in bounds and cost.get(name, 0) > bounds[bound]:
                    lines.append(f"over the bound {bound} = {bounds[bound]}: it would be refused")
        return "\n".join(lines)


def find_duplicate_round(view: dict[str, Any], dsl: PredecoderDSL) -> int | None:
    """The round, measured or running, whose config computes and learns what this one does; None for a new one."""
    from autoqec.decoders.equivalence import find_equivalent

    finetunes = (view.get("env") or {}).get("backend", "mwpm") == "mwpm"
    for row in [*view["history"], *view["pending"]]:
        if row.get("status") in prompts.ABORTED_STATUSES or not row.get("dsl_config"):
            continue
        try:
            other = parse_dsl(row["dsl_config"])
        except ContractError:
            continue
        if find_equivalent(dsl, [other], finetunes=finetunes) is not None:
            return int(row["round"])
    return None
