"""The Ideator through a language model: proposes the next round from the record of the run.

Returns None if the model gave no usable answer after one retry; the rule-based role then takes the round.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from autoqec.contracts.dsl import PredecoderDSL, parse_dsl
from autoqec.contracts.events import OnEvent
from autoqec.contracts.messages import IdeatorResponse
from autoqec.contracts.pins import apply_pins
from autoqec.contracts.views import IdeatorView, RoundRow
from autoqec.errors import ContractError
from autoqec.extensions.language_models.clients.base import LanguageModel, Message, Request
from autoqec.extensions.language_models.contracts import IdeatorAnswer
from autoqec.extensions.language_models.roles import prompts
from autoqec.extensions.language_models.roles.data_blocks import sanitize
from autoqec.extensions.language_models.roles.notebook import Notebook, failures_block, lessons_block
from autoqec.extensions.language_models.roles.research_tools import (
    READ_CODE,
    READ_ROUND,
    WRITE_LESSON,
    ReadModules,
    ResearchSources,
    ResearchTools,
    Screen,
)
from autoqec.extensions.language_models.roles.role import OnTurn, Role, validated
from autoqec.extensions.language_models.roles.run_record import ReadCode, ReadEvidence, format_code, format_run_record
from autoqec.extensions.language_models.roles.view_budget import CONTEXT_CHARS, STATE_CHARS, TURN_CHARS
from autoqec.extensions.language_models.roles.view_text import (
    budget_block,
    format_ideator_view,
    machine_block,
    notes_block,
)
from autoqec.ideators.proposal_checks import PredictCost, check_cost, find_duplicate_round, parent_branches_of

_TASK = "Propose the next round."


class LlmIdeator(Role):
    """Proposes the next round from a view (`RunMemory.l2_for_ideator`, with `sampler` and `notes` if present).

    Args:
        lm: The language model.
        on_event: Receives every event.
        predict_cost: Cost of a config; a proposal beyond the env's limits is then rejected before a round is spent.
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
        self._predict_cost, self._use_tools = predict_cost, lm.supports_tools
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
