"""Tools of the Ideator that read rounds, code and literature, train a proposal for a short time, and keep notes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, get_args

from autoqec.contracts.round import Trial
from autoqec.contracts.views import IdeatorView, RoundRow
from autoqec.errors import ContractError
from autoqec.extensions.language_models.clients.base import Tool
from autoqec.extensions.language_models.contracts import Citation, Figure
from autoqec.extensions.language_models.roles import literature
from autoqec.extensions.language_models.roles.data_blocks import fit_lines, sanitize, sanitize_lines
from autoqec.extensions.language_models.roles.notebook import MAX_LESSON_CHARS, Notebook
from autoqec.extensions.language_models.roles.run_record import ReadEvidence, describe_round
from autoqec.extensions.language_models.roles.view_text import format_loss_curves
from autoqec.extensions.language_models.roles.view_tools import INTEGER, TOOLS, Handler, ViewTools, tool
from autoqec.ideators.proposal_checks import PredictCost, parent_branches_of
from autoqec.qec.stats import paired_effect

MAX_SCREENS = 4  # per round
MIN_SHARE, MAX_SHARE = 0.01, 0.05
MAX_FILE_CHARS = 12_000
LOG_POINTS = 40

Screen = Callable[[dict[str, Any], tuple[str, ...], float], Trial]
ReadModules = Callable[[str], Mapping[str, str]]

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
    {"topic": {"type": "string", "enum": literature.topics()}},
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


@dataclass(frozen=True)
class ResearchSources:
    """What the tools read; a tool whose source is None is not offered.

    Attributes:
        read_evidence: Evidence of a round, by number.
        read_modules: Name -> text of the modules of a branch.
        screen: Trains a config on the code of branches for a share of a round.
        notebook: The lessons of the run.
    """

    read_evidence: ReadEvidence | None = None
    read_modules: ReadModules | None = None
    screen: Screen | None = None
    notebook: Notebook | None = None

    def tools(self) -> tuple[Tool, ...]:
        """Return the tools that are offered."""
        offered: list[tuple[object, Tool]] = [
            (self.read_evidence, READ_ROUND),
            (self.read_modules, READ_CODE),
            (self.screen, SCREEN),
            (self.notebook, WRITE_LESSON),
        ]
        return (*TOOLS, READ_NOTES, *(one for source, one in offered if source is not None))


class ResearchTools(ViewTools):
    """The tools over one view of a run; screens are counted over the life of the object.

    Args:
        view: View of the Ideator.
        predict_cost: Cost of a config; None leaves costs out of the answers.
        sources: What the tools read.
    """

    def __init__(self, view: IdeatorView, predict_cost: PredictCost | None, sources: ResearchSources) -> None:
        super().__init__(view, predict_cost)
        self._sources, self._n_screens = sources, 0

    def handlers(self) -> dict[str, Handler]:
        """Return the function of each tool that is offered."""
        known = {
            **super().handlers(),
            READ_ROUND.name: self._read_round,
            READ_CODE.name: self._read_code,
            READ_NOTES.name: lambda arguments: literature.read_note(str(arguments["topic"])),
            SCREEN.name: self._screen,
            WRITE_LESSON.name: self._write_lesson,
        }
        offered = {one.name for one in self._sources.tools()}
        return {name: handler for name, handler in known.items() if name in offered}

    def _row(self, number: Any) -> RoundRow:
        for row in self._view.history:
            if row["round"] == number:
                return row
        raise ContractError(f"round {number!r} is not recorded", location="round")

    def _read_round(self, arguments: dict[str, Any]) -> str:
        row = self._row(arguments["round"])
        assert self._sources.read_evidence is not None
        evidence = self._sources.read_evidence(row["round"])
        curves = format_loss_curves(evidence.curves, LOG_POINTS)
        return "\n".join([describe_round(self._view, row, evidence), "losses by number of updates:", curves])

    def _read_code(self, arguments: dict[str, Any]) -> str:
        assert self._sources.read_modules is not None
        branch = "" if arguments["round"] == 0 else self._row(arguments["round"])["branch"]
        if branch is None:
            raise ContractError(f"round {arguments['round']} left no branch", location="round")
        modules, name = self._sources.read_modules(branch), arguments.get("file")
        if name is None:
            return fit_lines((f"{sanitize(one, 120)}: {len(text)} characters" for one, text in modules.items()), 3000)
        if name not in modules:
            raise ContractError(f"no file {sanitize(name, 80)!r}; files: {', '.join(modules)}"[:400], location="file")
        return sanitize_lines(modules[name][:MAX_FILE_CHARS], MAX_FILE_CHARS)

    def _screen(self, arguments: dict[str, Any]) -> str:
        assert self._sources.screen is not None
        share = float(arguments["share"])
        if not MIN_SHARE <= share <= MAX_SHARE:
            raise ContractError(f"{share:g} is not between {MIN_SHARE} and {MAX_SHARE}", location="share")
        if self._n_screens >= MAX_SCREENS:
            raise ContractError(f"{MAX_SCREENS} screens were made; propose the round", location="screen")
        config = self._proposal(arguments).config()
        branches = parent_branches_of(self._view, tuple(arguments.get("fork_from") or ()))
        self._n_screens += 1
        return format_trial(self._sources.screen(config, branches, share))

    def _write_lesson(self, arguments: dict[str, Any]) -> str:
        assert self._sources.notebook is not None
        cites = [Citation.read(cite, location="cites") for cite in arguments["cites"]]
        replaces = tuple(int(number) for number in arguments.get("replaces") or ())
        text = str(arguments["text"])
        if not cites or len(text) > MAX_LESSON_CHARS:
            raise ContractError(f"a lesson has 1 to 6 cites and at most {MAX_LESSON_CHARS} characters", location="text")
        lesson = self._sources.notebook.add(text, cites, self._view.history, replaces)
        return f"noted as lesson {lesson.id}"


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
