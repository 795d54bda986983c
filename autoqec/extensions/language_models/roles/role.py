"""Base class of the roles that a language model takes: tool loop, retries that show the error, events."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from autoqec.contracts.base import first_validation_error
from autoqec.contracts.events import LlmCalled, LlmGivenUp, LlmRetried, LlmToolUsed, OnEvent, ignore
from autoqec.errors import ContractError
from autoqec.extensions.language_models.clients.base import LanguageModel, Message, Request, Response, tool_results
from autoqec.extensions.language_models.clients.errors import (
    BudgetExceededError,
    CassetteMissError,
    LlmBadAnswerError,
    LlmError,
    LlmTruncatedError,
)
from autoqec.extensions.language_models.roles.data_blocks import data_block, sanitize
from autoqec.extensions.language_models.roles.tools import IdeatorTools
from autoqec.ideators.proposal_checks import BuildFailedError

OnTurn = Callable[[dict[str, Any]], None]
T = TypeVar("T")
R = TypeVar("R", bound=BaseModel)

MAX_TOOL_TURNS = 10
MAX_CALLS_PER_TURN = 8
MAX_REJECTED_CHARS = 40_000  # of a rejected answer that the model is shown
MAX_OUTPUT_TOKENS = 64_000  # of a retry after an answer that was cut off


class Role:
    """A role through a language model. Emits the events lm_call, lm_tool, lm_retry and lm_given_up.

    Args:
        lm: The language model.
        on_event: Receives every event.
        on_turn: Receives every turn: the model's answer, and the results of the tools that it called.
    """

    name = "agent"

    def __init__(self, lm: LanguageModel, *, on_event: OnEvent = ignore, on_turn: OnTurn | None = None) -> None:
        self.lm, self._on_event, self._on_turn = lm, on_event, on_turn

    def _request_with_retry(
        self, request: Request, check: Callable[[Any], T], tools: IdeatorTools | None = None, *, retries: int = 1
    ) -> T | None:
        """Return `check(parsed answer)`, after retries that show the model its rejected answers and the errors.

        Returns:
            None if the last answer is rejected too, or there is none.

        Raises:
            BudgetExceededError: The caller decides what it means for the run.
            CassetteMissError: The same.
            LlmError: No call of this model can succeed (`is_permanent`).
        """
        for attempt in range(retries + 1):
            response = None
            try:
                response = self._run_tool_loop(request, tools)
                return check(response.parsed)
            except (BudgetExceededError, CassetteMissError):
                raise
            except (LlmBadAnswerError, LlmTruncatedError, ContractError) as error:
                event = LlmGivenUp if attempt == retries else LlmRetried
                self._on_event(event(**self._about(error)))
                answer = response.text if response is not None else getattr(error, "answer", None)
                request = _retry_request(request, error, answer)
            except LlmError as error:
                if error.is_permanent:
                    raise
                self._on_event(LlmGivenUp(**self._about(error)))
                return None
        return None

    def _run_tool_loop(self, request: Request, tools: IdeatorTools | None) -> Response:
        """Call the model and answer its tool calls until it gives an answer."""
        for turn in range(MAX_TOOL_TURNS + 1):
            response = self._call(request)
            if not response.tool_calls:
                return response
            if tools is None or turn == MAX_TOOL_TURNS:
                break
            results, failed = dict[str, str](), list[str]()
            for number, call in enumerate(response.tool_calls):
                if number < MAX_CALLS_PER_TURN:
                    results[call.id], succeeded = tools.run(call)
                else:
                    results[call.id], succeeded = f"at most {MAX_CALLS_PER_TURN} calls are answered per turn", False
                self._on_event(LlmToolUsed(role=self.name, tool=sanitize(call.name, 64), good=succeeded))
                failed += [] if succeeded else [call.id]
            self._keep_turn({"tool_results": results, "failed": failed})
            turns = (*request.messages, response.turn(), tool_results(results, failed=tuple(failed)))
            request = request.model_copy(update={"messages": turns})
        raise LlmBadAnswerError(f"no answer after {MAX_TOOL_TURNS} turns of tool calls")

    def _call(self, request: Request) -> Response:
        response = self.lm.complete(request)
        event = LlmCalled(
            role=self.name,
            model=response.model,
            usage=response.usage.dump(),
            cost_usd=response.cost_usd,
            duration_ms=response.duration_ms,
        )
        self._on_event(event)
        self._keep_turn({"text": response.text, "tool_calls": [call.dump() for call in response.tool_calls]})
        return response

    def _keep_turn(self, turn: dict[str, Any]) -> None:
        if self._on_turn is not None:
            self._on_turn({"role": self.name, **turn})

    def _about(self, error: Exception) -> dict[str, str]:
        return {"role": self.name, "error": type(error).__name__, "what": sanitize(error, 400)}


def validated(kind: type[R], **fields: Any) -> R:
    """Return an instance of `kind`. Raises ContractError with the first wrong field."""
    try:
        return kind(**fields)
    except ValidationError as error:
        raise ContractError(first_validation_error(error), location=kind.__name__) from error


def _retry_request(request: Request, error: Exception, answer: str | None) -> Request:
    """Return the request with the rejected answer and the error, and more output tokens after a truncated one."""
    *before, last = request.messages
    notes = [data_block("why your last answer was rejected", sanitize(error, 600))]
    if isinstance(error, BuildFailedError) and error.log:
        notes.append(data_block("end of the traceback", error.log))
    if answer:
        notes.insert(0, data_block("your last answer", sanitize(answer, MAX_REJECTED_CHARS)))
    shown = "\n".join(notes)
    turn = Message(role="user", content=f"{last.content}\n{shown}\nAnswer again, without this error.")
    truncated = isinstance(error, LlmTruncatedError)
    max_tokens = min(2 * request.max_tokens, MAX_OUTPUT_TOKENS) if truncated else request.max_tokens
    return request.model_copy(update={"messages": (*before, turn), "max_tokens": max_tokens})
