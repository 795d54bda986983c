"""Ideator, Coder and Analyst through a language model.

A role is a callable from its view to its response. It returns None if the model gave no usable answer after one retry;
the rule-based role then takes the round.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from autoqec.contracts.answers import CoderAnswer, IdeatorAnswer
from autoqec.contracts.base import first_validation_error
from autoqec.contracts.dsl import PredecoderDSL, parse_dsl
from autoqec.contracts.env import Constraints
from autoqec.contracts.events import OnEvent
from autoqec.contracts.messages import AnalystResponse, CoderResponse, FileEdit, IdeatorResponse
from autoqec.contracts.pins import apply_pins
from autoqec.contracts.round import RoundMetrics
from autoqec.contracts.views import AnalystView, CoderView, IdeatorView
from autoqec.errors import ContractError
from autoqec.ideators import analyst, coder, prompts
from autoqec.ideators.data_blocks import data_block, sanitize
from autoqec.ideators.llm_role import Role
from autoqec.ideators.llm_tools import TOOLS, ViewTools
from autoqec.ideators.proposal_checks import PredictCost, check_cost, find_duplicate_round
from autoqec.ideators.run_record import ReadCode, ReadEvidence, format_code, format_run_record
from autoqec.ideators.view_text import budget_block, format_ideator_view, format_loss_curves, machine_block
from autoqec.llm.base import LanguageModel, Message, Request
from autoqec.store.layout import RoundLayout, RunLayout
from autoqec.store.progress import read_loss_curves
from autoqec.store.round_files import load_contract, read_metrics

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
    ) -> None:
        super().__init__(lm, on_event=on_event)
        self._read_evidence, self._read_code = read_evidence, read_code
        self._predict_cost, self._use_tools = predict_cost, use_tools and lm.supports_tools
        self._machine, self._budget_left = machine, budget_left

    def __call__(self, view: IdeatorView) -> IdeatorResponse | None:
        """Propose the next round; None without a usable answer."""
        tools = ViewTools(view, self._predict_cost) if self._use_tools else None
        return self._request_with_retry(self.request(view), lambda answer: self._response(view, answer), tools)

    def request(self, view: IdeatorView) -> Request:
        """Return the prompt for a view: the record of the run, cached from round to round, then its present state.

        Both have a bounded length for a run of any length.
        """
        record = format_run_record(view, self._read_evidence) if self._read_evidence else ()
        code = format_code(view, self._read_code) if self._read_code is not None else ""
        state = format_ideator_view(view, with_rounds=not record)
        turn = "\n".join(filter(None, (code, state, "Propose the next round.")))
        aside = [machine_block(self._machine())] if self._machine is not None else []
        aside += [budget_block(self._budget_left())] if self._budget_left is not None else []
        return Request(
            role=self.name,
            system=prompts.ideator_prompt(view, code_may_change=self._read_code is not None),
            messages=(Message(role="user", content=turn),),
            context=record,
            aside="\n".join(filter(None, aside)),
            output=IdeatorAnswer,
            tools=TOOLS if self._use_tools else (),
        )

    def _response(self, view: IdeatorView, answer: IdeatorAnswer) -> IdeatorResponse:
        """Return the answer as IdeatorResponse. Raises ContractError for invalid parents, config or cost."""
        parents = _parent_branches(view, answer.fork_from)
        proposal = apply_pins(answer.proposal.config(), view.pins)
        dsl = parse_dsl(proposal)
        duplicate_round = find_duplicate_round(view, dsl)
        if duplicate_round is not None:
            message = f"this is equivalent to round {duplicate_round}; change a key that has an effect"
            raise ContractError(message, location="proposal")
        if self._predict_cost is not None:
            check_cost(dsl, self._predict_cost, view.env.constraints if view.env else None)
        return _validated(
            IdeatorResponse,
            hypothesis=sanitize(answer.hypothesis, 400),
            slug=answer.slug,
            fork_from="baseline" if not parents else parents[0] if len(parents) == 1 else parents,
            compose_mode=answer.compose_mode,
            proposal=proposal,
            source=f"llm {self.lm.model}"[:200],
        )


def _parent_branches(view: IdeatorView, fork_from: tuple[int | str, ...]) -> tuple[str, ...]:
    """Return the branches of the parents, each named by round number or by branch; () for the baseline."""
    if fork_from in ((), ("baseline",)):
        return ()
    branches: dict[int | str, str | None] = {row["round"]: row["branch"] for row in view.history if row.get("forkable")}
    chosen = []
    for parent in fork_from:
        branch = parent if parent in branches.values() else branches.get(parent)
        if branch is None:
            forkable = ", ".join(map(str, sorted(branches))) or "none"
            named = f"round {parent}" if isinstance(parent, int) else repr(parent)
            raise ContractError(f"{named} is not forkable; forkable rounds: {forkable}", location="fork_from")
        chosen.append(str(branch))
    if len(set(chosen)) != len(chosen):
        raise ContractError("a parent is named twice", location="fork_from")
    return tuple(chosen)


class LlmCoder(Role):
    """Turns the proposal of a `CoderView` into config and edits.

    The view has the text of the editable modules if the model may edit code.

    Args:
        lm: The language model.
        on_event: Receives every event.
        predict_cost: Cost of a config; checked if the answer leaves the code as it is.
        constraints: The env's limits that the cost must keep.
    """

    name = "coder"

    def __init__(
        self,
        lm: LanguageModel,
        *,
        on_event: OnEvent | None = None,
        predict_cost: PredictCost | None = None,
        constraints: Constraints | None = None,
    ) -> None:
        super().__init__(lm, on_event=on_event)
        self._predict_cost, self._constraints = predict_cost, constraints

    def __call__(self, view: CoderView) -> CoderResponse | None:
        """Write config and edits; None without a usable answer."""
        if view.compose_mode == "pure":
            return coder.code(view)  # git merges the branches: there is nothing to write
        return self._request_with_retry(self.request(view), lambda answer: self._response(view, answer))

    def request(self, view: CoderView) -> Request:
        """Return the prompt for a view, with as much of the editable code as fits."""
        task = {"hypothesis": sanitize(view.hypothesis, 400), "proposal": view.proposal}
        blocks = [data_block("task", json.dumps(task, indent=1, sort_keys=True))]
        remaining = MAX_SOURCE_CHARS
        for name, text in sorted(view.modules.items()):
            if name.endswith(".py") and len(text) <= remaining:
                blocks.append(data_block(sanitize(name, 120), text))
                remaining -= len(text)
        turn = "\n".join([*blocks, "Write the config, and the edits if it needs any."])
        return Request(
            role=self.name,
            system=(prompts.CODER_PROMPT, *([_custom_fn_protocol()] if view.modules else [])),
            messages=(Message(role="user", content=turn),),
            output=CoderAnswer,
            max_tokens=32_000 if view.modules else 8192,
        )

    def _response(self, view: CoderView, answer: CoderAnswer) -> CoderResponse:
        """Return the answer with the config file written from its config; its edits are Python files that parse."""
        default_response = coder.code(view.model_copy(update={"proposal": answer.dsl_config.config()}))
        if answer.edits and not view.modules:
            raise ContractError("this run does not allow edits of code", location="edits")
        for edit in answer.edits:
            _check_edit(edit)
        paths = [edit.path for edit in answer.edits]
        if len(set(paths)) != len(paths):
            raise ContractError("a file is edited twice", location="edits")
        if self._predict_cost is not None and not view.modules:
            check_cost(PredecoderDSL.model_validate(default_response.dsl_config), self._predict_cost, self._constraints)
        return _validated(
            CoderResponse,
            dsl_config=default_response.dsl_config,
            edits=(*default_response.edits, *answer.edits),
            commit_message=sanitize(answer.commit_message, 400),
        )


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
        return _validated(
            AnalystResponse,
            verdict=answer.verdict,
            summary_1line=sanitize(answer.summary_1line, 400),
            analysis="\n".join(sanitize(line, 4000) for line in answer.analysis.splitlines())[:4000],
            next_hypothesis_seed=sanitize(answer.next_hypothesis_seed, 400),
        )


def _validated(kind: type[R], **fields: Any) -> R:
    try:
        return kind(**fields)
    except ValidationError as error:
        raise ContractError(first_validation_error(error), location=kind.__name__) from error


def _custom_fn_protocol() -> str:
    from autoqec.decoders import custom_fn  # loads torch

    imports, classes = ", ".join(sorted(custom_fn.ALLOWED_IMPORTS)), ", ".join(custom_fn.CUSTOM_CLASSES)
    return (
        f"{custom_fn.__doc__}\nThe lint of {custom_fn.FILE} allows imports, functions and classes at module level "
        f"({classes} are those that a config can select) and these imports alone: {imports}."
    )


def _check_edit(edit: FileEdit) -> None:
    from autoqec.decoders import custom_fn

    if not re.fullmatch(r"[a-z][a-z0-9_]{0,60}\.py", edit.path):
        raise ContractError(f"{edit.path!r} is not a Python file of the editable modules", location="edits.path")
    try:
        ast.parse(edit.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ContractError(f"{edit.path} does not parse: {error}", location="edits.text") from None
    if edit.path == custom_fn.FILE:
        custom_fn.lint(edit.text)


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
