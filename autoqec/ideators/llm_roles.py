"""Ideator, Coder and Analyst through a language model.

Each role is a callable from its view to its reply, as the roles without a model are, or None where the model gave
no usable answer after one retry with the error: then the role without a model takes the round. BudgetExceeded and a
cassette's miss go up: they are the caller's to decide.
"""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, Field, ValidationError

from autoqec.contracts.base import first_fault
from autoqec.contracts.dsl import PredecoderDSL, parse_dsl
from autoqec.contracts.messages import AnalystResponse, CoderResponse, FileEdit, IdeatorResponse, Line
from autoqec.contracts.pins import pinned
from autoqec.contracts.round import RoundMetrics
from autoqec.errors import ContractError
from autoqec.ideators import analyst, coder, prompts
from autoqec.ideators.llm_schemas import Answer
from autoqec.ideators.llm_tools import TOOLS, PredictCost, ViewTools, measured_before
from autoqec.llm.base import LanguageModel, Message, Reply, Request, tool_results
from autoqec.llm.errors import BudgetExceeded, LmBadAnswer, LmCassetteMiss, LmError, LmTruncated
from autoqec.store.layout import RunLayout

OnEvent = Callable[[str, dict[str, Any]], None]
T = TypeVar("T")
A = TypeVar("A", bound=BaseModel)

MAX_TOOL_TURNS = 6
SURFACE_CHARS = 60_000  # source shown to the Coder
_LOG_BYTES = 8 * 2**20
_TIMES_AND_PATHS = ("train_wallclock_s", "eval_wallclock_s", "vram_peak_gb", "rss_peak_gb", "checkpoint_path",
                    "training_log_path", "measurement_started_at", "measurement_finished_at")  # fmt: skip


class IdeatorAnswer(Answer):
    """What the model answers: rounds by number, the config typed, so that the provider can hold it to the schema."""

    hypothesis: Line
    slug: str = Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=40)
    fork_from: tuple[int, ...] = Field(default=(), max_length=4, description="round numbers; [] is the baseline")
    compose_mode: Literal["pure", "with_edit"] | None = None
    proposal: PredecoderDSL


class CoderAnswer(Answer):
    dsl_config: PredecoderDSL
    edits: tuple[FileEdit, ...] = Field(default=(), max_length=7)
    commit_message: Line


class Role:
    """One role's model, its retry and its events: lm_call, lm_tool, lm_retry, lm_given_up."""

    name = "agent"

    def __init__(self, lm: LanguageModel, *, on_event: OnEvent | None = None) -> None:
        self.lm = lm
        self._on_event = on_event if on_event is not None else lambda kind, data: None

    def _ask(self, request: Request, check: Callable[[Any], T], tools: ViewTools | None = None) -> T | None:
        """What `check` makes of the parsed answer; one retry that is told the error; then None."""
        for again in (False, True):
            try:
                return check(self._converse(request, tools).parsed)
            except (BudgetExceeded, LmCassetteMiss):
                raise
            except (LmBadAnswer, LmTruncated, ContractError) as error:
                fault = str(error)
                self._on_event("lm_given_up" if again else "lm_retry", self._about(error))
                room = min(2 * request.max_tokens, 64_000) if isinstance(error, LmTruncated) else request.max_tokens
                request = _told(request, fault).model_copy(update={"max_tokens": room})
            except LmError as error:
                self._on_event("lm_given_up", self._about(error))
                return None
        return None

    def _converse(self, request: Request, tools: ViewTools | None) -> Reply:
        """Calls and tool results until there is an answer."""
        for turn in range(MAX_TOOL_TURNS + 1):
            reply = self._call(request)
            if not reply.tool_calls:
                return reply
            if tools is None or turn == MAX_TOOL_TURNS:
                break
            results, failed = {}, []
            for call in reply.tool_calls:
                results[call.id], good = tools.run(call)
                self._on_event("lm_tool", {"role": self.name, "tool": prompts.clean(call.name, 64), "good": good})
                failed += [] if good else [call.id]
            turns = (*request.messages, reply.turn(), tool_results(results, failed=tuple(failed)))
            request = request.model_copy(update={"messages": turns})
        raise LmBadAnswer(f"no answer after {MAX_TOOL_TURNS} turns of tools")

    def _call(self, request: Request) -> Reply:
        reply = self.lm.complete(request)
        spent = {"usage": reply.usage.dump(), "cost_usd": reply.cost_usd, "duration_ms": reply.duration_ms}
        self._on_event("lm_call", {"role": self.name, "model": reply.model, **spent})
        return reply

    def _about(self, error: Exception) -> dict[str, Any]:
        return {"role": self.name, "error": type(error).__name__, "what": prompts.clean(error, 400)}


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
        self._predict_cost, self._use_tools = predict_cost, use_tools and lm.takes_tools
        self._machine = machine

    def __call__(self, view: dict[str, Any]) -> IdeatorResponse | None:
        tools = ViewTools(view, self._predict_cost) if self._use_tools else None
        return self._ask(self.request(view), lambda answer: self._response(view, answer), tools)

    def request(self, view: dict[str, Any]) -> Request:
        """The prompt: at most 5k tokens whatever the run's length."""
        turn = prompts.ideator_view(view) + "\nPropose the next round."
        return Request(
            role=self.name,
            system=(prompts.IDEATOR, prompts.KNOWLEDGE),
            messages=(Message(role="user", content=turn),),
            aside=prompts.machine_words(self._machine()) if self._machine is not None else "",
            output=IdeatorAnswer,
            tools=TOOLS if self._use_tools else (),
        )

    def _response(self, view: dict[str, Any], answer: IdeatorAnswer) -> IdeatorResponse:
        """The answer as the contract's message. ContractError: a parent that cannot be, a config measured before."""
        branches = {row["round"]: row["branch"] for row in view["history"] if row.get("forkable")}
        for number in answer.fork_from:
            if number not in branches:
                forkable = ", ".join(map(str, sorted(branches))) or "none"
                raise ContractError(f"round {number} is not forkable; forkable: {forkable}", where="fork_from")
        if len(set(answer.fork_from)) != len(answer.fork_from):
            raise ContractError("a round stands twice", where="fork_from")
        proposal = pinned(answer.proposal.config(), view.get("pins") or {})
        twin = measured_before(view, parse_dsl(proposal))
        if twin is not None:
            raise ContractError(
                f"this computes and learns what round {twin} did; change a key that has an effect", where="proposal"
            )
        chosen = tuple(branches[number] for number in answer.fork_from)
        return _built(
            IdeatorResponse,
            hypothesis=prompts.clean(answer.hypothesis, 400),
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
        return self._ask(self.request(view), lambda answer: self._response(view, answer))

    def request(self, view: dict[str, Any]) -> Request:
        task = {"hypothesis": prompts.clean(view["hypothesis"], 400), "proposal": view["proposal"]}
        blocks = [prompts.fence("task", json.dumps(task, indent=1, sort_keys=True))]
        room = SURFACE_CHARS
        for name, text in sorted((view.get("surface") or {}).items()):
            if name.endswith(".py") and len(text) <= room:
                blocks.append(prompts.fence(prompts.clean(name, 120), text))
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
        plain = coder.code({**view, "proposal": answer.dsl_config.config()})
        if answer.edits and not view.get("surface"):
            raise ContractError("edits of the surface are not open in this round", where="edits")
        for edit in answer.edits:
            _check_edit(edit)
        paths = [edit.path for edit in answer.edits]
        if len(set(paths)) != len(paths):
            raise ContractError("a file stands twice", where="edits")
        return _built(
            CoderResponse,
            dsl_config=plain.dsl_config,
            edits=(*plain.edits, *answer.edits),
            commit_message=prompts.clean(answer.commit_message, 400),
        )


class LlmAnalyst(Role):
    """View {metrics_path, hypothesis, round_dir} (`RunMemory.l3_for_analyst`) -> AnalystResponse or None."""

    name = "analyst"

    def __call__(self, view: dict[str, Any]) -> AnalystResponse | None:
        return self._ask(self.request(view), lambda answer: self._response(view, answer))

    def request(self, view: dict[str, Any]) -> Request:
        metrics = _metrics(Path(view["metrics_path"]))
        mechanical = analyst.analyse(view)
        blocks = [
            prompts.fence("hypothesis", prompts.clean(view["hypothesis"], 400)),
            prompts.fence("metrics", _shown(metrics)),
            prompts.fence("paired figures", prompts.clean(mechanical.analysis, 2000)),
            prompts.fence("loss curve", _curve(metrics)),
        ]
        previous = _previous(view)
        if previous is not None:
            blocks.append(prompts.fence("previous round", _shown(previous)))
        turn = "\n".join([*blocks, "What did the round teach, and what next?"])
        return Request(
            role=self.name,
            system=(prompts.ANALYST,),
            messages=(Message(role="user", content=turn),),
            output=AnalystResponse,
        )

    def _response(self, view: dict[str, Any], answer: AnalystResponse) -> AnalystResponse:
        status = _metrics(Path(view["metrics_path"])).status
        if answer.verdict == "candidate" and status != "ok":
            raise ContractError(f"a round that ended as {status} left nothing to judge", where="verdict")
        return _built(
            AnalystResponse,
            verdict=answer.verdict,
            summary_1line=prompts.clean(answer.summary_1line, 400),
            analysis="\n".join(prompts.clean(line, 4000) for line in answer.analysis.splitlines())[:4000],
            next_hypothesis_seed=prompts.clean(answer.next_hypothesis_seed, 400),
        )


def _told(request: Request, fault: str) -> Request:
    """The same request, with what was wrong with the last answer at its end."""
    *before, last = request.messages
    note = prompts.fence("why your last answer was refused", prompts.clean(fault, 600))
    turn = Message(role="user", content=f"{last.content}\n{note}\nAnswer again, without that fault.")
    return request.model_copy(update={"messages": (*before, turn)})


def _built(kind: type[A], **fields: Any) -> A:
    try:
        return kind(**fields)
    except ValidationError as error:
        raise ContractError(first_fault(error), where=kind.__name__) from error


def _check_edit(edit: FileEdit) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,60}\.py", edit.path):
        raise ContractError(f"{edit.path!r} is no plain Python file of the surface", where="edits.path")
    try:
        ast.parse(edit.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ContractError(f"{edit.path} does not parse: {error}", where="edits.text") from None


def _metrics(path: Path) -> RoundMetrics:
    return RoundMetrics.read(json.loads(path.read_bytes()), where=str(path))


def _shown(metrics: RoundMetrics) -> str:
    """Figures only: no times, no paths, which differ from machine to machine."""
    kept = {name: value for name, value in metrics.dump().items() if value is not None and name not in _TIMES_AND_PATHS}
    if metrics.status_reason:
        kept["status_reason"] = prompts.clean(metrics.status_reason, 400)
    return json.dumps(kept, sort_keys=True, indent=1)


def _curve(metrics: RoundMetrics) -> str:
    if not metrics.training_log_path:
        return "no loss was logged"
    try:
        with open(metrics.training_log_path, "rb") as stream:
            return prompts.loss_curve(stream.read(_LOG_BYTES))
    except OSError:
        return "the loss curve cannot be read"


def _previous(view: dict[str, Any]) -> RoundMetrics | None:
    directory = Path(view.get("round_dir") or Path(view["metrics_path"]).parent)
    number = directory.name.removeprefix("round_")
    if not number.isdigit() or int(number) < 2:
        return None
    run = RunLayout(directory.parents[2], directory.parent.name)
    try:
        return _metrics(run.round(int(number) - 1).metrics)
    except (OSError, ValueError, ContractError):
        return None
