"""The Ideator through a language model: proposes the next round from the record of the run.

Returns None if the model gave no usable answer after one retry; the rule-based role then takes the round.
"""

from __future__ import annotations

from autoqec.contracts.dsl import PredecoderDSL, parse_dsl
from autoqec.contracts.events import OnEvent, ignore
from autoqec.contracts.messages import IdeatorResponse
from autoqec.contracts.pins import apply_pins
from autoqec.contracts.views import IdeatorView, RoundRow
from autoqec.errors import ContractError
from autoqec.extensions.language_models.clients.base import LanguageModel, Message, Request
from autoqec.extensions.language_models.contracts import IdeatorAnswer
from autoqec.extensions.language_models.roles import prompts
from autoqec.extensions.language_models.roles.data_blocks import sanitize
from autoqec.extensions.language_models.roles.notebook import Notebook, failures_block, lessons_block
from autoqec.extensions.language_models.roles.record import format_code, format_run_record
from autoqec.extensions.language_models.roles.role import OnTurn, Role, validated
from autoqec.extensions.language_models.roles.tools import (
    READ_CODE,
    READ_ROUND,
    WRITE_LESSON,
    IdeatorTools,
    ResearchTools,
    offered_tools,
)
from autoqec.extensions.language_models.roles.view_text import (
    CONTEXT_CHARS,
    STATE_CHARS,
    TURN_CHARS,
    budget_block,
    format_ideator_view,
    machine_block,
    notes_block,
)
from autoqec.ideators.proposal_checks import check_cost, find_duplicate_round, parent_branches_of

_TASK = "Propose the next round."


class LlmIdeator(Role):
    """Proposes the next round from a view (`RunMemory.l2_for_ideator`, with `sampler` and `notes` if present).

    Args:
        lm: The language model.
        tools: What the run lets it look up and try out; with them, it sees every recorded round in full, and a proposal
            beyond the env's limits is rejected before a round is spent. None: it sees the view alone.
        notebook: The lessons of the run.
        on_event: Receives every event.
        on_turn: Receives every turn of the conversation.
    """

    name = "ideator"

    def __init__(
        self,
        lm: LanguageModel,
        tools: ResearchTools | None = None,
        notebook: Notebook | None = None,
        *,
        on_event: OnEvent = ignore,
        on_turn: OnTurn | None = None,
    ) -> None:
        super().__init__(lm, on_event=on_event, on_turn=on_turn)
        self._tools, self._notebook = tools, notebook
        self._code_may_change = tools is not None and tools.code_may_change

    def __call__(self, view: IdeatorView) -> IdeatorResponse | None:
        """Propose the next round; None without a usable answer."""
        tools = IdeatorTools(view, self._tools, self._notebook) if self.lm.supports_tools else None
        return self._request_with_retry(self.request(view), lambda answer: self._response(view, answer), tools)

    def request(self, view: IdeatorView) -> Request:
        """Return the prompt for a view: the record of the run, cached from round to round, then its present state.

        All of it has at most `MAX_VIEW_CHARS` characters, for a run of any length.
        """
        tools, notebook = self._tools, self._notebook
        offered = offered_tools(tools, notebook) if self.lm.supports_tools else ()
        texts, files = (tool.name if tool in offered else None for tool in (READ_ROUND, READ_CODE))
        earlier = notes_block(view)
        room = CONTEXT_CHARS - len(earlier) - 1
        record = () if tools is None else format_run_record(view, tools.read_evidence, room, texts)
        failures = "" if notebook is None else failures_block(view.history)
        state = format_ideator_view(view, with_rounds=False, limit=STATE_CHARS) if record else format_ideator_view(view)
        room = TURN_CHARS - len(failures) - len(state) - len(_TASK) - 3
        code = format_code(view, tools.code_change, room, files) if tools is not None and self._code_may_change else ""
        turn = "\n".join(filter(None, (code, failures, state, _TASK)))
        # Earlier answers wrote the lessons: after a crash, the request has to match the one that was answered.
        aside = [] if notebook is None else [lessons_block(notebook.lessons())]
        aside += [] if tools is None else [machine_block(tools.machine()), budget_block(tools.budget_left())]
        system = prompts.ideator_prompt(
            view, code_may_change=self._code_may_change, keeps_lessons=WRITE_LESSON in offered
        )
        return Request(
            role=self.name,
            system=system,
            messages=(Message(role="user", content=turn),),
            context=(*([earlier] if earlier else []), *record),
            aside="\n".join(filter(None, aside)),
            output=IdeatorAnswer,
            tools=offered,
        )

    def _response(self, view: IdeatorView, answer: IdeatorAnswer) -> IdeatorResponse:
        """Return the answer as IdeatorResponse. Raises ContractError for invalid parents, config or cost."""
        parents = parent_branches_of(view, answer.fork_from)
        proposal = apply_pins(answer.proposal.config(), view.pins)
        if answer.code_change and not self._code_may_change:
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
        tools = self._tools
        compares_code = self._code_may_change and len(parents) < 2  # what git makes of several is not known yet
        code = tools.code_of(parents[0] if parents else None) if tools is not None and compares_code else ""

        def has_same_code(row: RoundRow) -> bool:
            return tools is None or not compares_code or tools.code_of(row["branch"]) == code

        duplicate_round = find_duplicate_round(view, dsl, has_same_code=has_same_code)
        if duplicate_round is not None:
            message = f"this is equivalent to round {duplicate_round}; change a key that has an effect"
            raise ContractError(message, location="proposal")
        # The package's modules say nothing about other code.
        if tools is not None and (not compares_code or code == tools.code_of(None)):
            check_cost(dsl, tools.predict_cost, view.env.constraints if view.env else None)
