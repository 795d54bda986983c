"""Ideator, Coder and Analyst through a language model.

A role is a callable from its view to its response. It returns None if the model gave no usable answer after one retry;
the rule-based role then takes the round.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel

from autoqec.contracts.answers import IdeatorAnswer
from autoqec.contracts.dsl import PredecoderDSL, parse_dsl
from autoqec.contracts.events import OnEvent
from autoqec.contracts.messages import AnalystResponse, IdeatorResponse
from autoqec.contracts.pins import apply_pins
from autoqec.contracts.round import RoundMetrics
from autoqec.contracts.views import AnalystView, IdeatorView, RoundRow
from autoqec.errors import ContractError
from autoqec.ideators import analyst, prompts
from autoqec.ideators.data_blocks import data_block, sanitize
from autoqec.ideators.llm_role import OnTurn, Role, validated
from autoqec.ideators.notebook import Notebook, failures_block, lessons_block
from autoqec.ideators.proposal_checks import PredictCost, check_cost, find_duplicate_round, parent_branches_of
from autoqec.ideators.research_tools import (
    READ_CODE,
    READ_ROUND,
    WRITE_LESSON,
    ReadModules,
    ResearchSources,
    ResearchTools,
    Screen,
)
from autoqec.ideators.run_record import ReadCode, ReadEvidence, format_code, format_run_record
from autoqec.ideators.view_budget import CONTEXT_CHARS, STATE_CHARS, TURN_CHARS
from autoqec.ideators.view_text import budget_block, format_ideator_view, format_loss_curves, machine_block, notes_block
from autoqec.llm.base import LanguageModel, Message, Request
from autoqec.store.layout import RunLayout
from autoqec.store.progress import read_loss_curves
from autoqec.store.round_files import load_contract, read_metrics
from autoqec.store.round_layout import RoundLayout

MAX_SOURCE_CHARS = 60_000  # of source code shown to the Coder
_MACHINE_DEPENDENT_FIELDS = (
    "train_wallclock_s",
    "eval_wallclock_s",
    "vram_peak_gb",
    "rss_peak_gb",
    "checkpoint_path",
    "training_log_path",
    "measurement_started_at",
    "measurement_finished_at",
)
_TASK = "Propose the next round."
R = TypeVar("R", bound=BaseModel)


class LlmIdeator(Role):
    """Proposes the next round from a view (`RunMemory.l2_for_ideator`, with `sampler` and `notes` if present).

    Args:
        lm: The language model.
        on_event: Receives every event.
        predict_cost: Cost of a config; a proposal beyond the env's limits is then rejected before a round is spent.
        use_tools: Whether to offer the tools to a model that supports them.
        machine: Returns the current state of the machine.
        budget_left: Returns what is left of each limit of the run, one line each.
        read_evidence: Reads what the files of a round say; with it, the model sees every recorded round in full.
        read_code: Reads the change of code of a branch; None if the run does not allow such changes.
        code_of: Digest of the code of a branch, None for the baseline; with it, rounds with other code are no
            duplicates.
        read_modules: Reads the modules of a branch, "" for the baseline.
        screen: Trains a proposal for a share of a round.
        notebook: The lessons of the run.
        on_turn: Receives every turn of the conversation.
    """

    name = "ideator"

    def __init__(
        self,
        lm: LanguageModel,
        *,
        on_event: OnEvent | None = None,
        predict_cost: PredictCost | None = None,
        use_tools: bool = True,
        machine: Callable[[], dict[str, Any]] | None = None,
        budget_left: Callable[[], list[str]] | None = None,
        read_evidence: ReadEvidence | None = None,
        read_code: ReadCode | None = None,
        code_of: Callable[[str | None], str] | None = None,
        read_modules: ReadModules | None = None,
        screen: Screen | None = None,
        notebook: Notebook | None = None,
        on_turn: OnTurn | None = None,
    ) -> None:
        super().__init__(lm, on_event=on_event, on_turn=on_turn)
        self._code_of = code_of
        self._sources = ResearchSources(read_evidence, read_modules, screen, notebook)
        self._read_evidence, self._read_code = read_evidence, read_code
        self._predict_cost, self._use_tools = predict_cost, use_tools and lm.supports_tools
        self._machine, self._budget_left = machine, budget_left

    def __call__(self, view: IdeatorView) -> IdeatorResponse | None:
        """Propose the next round; None without a usable answer."""
        tools = ResearchTools(view, self._predict_cost, self._sources) if self._use_tools else None
        return self._request_with_retry(self.request(view), lambda answer: self._response(view, answer), tools)

    def request(self, view: IdeatorView) -> Request:
        """Return the prompt for a view: the record of the run, cached from round to round, then its present state.

        All of it has at most `MAX_VIEW_CHARS` characters, for a run of any length.
        """
        tools = self._sources.tools() if self._use_tools else ()
        texts, files = (tool.name if tool in tools else None for tool in (READ_ROUND, READ_CODE))
        earlier = notes_block(view)
        room = CONTEXT_CHARS - len(earlier) - 1
        record = format_run_record(view, self._read_evidence, room, texts) if self._read_evidence else ()
        lessons = self._sources.notebook.lessons() if self._sources.notebook is not None else []
        failures = failures_block(view.history) if self._sources.notebook is not None else ""
        state = format_ideator_view(view, with_rounds=False, limit=STATE_CHARS) if record else format_ideator_view(view)
        room = TURN_CHARS - len(failures) - len(state) - len(_TASK) - 3
        code = format_code(view, self._read_code, room, files) if self._read_code is not None else ""
        turn = "\n".join(filter(None, (code, failures, state, _TASK)))
        # Earlier answers wrote the lessons: after a crash, the request has to match the one that was answered.
        aside = [lessons_block(lessons)]
        aside += [machine_block(self._machine())] if self._machine is not None else []
        aside += [budget_block(self._budget_left())] if self._budget_left is not None else []
        system = prompts.ideator_prompt(
            view, code_may_change=self._read_code is not None, keeps_lessons=WRITE_LESSON in tools
        )
        return Request(
            role=self.name,
            system=system,
            messages=(Message(role="user", content=turn),),
            context=(*([earlier] if earlier else []), *record),
            aside="\n".join(filter(None, aside)),
            output=IdeatorAnswer,
            tools=tools,
        )

    def _response(self, view: IdeatorView, answer: IdeatorAnswer) -> IdeatorResponse:
        """Return the answer as IdeatorResponse. Raises ContractError for invalid parents, config or cost."""
        parents = parent_branches_of(view, answer.fork_from)
        proposal = apply_pins(answer.proposal.config(), view.pins)
        if answer.code_change and self._read_code is None:
            raise ContractError("this run does not allow changes of code", location="code_change")
        if not answer.code_change:  # with a change, the Coder's answer is checked
            self._check_config(view, parse_dsl(proposal), parents)
        return validated(
            IdeatorResponse,
            hypothesis=sanitize(answer.hypothesis, 400),
            slug=answer.slug,
            fork_from="baseline" if not parents else parents[0] if len(parents) == 1 else parents,
            compose_mode=answer.compose_mode,
            proposal=proposal,
            code_change=sanitize(answer.code_change, 2000),
            source=f"llm {self.lm.model}"[:200],
        )

    def _check_config(self, view: IdeatorView, dsl: PredecoderDSL, parents: tuple[str, ...]) -> None:
        """Raise ContractError for a config that was measured with the same code, or that exceeds the env's limits."""
        code_of, code, baseline = self._code_of, "", ""
        if code_of is not None and len(parents) < 2:
            code, baseline = code_of(parents[0] if parents else None), code_of(None)

        def has_same_code(row: RoundRow) -> bool:
            return code_of is None or len(parents) > 1 or code_of(row["branch"]) == code

        duplicate_round = find_duplicate_round(view, dsl, has_same_code=has_same_code)
        if duplicate_round is not None:
            message = f"this is equivalent to round {duplicate_round}; change a key that has an effect"
            raise ContractError(message, location="proposal")
        if self._predict_cost is not None and code == baseline:  # the package's modules say nothing about other code
            check_cost(dsl, self._predict_cost, view.env.constraints if view.env else None)


class LlmAnalyst(Role):
    """Nominates a round from an `AnalystView` (`RunMemory.l3_for_analyst`)."""

    name = "analyst"

    def __call__(self, view: AnalystView) -> AnalystResponse | None:
        """Nominate a round or not; None without a usable answer."""
        return self._request_with_retry(self.request(view), lambda answer: self._response(view, answer))

    def request(self, view: AnalystView) -> Request:
        """Return the prompt for a view: figures of the round, its loss by phase, and the round before."""
        metrics, layout = read_metrics(view.metrics_path), _round_layout(view)
        rule_based = analyst.analyse(view)
        curves = {} if layout is None else read_loss_curves(layout.progress)
        blocks = [
            data_block("hypothesis", sanitize(view.hypothesis, 400)),
            data_block("metrics", _metrics_json(metrics)),
            data_block("paired figures", sanitize(rule_based.analysis, 2000)),
            data_block("loss by training phase; phases have different losses", format_loss_curves(curves)),
        ]
        previous = _previous_metrics(layout)
        if previous is not None:
            blocks.append(data_block("previous round", _metrics_json(previous)))
        turn = "\n".join([*blocks, "What did the round show, and what should be tried next?"])
        return Request(
            role=self.name,
            system=(prompts.ANALYST_PROMPT,),
            messages=(Message(role="user", content=turn),),
            output=AnalystResponse,
        )

    def _response(self, view: AnalystView, answer: AnalystResponse) -> AnalystResponse:
        status = read_metrics(view.metrics_path).status
        if answer.verdict == "candidate" and status != "ok":
            raise ContractError(f"a round that ended as {status} cannot be nominated", location="verdict")
        return validated(
            AnalystResponse,
            verdict=answer.verdict,
            summary_1line=sanitize(answer.summary_1line, 400),
            analysis="\n".join(sanitize(line, 4000) for line in answer.analysis.splitlines())[:4000],
            next_hypothesis_seed=sanitize(answer.next_hypothesis_seed, 400),
        )


def _metrics_json(metrics: RoundMetrics) -> str:
    """Figures without times and paths, which differ between machines."""
    kept = {
        name: value
        for name, value in metrics.dump().items()
        if value is not None and name not in _MACHINE_DEPENDENT_FIELDS
    }
    if metrics.status_reason:
        kept["status_reason"] = sanitize(metrics.status_reason, 400)
    return json.dumps(kept, sort_keys=True, indent=1)


def _round_layout(view: AnalystView) -> RoundLayout | None:
    """Return the round's directory; None if the view names a directory that is not a round's."""
    directory = view.round_dir
    number = directory.name.removeprefix("round_")
    return RunLayout(directory.parents[2], directory.parent.name).round(int(number)) if number.isdigit() else None


def _previous_metrics(layout: RoundLayout | None) -> RoundMetrics | None:
    if layout is None or layout.round < 2:
        return None
    previous = RoundLayout(layout.dir.with_name(f"round_{layout.round - 1}"), layout.round - 1)
    return load_contract(previous.metrics, RoundMetrics)
