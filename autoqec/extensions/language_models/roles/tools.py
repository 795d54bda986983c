"""Tools of the Ideator: they read the run and the notes of the package, try proposals out, and keep lessons.

Their answers are bounded, and a faulty call is answered with the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, get_args

from pydantic import ValidationError

from autoqec.contracts.base import first_validation_error
from autoqec.contracts.dsl import PredecoderDSL, flatten, parse_dsl
from autoqec.contracts.env import Constraints
from autoqec.contracts.pins import apply_pins
from autoqec.contracts.round import Trial
from autoqec.contracts.verdict import Verdict
from autoqec.contracts.views import CoderView, IdeatorView, RoundRow
from autoqec.decoders.cost_limits import exceeded_limits
from autoqec.errors import AutoqecError, ContractError, StorageError, UsageError
from autoqec.extensions.language_models.clients.base import Tool, ToolCall
from autoqec.extensions.language_models.contracts import Citation, Figure, ModelConfig
from autoqec.extensions.language_models.roles import view_text
from autoqec.extensions.language_models.roles.data_blocks import data_block, fit_lines, sanitize, sanitize_lines
from autoqec.extensions.language_models.roles.notebook import MAX_LESSON_CHARS, Notebook
from autoqec.extensions.language_models.roles.record import RoundEvidence, describe_round
from autoqec.ideators.proposal_checks import find_duplicate_round, parent_branches_of
from autoqec.installation import PACKAGE_DIR
from autoqec.qec.stats import paired_effect

MAX_RESULT_CHARS = 3000
MAX_ROWS = 20
MAX_SCREENS = 4  # per round
MIN_SHARE, MAX_SHARE = 0.01, 0.05
MAX_FILE_CHARS = 12_000
LOG_POINTS = 40
NOTES = PACKAGE_DIR / "data" / "background"  # on what is known about predecoders

Handler = Callable[[dict[str, Any]], str]
INTEGER = {"type": "integer"}


class ResearchTools(Protocol):
    """What a run lets its language models look up and try out.

    Attributes:
        code_may_change: Whether the Coder may edit the editable modules.
        constraints: The env's limits that the cost of a config must keep.
    """

    code_may_change: bool
    constraints: Constraints

    def predict_cost(self, dsl: PredecoderDSL) -> Mapping[str, int]:
        """Return the cost of a config with the modules of the package."""

    def machine(self) -> dict[str, Any]:
        """Return the present state of the machine, as `autoqec machine-state` reports it."""

    def budget_left(self) -> list[str]:
        """Return what is left of each limit of the run, one line each."""

    def read_evidence(self, number: int) -> RoundEvidence:
        """Return what the files of a recorded round say."""

    def code_change(self, branch: str, against: str | None = None) -> str:
        """Return the diff of a branch's code against another branch, None for the baseline; "" if it is gone."""

    def code_of(self, branch: str | None) -> str:
        """Return the digest of a branch's code (None: the baseline's)."""

    def modules_of(self, branch: str) -> Mapping[str, str]:
        """Return name -> text of the modules of a branch, "" for the baseline."""

    def screen(self, config: dict[str, Any], fork_from: tuple[str, ...], share: float) -> Trial:
        """Train a config, with the code of its first parent, for a share of a round."""

    def check(self, view: CoderView, config: dict[str, Any], modules: Mapping[str, str]) -> Trial:
        """Build config and code in the sandbox and take a training step."""

    def find_duplicate(self, config: dict[str, Any], modules: Mapping[str, str]) -> int | None:
        """Return the recorded round with an equivalent config and the same code; None if there is none."""


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


def topics() -> list[str]:
    """Return the names of the notes."""
    return sorted(path.stem for path in NOTES.glob("*.md"))


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
_ROUND = {"round": INTEGER}
READ_ROUND = tool("read_round", "Everything that was measured of a round, with its training losses.", _ROUND)
READ_CODE = tool(
    "read_code",
    "A file of the editable modules as a round left it; without `file`, the names of the files. Round 0: the baseline.",
    {**_ROUND, "file": {"type": "string"}},
    required=("round",),
)
READ_NOTES = tool(
    "read_notes",
    "Notes on what is known about predecoders, with sources.",
    {"topic": {"type": "string", "enum": topics()}},
)
SCREEN = tool(
    "screen",
    f"Train a proposal at a share of a round's budget, {MIN_SHARE} to {MAX_SHARE}, and measure it on validation shots. "
    f"At most {MAX_SCREENS} per round; the time is charged to the run. It shows whether something trains; the order of "
    "two networks after so short a training says little about the order after a full one.",
    {
        "proposal": {"type": "object"},
        "fork_from": {"type": "array", "items": INTEGER, "description": "round whose code is used; []: the baseline"},
        "share": {"type": "number"},
    },
)

WRITE_LESSON = tool(
    "write_lesson",
    f"Note what the run has shown, at most {MAX_LESSON_CHARS} characters, with the figures that it rests on. Each is "
    "compared with the history; a lesson with a figure that differs is refused. A full notebook needs `replaces`: the "
    "numbers of the lessons that this one contains.",
    {
        "text": {"type": "string"},
        "cites": {
            "type": "array",
            "items": {
                "type": "object",
                "properties": {
                    "round": INTEGER,
                    "figure": {"type": "string", "enum": list(get_args(Figure))},
                    "value": {"type": "number"},
                },
                "required": ["round", "figure", "value"],
                "additionalProperties": False,
            },
        },
        "replaces": {"type": "array", "items": INTEGER},
    },
    required=("text", "cites"),
)


def offered_tools(tools: ResearchTools | None, notebook: Notebook | None) -> tuple[Tool, ...]:
    """Return the tools that are offered: those that a run answers only with a run, lessons only with a notebook."""
    of_a_run = () if tools is None else (READ_ROUND, READ_CODE, SCREEN)
    return (*TOOLS, READ_NOTES, *of_a_run, *(() if notebook is None else (WRITE_LESSON,)))


class IdeatorTools:
    """The tools over one view of a run; screens are counted over the life of the object.

    Args:
        view: View of the Ideator.
        tools: What the run lets it look up and try out; None: no run.
        notebook: The lessons of the run; None: it keeps none.
    """

    def __init__(self, view: IdeatorView, tools: ResearchTools | None = None, notebook: Notebook | None = None) -> None:
        self._view, self._tools, self._notebook = view, tools, notebook
        self._names, self._n_screens = view_text.round_numbers(view), 0
        handlers: dict[str, Handler] = {
            "query_history": self._history,
            "diff": self._diff,
            "check_proposal": self._check,
            READ_ROUND.name: self._read_round,
            READ_CODE.name: self._read_code,
            READ_NOTES.name: self._read_notes,
            SCREEN.name: self._screen,
            WRITE_LESSON.name: self._write_lesson,
        }
        self._handlers = {one.name: handlers[one.name] for one in offered_tools(tools, notebook)}

    def run(self, call: ToolCall) -> tuple[str, bool]:
        """Answer a call. A faulty call is answered with the reason; nothing is raised.

        Returns:
            The text for the model, and whether the call succeeded.
        """
        if call.name not in self._handlers:
            return f"unknown tool {sanitize(call.name, 64)!r}; known tools: {', '.join(self._handlers)}", False
        try:
            return data_block(call.name, self._handlers[call.name](call.input)), True
        except StorageError:
            raise  # of this machine, not of the call
        except (AutoqecError, KeyError, TypeError, ValueError) as error:
            return sanitize(f"{call.name}: {error}", 400), False

    def _run_tools(self) -> ResearchTools:
        assert self._tools is not None  # tools that need a run are offered with one alone
        return self._tools

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
        if self._tools is not None:
            cost = self._tools.predict_cost(dsl)
            lines += [f"{name}: {value}" for name, value in cost.items()]
            exceeded = exceeded_limits(cost, self._view.env.constraints if self._view.env else None)
            lines += [f"{sentence}: it would be rejected" for sentence in exceeded]
        return "\n".join(lines)

    def _row(self, number: Any) -> RoundRow:
        for row in self._view.history:
            if row["round"] == number:
                return row
        raise ContractError(f"round {number!r} is not recorded", location="round")

    def _read_round(self, arguments: dict[str, Any]) -> str:
        row = self._row(arguments["round"])
        evidence = self._run_tools().read_evidence(row["round"])
        curves = view_text.format_loss_curves(evidence.curves, LOG_POINTS)
        return "\n".join([describe_round(self._view, row, evidence), "losses by number of updates:", curves])

    def _read_code(self, arguments: dict[str, Any]) -> str:
        branch = "" if arguments["round"] == 0 else self._row(arguments["round"])["branch"]
        if branch is None:
            raise ContractError(f"round {arguments['round']} left no branch", location="round")
        modules, name = self._run_tools().modules_of(branch), arguments.get("file")
        if name is None:
            return fit_lines((f"{sanitize(one, 120)}: {len(text)} characters" for one, text in modules.items()), 3000)
        if name not in modules:
            raise ContractError(f"no file {sanitize(name, 80)!r}; files: {', '.join(modules)}"[:400], location="file")
        return sanitize_lines(modules[name][:MAX_FILE_CHARS], MAX_FILE_CHARS)

    def _screen(self, arguments: dict[str, Any]) -> str:
        share = float(arguments["share"])
        if not MIN_SHARE <= share <= MAX_SHARE:
            raise ContractError(f"{share:g} is not between {MIN_SHARE} and {MAX_SHARE}", location="share")
        if self._n_screens >= MAX_SCREENS:
            raise ContractError(f"{MAX_SCREENS} screens were made; propose the round", location="screen")
        config = self._proposal(arguments).config()
        branches = parent_branches_of(self._view, tuple(arguments.get("fork_from") or ()))
        self._n_screens += 1
        return format_trial(self._run_tools().screen(config, branches, share))

    def _write_lesson(self, arguments: dict[str, Any]) -> str:
        assert self._notebook is not None  # the tool is offered with a notebook alone
        cites = [Citation.read(cite, location="cites") for cite in arguments["cites"]]
        replaces = tuple(int(number) for number in arguments.get("replaces") or ())
        text = str(arguments["text"])
        if not cites or len(text) > MAX_LESSON_CHARS:
            raise ContractError(f"a lesson has 1 to 6 cites and at most {MAX_LESSON_CHARS} characters", location="text")
        lesson = self._notebook.add(text, cites, self._view.history, replaces)
        return f"noted as lesson {lesson.id}"

    def _read_notes(self, arguments: dict[str, Any]) -> str:
        topic = str(arguments["topic"])
        if topic not in topics():
            raise UsageError(f"no note on {topic!r}", location="topic", hint=f"one of {', '.join(topics())}")
        return (NOTES / f"{topic}.md").read_text(encoding="utf-8")


def format_trial(trial: Trial) -> str:
    """Return the result of a screen as text; times are left out, since they differ between machines."""
    if trial.status != "ok" or trial.val is None:
        return "\n".join(filter(None, (f"{trial.status}: {sanitize(trial.reason, 400)}", trial.log)))
    lines = [f"ok, {trial.n_params} params, {trial.flops_per_syndrome} FLOPs, {trial.train_shots} training shots"]
    if trial.val.shots:
        effect = paired_effect(trial.val)
        lines.append(
            f"validation: {trial.val.fixed} fixed, {trial.val.broken} broken of {trial.val.shots} shots, "
            f"delta {effect.delta:+.2e} [{effect.delta_low:+.2e}, {effect.delta_high:+.2e}], "
            f"after {trial.share:.0%} of the training of a round"
        )
    return "\n".join(lines)
