"""Read-only tools of the Ideator. They read the view and the cost prediction alone, and their answers are bounded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from pydantic import ValidationError

from autoqec.contracts.base import first_validation_error
from autoqec.contracts.dsl import PredecoderDSL, flatten, parse_dsl
from autoqec.contracts.pins import apply_pins
from autoqec.contracts.verdict import Verdict
from autoqec.contracts.views import IdeatorView
from autoqec.decoders.cost_limits import exceeded_limits
from autoqec.errors import AutoqecError, ContractError, StorageError
from autoqec.extensions.language_models.clients.base import Tool, ToolCall
from autoqec.extensions.language_models.contracts import ModelConfig
from autoqec.extensions.language_models.roles import view_text
from autoqec.extensions.language_models.roles.data_blocks import data_block, fit_lines, sanitize
from autoqec.ideators.proposal_checks import PredictCost, find_duplicate_round

MAX_RESULT_CHARS = 3000
MAX_ROWS = 20

Handler = Callable[[dict[str, Any]], str]
INTEGER = {"type": "integer"}


def tool(
    name: str, description: str, properties: Mapping[str, Any], *, required: tuple[str, ...] | None = None
) -> Tool:
    """Return a tool with a closed schema.

    Args:
        name: Its name.
        description: What it does, for the model.
        properties: Schema of each argument.
        required: Names of required arguments; None for all.
    """
    names = list(properties) if required is None else list(required)
    schema = {"type": "object", "properties": dict(properties), "required": names, "additionalProperties": False}
    return Tool(name=name, description=description, input_schema=schema)


TOOLS = (
    tool(
        "query_history",
        f"Rounds of this run, newest first, at most {MAX_ROWS}. Every filter is optional.",
        {
            "rounds": {"type": "array", "items": INTEGER},
            "status": {"type": "string", "description": "ok, compile_error, train_error, killed_by_safety …"},
            "verdict": {"type": "string", "enum": list(get_args(Verdict))},
            "family": {"type": "string"},
        },
        required=(),
    ),
    tool(
        "diff",
        "Config keys in which round `other` differs from round `one`; 0 is the baseline.",
        {"one": INTEGER, "other": INTEGER},
    ),
    tool(
        "check_proposal",
        "Whether a predecoder config is valid and new, and what it would cost.",
        {"proposal": {"type": "object"}},
    ),
)


class ViewTools:
    """The tools over one view of a run.

    Args:
        view: View of the Ideator.
        predict_cost: Cost of a config; None leaves costs out of the answers.
    """

    def __init__(self, view: IdeatorView, predict_cost: PredictCost | None = None) -> None:
        self._view, self._predict_cost = view, predict_cost
        self._names = view_text.round_numbers(view)

    def handlers(self) -> dict[str, Handler]:
        """Return the function of each tool."""
        return {"query_history": self._history, "diff": self._diff, "check_proposal": self._check}

    def run(self, call: ToolCall) -> tuple[str, bool]:
        """Answer a call. A faulty call is answered with the reason; nothing is raised.

        Returns:
            The text for the model, and whether the call succeeded.
        """
        known = self.handlers()
        if call.name not in known:
            return f"unknown tool {sanitize(call.name, 64)!r}; known tools: {', '.join(known)}", False
        try:
            return data_block(call.name, known[call.name](call.input)), True
        except StorageError:
            raise  # of this machine, not of the call
        except (AutoqecError, KeyError, TypeError, ValueError) as error:
            return sanitize(f"{call.name}: {error}", 400), False

    def _history(self, arguments: dict[str, Any]) -> str:
        rounds = set(arguments.get("rounds") or ())
        matching = [
            row
            for row in self._view.history[::-1]
            if (not rounds or row["round"] in rounds)
            and arguments.get("status") in (None, row.get("status"))
            and arguments.get("verdict") in (None, row.get("verify_verdict"))
            and arguments.get("family") in (None, (row.get("dsl_config") or {}).get("type"))
        ]
        lines = [view_text.round_line(row, self._names) for row in matching[:MAX_ROWS]]
        return fit_lines([f"{len(matching)} rounds match", *lines], MAX_RESULT_CHARS)

    def _diff(self, arguments: dict[str, Any]) -> str:
        one, other = (flatten(self._config(int(arguments[name]))) for name in ("one", "other"))
        keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
        return fit_lines([f"{key}: {one.get(key)} -> {other.get(key)}" for key in keys] or ["same"], MAX_RESULT_CHARS)

    def _config(self, number: int) -> dict[str, Any]:
        if number == 0:
            config: dict[str, Any] = self._view.baseline_config
            return config
        for row in self._view.history:
            if row["round"] == number and row["dsl_config"]:
                return dict(row["dsl_config"])
        raise ContractError(f"round {number} has no config", location="diff")

    def _proposal(self, arguments: dict[str, Any]) -> PredecoderDSL:
        """Return a proposed config under the run's pins. Raises ContractError for what an answer may not propose."""
        try:
            proposed = ModelConfig.model_validate(arguments["proposal"])
        except ValidationError as error:
            raise ContractError(first_validation_error(error), location="proposal") from error
        return parse_dsl(apply_pins(proposed.config(), self._view.pins), location="proposal")

    def _check(self, arguments: dict[str, Any]) -> str:
        dsl = self._proposal(arguments)
        duplicate = find_duplicate_round(self._view, dsl)
        lines = ["valid", "new" if duplicate is None else f"equivalent to round {duplicate}: it would be rejected"]
        if self._predict_cost is not None:
            cost = self._predict_cost(dsl)
            lines += [f"{name}: {value}" for name, value in cost.items()]
            exceeded = exceeded_limits(cost, self._view.env.constraints if self._view.env else None)
            lines += [f"{sentence}: it would be rejected" for sentence in exceeded]
        return "\n".join(lines)
