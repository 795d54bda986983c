"""Ideator, Coder and Analyst through a language model.

Each role is a callable from its view to its reply, as the roles without a model are, or None where the model gave
no usable answer after one retry with the error: then the role without a model takes the round. BudgetExceededError and
CassetteMissError are raised: the caller decides.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from autoqec.contracts.base import first_validation_error
from autoqec.contracts.dsl import PredecoderDSL, parse_dsl
from autoqec.contracts.messages import AnalystResponse, CoderResponse, FileEdit, IdeatorResponse, Line
from autoqec.contracts.pins import apply_pins
from autoqec.contracts.round import RoundMetrics
from autoqec.errors import ContractError
from autoqec.ideators import analyst, coder, prompts
from autoqec.ideators.llm_schemas import ModelOutput
from autoqec.ideators.llm_tools import TOOLS, PredictCost, ViewTools, find_duplicate_round
from autoqec.llm.base import LanguageModel, Message, Request, Response, tool_results
from autoqec.llm.errors import BudgetExceededError, CassetteMissError, LlmBadAnswerError, LlmError, LlmTruncatedError
from autoqec.store.layout import RunLayout

OnEvent = Callable[[str, dict[str, Any]], None]
T = TypeVar("T")
A = TypeVar("A", bound=BaseModel)

MAX_TOOL_TURNS = 6
MAX_SOURCE_CHARS = 60_000  # source shown to the Coder
_LOG_BYTES = 8 * 2**20
_MACHINE_DEPENDENT_FIELDS = ("train_wallclock_s", "eval_wallclock_s", "vram_peak_gb", "rss_peak_gb", "checkpoint_path",
                    "training_log_path", "measurement_started_at", "measurement_finished_at")  # fmt: skip


class IdeatorAnswer(ModelOutput):
    """What the model answers: rounds by number, the config typed, so that the provider can hold it to the schema."""

    hypothesis: Line
    slug: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=40)
    fork_from: tuple[int, ...] = Field(default=(), max_length=4, description="round numbers; [] is the baseline")
    compose_mode: Literal["pure", "with_edit"] | None = None
    proposal: PredecoderDSL


class CoderAnswer(ModelOutput):
    dsl_config: PredecoderDSL
    edits: tuple[FileEdit, ...] = Field(default=(), max_length=7)
    commit_message: Line


class Role:
    """One role's model, its retry and its events: lm_call, lm_tool, lm_retry, lm_given_up."""

    name = "agent"

    def __init__(self, lm: LanguageModel, *, on_event: OnEvent | None = None) -> None:
        self.lm = lm
        self._on_event = on_event if on_event is not None else lambda kind, data: None

    def _request_with_retry(
        self, request: Request, check: Callable[[Any], T], tools: ViewTools | None = None
    ) -> T | None:
        """What `check` makes of the parsed answer; one retry that is told the error; then None."""
        for is_retry in (False, True):
            try:
                return check(self._run_tool_loop(request, tools).parsed)
            except (BudgetExceededError, CassetteMissError):
                raise
            except (LlmBadAnswerError, LlmTruncatedError, ContractError) as error:
                fault = str(error)
                self._on_event("lm_given_up" if is_retry else "lm_retry", self._error_event(error))
                room = (
                    min(2 * request.max_tokens, 64_000) if isinstance(error, LlmTruncatedError) else request.max_tokens
                )
                request = _with_error(request, fault).model_copy(update={"max_tokens": room})
            except LlmError as error:
                self._on_event("lm_given_up", self._error_event(error))
                return None
        return None

    def _run_tool_loop(self, request: Request, tools: ViewTools | None) -> Response:
        """Calls and tool results until there is an answer."""
        for turn in range(MAX_TOOL_TURNS + 1):
            response = self._call(request)
            if not response.tool_calls:
                return response
            if tools is None or turn == MAX_TOOL_TURNS:
                break
            results, failed = {}, []
            for call in response.tool_calls:
                results[call.id], succeeded = tools.run(call)
                self._on_event(
                    "lm_tool", {"role": self.name, "tool": prompts.sanitize(call.name, 64), "good": succeeded}
                )
                failed += [] if succeeded else [call.id]
            turns = (*request.messages, response.turn(), tool_results(results, failed=tuple(failed)))
            request = request.model_copy(update={"messages": turns})
        raise LlmBadAnswerError(f"no answer after {MAX_TOOL_TURNS} turns of tools")

    def _call(self, request: Request) -> Response:
        response = self.lm.complete(request)
        usage_event = {
            "usage": response.usage.dump(),
            "cost_usd": response.cost_usd,
            "duration_ms": response.duration_ms,
        }
        self._on_event("lm_call", {"role": self.name, "model": response.model, **usage_event})
        return response

    def _error_event(self, error: Exception) -> dict[str, Any]:
        return {"role": self.name, "error": type(error).__name__, "what": prompts.sanitize(error, 400)}


class LlmIdeator(Role):
    """View (`RunMemory.l2_for_ideator`, with `sampler` or `notes` where there are any) -> IdeatorResponse or None.

    predict_cost: what a config would cost, for the tool `check_proposal`. use_tools: False leaves the tools out.
    machine: what `machine_state` says now.
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
    ) -> None:
        super().__init__(lm, on_event=on_event)
        self._predict_cost, self._use_tools = predict_cost, use_tools and lm.supports_tools
        self._machine = machine

    def __call__(self, view: dict[str, Any]) -> IdeatorResponse | None:
        tools = ViewTools(view, self._predict_cost) if self._use_tools else None
        return self._request_with_retry(self.request(view), lambda answer: self._response(view, answer), tools)

    def request(self, view: dict[str, Any]) -> Request:
        """The prompt: at most 5k tokens whatever the run's length."""
        turn = prompts.format_ideator_view(view) + "\nPropose the next round."
        return Request(
            role=self.name,
            system=(prompts.IDEATOR_PROMPT, prompts.KNOWLEDGE),
            messages=(Message(role="user", content=turn),),
            aside=prompts.machine_block(self._machine()) if self._machine is not None else "",
            output=IdeatorAnswer,
            tools=TOOLS if self._use_tools else (),
        )

    def _response(self, view: dict[str, Any], answer: IdeatorAnswer) -> IdeatorResponse:
        """The answer as the contract's message. ContractError: a parent that cannot be, a config measured before."""
        branches = {row["round"]: row["branch"] for row in view["history"] if row.get("forkable")}
        for number in answer.fork_from:
            if number not in branches:
                forkable = ", ".join(map(str, sorted(branches))) or "none"
                raise ContractError(f"round {number} is not forkable; forkable: {forkable}", location="fork_from")
        if len(set(answer.fork_from)) != len(answer.fork_from):
            raise ContractError("a round stands twice", location="fork_from")
        proposal = apply_pins(answer.proposal.config(), view.get("pins") or {})
        duplicate_round = find_duplicate_round(view, parse_dsl(proposal))
        if duplicate_round is not None:
            raise ContractError(
                f"this computes and learns what round {duplicate_round} did; change a key that has an effect",
                location="proposal",
            )
        chosen = tuple(branches[number] for number in answer.fork_from)
        return _validated(
            IdeatorResponse,
            hypothesis=prompts.sanitize(answer.hypothesis, 400),
            slug=answer.slug,
            fork_from="baseline" if not chosen else chosen[0] if len(chosen) == 1 else chosen,
            compose_mode=answer.compose_mode,
            proposal=proposal,
            source=f"llm {self.lm.model}"[:200],
        )


class LlmCoder(Role):
    """View {proposal, hypothesis, slug, compose_mode}, with `surface` {file: text} where the model may edit code."""

    name = "coder"

    def __call__(self, view: dict[str, Any]) -> CoderResponse | None:
        if view["compose_mode"] == "pure":
            return coder.code(view)  # git's merge alone: there is nothing to write
        return self._request_with_retry(self.request(view), lambda answer: self._response(view, answer))

    def request(self, view: dict[str, Any]) -> Request:
        task = {"hypothesis": prompts.sanitize(view["hypothesis"], 400), "proposal": view["proposal"]}
        blocks = [prompts.data_block("task", json.dumps(task, indent=1, sort_keys=True))]
        room = MAX_SOURCE_CHARS
        for name, text in sorted((view.get("surface") or {}).items()):
            if name.endswith(".py") and len(text) <= room:
                blocks.append(prompts.data_block(prompts.sanitize(name, 120), text))
                room -= len(text)
        turn = "\n".join([*blocks, "Write the config, and the edits if it needs any."])
        return Request(
            role=self.name,
            system=(prompts.CODER,),
            messages=(Message(role="user", content=turn),),
            output=CoderAnswer,
            max_tokens=32_000 if view.get("surface") else 8192,
        )

    def _response(self, view: dict[str, Any], answer: CoderAnswer) -> CoderResponse:
        """The config's file is ours to write; the model's edits are single Python files that parse."""
        default_response = coder.code({**view, "proposal": answer.dsl_config.config()})
        if answer.edits and not view.get("surface"):
            raise ContractError("edits of the surface are not open in this round", location="edits")
        for edit in answer.edits:
            _check_edit(edit)
        paths = [edit.path for edit in answer.edits]
        if len(set(paths)) != len(paths):
            raise ContractError("a file stands twice", location="edits")
        return _validated(
            CoderResponse,
            dsl_config=default_response.dsl_config,
            edits=(*default_response.edits, *answer.edits),
            commit_message=prompts.sanitize(answer.commit_message, 400),
        )


class LlmAnalyst(Role):
    """View {metrics_path, hypothesis, round_dir} (`RunMemory.l3_for_analyst`) -> AnalystResponse or None."""

    name = "analyst"

    def __call__(self, view: dict[str, Any]) -> AnalystResponse | None:
        return self._request_with_retry(self.request(view), lambda answer: self._response(view, answer))

    def request(self, view: dict[str, Any]) -> Request:
        metrics = _metrics(Path(view["metrics_path"]))
        rule_based = analyst.analyse(view)
        blocks = [
            prompts.data_block("hypothesis", prompts.sanitize(view["hypothesis"], 400)),
            prompts.data_block("metrics", _metrics_json(metrics)),
            prompts.data_block("paired figures", prompts.sanitize(rule_based.analysis, 2000)),
            prompts.data_block("loss curve", _loss_curve(metrics)),
        ]
        previous = _previous_metrics(view)
        if previous is not None:
            blocks.append(prompts.data_block("previous round", _metrics_json(previous)))
        turn = "\n".join([*blocks, "What did the round teach, and what next?"])
        return Request(
            role=self.name,
            system=(prompts.ANALYST_PROMPT,),
            messages=(Message(role="user", content=turn),),
            output=AnalystResponse,
        )

    def _response(self, view: dict[str, Any], answer: AnalystResponse) -> AnalystResponse:
        status = _metrics(Path(view["metrics_path"])).status
        if answer.verdict == "candidate" and status != "ok":
            raise ContractError(f"a round that ended as {status} left nothing to judge", location="verdict")
        return _validated(
            AnalystResponse,
            verdict=answer.verdict,
            summary_1line=prompts.sanitize(answer.summary_1line, 400),
            analysis="\n".join(prompts.sanitize(line, 4000) for line in answer.analysis.splitlines())[:4000],
            next_hypothesis_seed=prompts.sanitize(answer.next_hypothesis_seed, 400),
        )


def _with_error(request: Request, fault: str) -> Request:
    """The same request, with what was wrong with the last answer at its end."""
    *before, last = request.messages
    note = prompts.data_block("why your last answer was refused", prompts.sanitize(fault, 600))
    turn = Message(role="user", content=f"{last.content}\n{note}\nAnswer again, without that fault.")
    return request.model_copy(update={"messages": (*before, turn)})


def _validated(kind: type[A], **fields: Any) -> A:
    try:
        return kind(**fields)
    except ValidationError as error:
        raise ContractError(first_validation_error(error), location=kind.__name__) from error


def _check_edit(edit: FileEdit) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,60}\.py", edit.path):
        raise ContractError(f"{edit.path!r} is no plain Python file of the surface", location="edits.path")
    try:
        ast.parse(edit.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ContractError(f"{edit.path} does not parse: {error}", location="edits.text") from None


def _metrics(path: Path) -> RoundMetrics:
    return RoundMetrics.read(json.loads(path.read_bytes()), location=str(path))


def _metrics_json(metrics: RoundMetrics) -> str:
    """Figures only: no times, no paths, which differ from machine to machine."""
    kept = {
        name: value
        for name, value in metrics.dump().items()
        if value is not None and name not in _MACHINE_DEPENDENT_FIELDS
    }
    if metrics.status_reason:
        kept["status_reason"] = prompts.sanitize(metrics.status_reason, 400)
    return json.dumps(kept, sort_keys=True, indent=1)


def _loss_curve(metrics: RoundMetrics) -> str:
    if not metrics.training_log_path:
        return "no loss was logged"
    try:
        with open(metrics.training_log_path, "rb") as stream:
            return prompts.loss_curve(stream.read(_LOG_BYTES))
    except OSError:
        return "the loss curve cannot be read"


def _previous_metrics(view: dict[str, Any]) -> RoundMetrics | None:
    directory = Path(view.get("round_dir") or Path(view["metrics_path"]).parent)
    number = directory.name.removeprefix("round_")
    if not number.isdigit() or int(number) < 2:
        return None
    run = RunLayout(directory.parents[2], directory.parent.name)
    try:
        return _metrics(run.round(int(number) - 1).metrics)
    except (OSError, ValueError, ContractError):
        return None
