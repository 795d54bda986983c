"""Tool loop, retries that show the error, and errors of the provider, the same for every role."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoqec.contracts.events import LlmToolUsed
from autoqec.extensions.language_models.clients.base import ToolCall
from autoqec.extensions.language_models.clients.errors import (
    BudgetExceededError,
    CassetteMissError,
    LlmAuthError,
    LlmBadRequestError,
    LlmError,
    LlmNoAccessError,
    LlmRefusalError,
    LlmTruncatedError,
    LlmUnavailableError,
)
from autoqec.extensions.language_models.clients.ledger import Ledger, MeteredLM
from autoqec.extensions.language_models.clients.scripted import ScriptedLM
from autoqec.extensions.language_models.contracts import CoderAnswer, IdeatorAnswer
from autoqec.extensions.language_models.roles.analyst import LlmAnalyst
from autoqec.extensions.language_models.roles.coder import LlmCoder
from autoqec.extensions.language_models.roles.ideator import LlmIdeator
from tests.support.messages_server import (
    MessagesServer,
    cut,
    fail,
    malformed,
    rate_limited,
    refuse,
    say,
    say_json,
    truncate,
    use_tool,
)
from tests.unit.extensions.language_models.roles.test_analyst import analyst_view
from tests.unit.extensions.language_models.roles.test_coder import MODULES, task
from tests.unit.extensions.language_models.roles.test_ideator import (
    MLP,
    Events,
    answer,
    gnn,
    row,
    served,
    view,
)


def test_two_bad_answers_give_none() -> None:
    events = Events()
    lm = ScriptedLM(["prose", "more prose", answer(gnn())])
    assert LlmIdeator(lm, on_event=events)(view()) is None
    assert len(lm.requests) == 2
    assert events.kinds() == ["lm_retry", "lm_given_up"]


@pytest.mark.parametrize(
    "error", [LlmRefusalError("no"), LlmUnavailableError("busy"), LlmBadRequestError("prompt too long")]
)
def test_errors_of_the_provider_give_none_without_a_retry(error: LlmError) -> None:
    events, lm = Events(), ScriptedLM([error, answer(gnn())])
    assert LlmIdeator(lm, on_event=events)(view()) is None
    assert len(lm.requests) == 1 and events.kinds() == ["lm_given_up"]


@pytest.mark.parametrize(
    "error",
    [
        BudgetExceededError("spent"),
        CassetteMissError("no such call"),
        LlmAuthError("key"),
        LlmNoAccessError("no such model"),
    ],
)
def test_errors_that_end_the_calls_are_raised(error: LlmError) -> None:
    with pytest.raises(type(error)):
        LlmIdeator(ScriptedLM([error]))(view())


def test_truncated_answer_is_retried_with_more_tokens() -> None:
    lm = ScriptedLM([LlmTruncatedError("cut"), answer(gnn())])
    LlmIdeator(lm)(view())
    assert [request.max_tokens for request in lm.requests] == [8192, 16384]


def test_every_api_fault_ends_with_a_reply_or_none(server: MessagesServer, tmp_path: Path) -> None:
    """Ten rounds, every fault: each ends with a reply or None, and the spend is exact to the token."""
    ledger, events = Ledger(tmp_path / "ledger.jsonl"), Events()
    ideator = LlmIdeator(MeteredLM(served(server), ledger), on_event=events)
    faults = [
        (rate_limited(),),
        (fail(500),),
        (fail(529),),
        (refuse(),),
        (truncate(),),
        (malformed(),),
        (cut(say("x" * 99)),),
        (say("prose"), say("prose")),
        (fail(400),),
        (say("y" * 2_000_001), say("z")),
    ]
    replies = []
    for number, behaviours in enumerate(faults):
        server.script(*behaviours)
        server.answer = lambda body, number=number: say_json(answer(gnn(hidden=10 + number)))  # type: ignore[misc]
        replies.append(ideator(view()))
    assert [response is None for response in replies] == [
        False,
        False,
        False,
        True,
        False,
        False,
        False,
        True,
        True,
        True,
    ]
    assert ledger.totals.usage.total == sum(server.billed.values())
    assert Ledger(tmp_path / "ledger.jsonl").totals.usage == ledger.totals.usage
    assert events.kinds().count("lm_given_up") == 4


def test_tools_are_read_only_and_calls_are_reported(server: MessagesServer) -> None:
    events = Events()
    server.script(
        use_tool("query_history", {"family": "mlp"}, call_id="a"),
        use_tool("bash", {"command": "cat ~/.ssh/id_rsa"}, call_id="b"),
        use_tool("check_proposal", {"proposal": {"type": "gnn", "gnn": {"hidden": -1}}}, call_id="c"),
        say_json(answer(gnn())),
    )
    assert LlmIdeator(served(server), on_event=events)(view(row(1, MLP))) is not None
    results = [request["messages"][-1]["content"][0] for request in server.requests[1:]]
    assert "r1; mlp()" in results[0]["content"] and "is_error" not in results[0]
    assert results[1]["is_error"] and "unknown tool 'bash'" in results[1]["content"]
    assert results[2]["is_error"] and "hidden" in results[2]["content"]
    assert [event.good for event in events if isinstance(event, LlmToolUsed)] == [True, False, False]


def test_endless_tool_calls_are_a_bad_answer() -> None:
    lm = ScriptedLM(lambda request: ToolCall(id="x", name="diff", input={"one": 0, "other": 1}))
    assert LlmIdeator(lm)(view(row(1, gnn()))) is None
    assert len(lm.requests) == 22


def test_model_without_tool_support_gets_no_tools() -> None:
    lm = ScriptedLM([answer(gnn())])
    lm.supports_tools = False
    assert LlmIdeator(lm)(view()) is not None
    assert lm.requests[0].tools == ()


def test_schemas_are_accepted_by_the_api(server: MessagesServer, tmp_path: Path) -> None:
    """No open object, no bound: the loopback server refuses them as the API does."""
    server.answer = lambda body: say("{}")
    LlmIdeator(served(server))(view())
    LlmCoder(served(server))(task(modules=MODULES))
    LlmAnalyst(served(server))(analyst_view(tmp_path))
    assert server.statuses == [200] * 7, "the Coder repairs code twice"
    for kind in (IdeatorAnswer, CoderAnswer):
        assert "additionalProperties" in json.dumps(kind.model_json_schema())
