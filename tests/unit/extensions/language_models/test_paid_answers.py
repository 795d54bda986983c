"""After a crash, answers of an attempt that planned nothing are used again: once, for the same request, free."""

from __future__ import annotations

from typing import Any

import pytest

from autoqec.contracts.dsl import PredecoderDSL
from autoqec.contracts.events import Event, LlmCalled, ignore
from autoqec.contracts.messages import CoderResponse, IdeatorResponse
from autoqec.contracts.views import IdeatorView
from autoqec.extensions.language_models.clients.ledger import Ledger
from autoqec.extensions.language_models.contracts import Citation
from autoqec.extensions.language_models.roles.notebook import MAX_LESSONS, Notebook
from autoqec.orchestrator import round_recorder
from autoqec.orchestrator.run import Run
from autoqec.store import jsonl
from autoqec.store.run_state import Attempt
from tests.support import rounds
from tests.support.messages_server import Behaviour, MessagesServer, fail, say, say_json, use_tool
from tests.support.role_views import coder_view
from tests.support.starts import model_roles

GNN = PredecoderDSL.model_validate({"type": "gnn", "gnn": {"hidden": 11}}).config()
IDEA = {"hypothesis": "messages see the lattice", "slug": "gnn-eleven", "fork_from": [], "proposal": GNN}
MODEL = "claude-opus-5-5"


def answer(body: dict[str, Any]) -> Behaviour:
    is_coder = "You are the Coder" in str(body["system"])
    return say_json({"dsl_config": GNN, "commit_message": "eleven units"} if is_coder else IDEA)


def view(run: Run, **more: Any) -> IdeatorView:
    return run.memory.l2_for_ideator(run.env, run.baseline_config).model_copy(update=more)


def propose(run: Run, events: list[Event] | None = None, **more: Any) -> tuple[IdeatorResponse | None, Any]:
    """Ask both roles, as a process does that opens the run."""
    roles = model_roles(run, ignore if events is None else events.append, model=MODEL)
    idea = roles.ideator(view(run, **more))
    return idea, roles.coder(coder_view(GNN))


def resumed(run: Run, number: int, *more: Any, **fields: Any) -> tuple[IdeatorResponse | None, Any]:
    """Crash in attempt `number` and ask again; roles are built before the new attempt begins."""
    run.layout.round(number).dir.mkdir(parents=True, exist_ok=True)
    run.memory.append_round(round_recorder.aborted_row(Attempt(f"attempt-{number}", number), why="the process died"))
    roles = model_roles(run, *more, model=MODEL)
    run.memory.history.append_attempt(rounds.begun(number + 1))
    return roles.ideator(view(run, **fields)), roles.coder(coder_view(GNN))


def test_answers_of_an_interrupted_attempt_are_used_again_and_paid_once(run: Run, served: MessagesServer) -> None:
    served.answer = answer
    first = propose(run)
    assert isinstance(first[0], IdeatorResponse) and isinstance(first[1], CoderResponse)
    paid, lines = Ledger(run.layout.ledger).totals.to_json(), run.layout.cassette.read_bytes()
    assert paid["calls"] == len(served.requests) == 2 and paid["cost_usd"] > 0
    events: list[Event] = []
    assert resumed(run, 1, events.append) == first
    assert [(event.cost_usd, set(event.usage.values())) for event in events if isinstance(event, LlmCalled)] == [
        (0.0, {0}), (0.0, {0}),
    ]  # fmt: skip
    assert resumed(run, 2) == first, "and after a second crash"
    ledger = Ledger(run.layout.ledger)
    assert len(served.requests) == 2 and ledger.totals.to_json() == paid
    assert list(ledger.by_attempt) == ["attempt-1"] and run.layout.cassette.read_bytes() == lines


def test_changed_request_is_sent(run: Run, served: MessagesServer) -> None:
    served.answer = answer
    propose(run)
    idea, _ = resumed(run, 1, notes="a wide net was too slow")
    assert idea is not None and len(served.requests) == 3, "the Coder's request did not change"
    assert Ledger(run.layout.ledger).by_attempt["attempt-2"].calls == 1


def test_answers_are_not_used_after_a_planned_round_or_for_a_second_attempt(run: Run, served: MessagesServer) -> None:
    served.answer = answer
    propose(run)
    roles = model_roles(run, model=MODEL)
    run.memory.history.append_attempt(rounds.begun(2))
    assert roles.ideator(view(run)) is not None and len(served.requests) == 2
    run.memory.history.append_attempt(rounds.begun(3))
    assert roles.coder(coder_view(GNN)) is not None and len(served.requests) == 3, "left from attempt 1"
    run.memory.history.append_attempt(rounds.planned(3))
    assert model_roles(run, model=MODEL).coder(coder_view(GNN)) is not None and len(served.requests) == 4


def test_conversation_continues_where_it_was_interrupted(run: Run, served: MessagesServer) -> None:
    """A lesson that the model wrote, and a rejected answer, lead to the same requests again."""
    run.layout.round(1).dir.mkdir()
    run.memory.append_round(rounds.row(1, dsl_config=GNN, n_params=4000))
    run.memory.history.append_attempt(rounds.begun(2))
    lesson = {"text": "11 units train", "cites": [{"round": 1, "figure": "n_params", "value": 4000}]}
    other = {**IDEA, "proposal": {**GNN, "gnn": {**GNN["gnn"], "hidden": 12}}}
    served.script(use_tool("write_lesson", lesson), say("prose"), use_tool("write_lesson", lesson), say_json(other))
    first = model_roles(run, model=MODEL).ideator(view(run))
    assert first is not None and len(served.requests) == 4 and len(jsonl.read(run.layout.notebook)) == 1
    run.layout.cassette.write_bytes(b"".join(run.layout.cassette.read_bytes().splitlines(keepends=True)[:3]))
    served.script(say_json(other))
    again, _ = resumed(run, 2)
    assert again == first and len(jsonl.read(run.layout.notebook)) == 1
    ideas = [body["messages"] for body in served.requests if "You are the Ideator" in str(body["system"])]
    assert len(ideas) == 5 and len(ideas[4]) == len(ideas[3]) > 1, "only the last call of the conversation"


def repeated_notes(run: Run, served: MessagesServer, notes: list[dict[str, Any]]) -> list[Any]:
    """Write lessons in an attempt that dies at its last call, resume, and return the results of both attempts."""
    served.script(*(use_tool("write_lesson", note) for note in notes), say_json(IDEA))
    assert model_roles(run, model=MODEL).ideator(view(run)) is not None
    book, calls = run.layout.notebook.read_bytes(), len(served.requests)
    run.layout.cassette.write_bytes(b"".join(run.layout.cassette.read_bytes().splitlines(keepends=True)[:-1]))
    served.script(say_json(IDEA), answer({"system": "You are the Coder"}))
    assert resumed(run, 2)[0] is not None
    ideas = [body["messages"] for body in served.requests if "You are the Ideator" in str(body["system"])]
    assert len(ideas) == calls + 1, "one call was not answered before"
    assert run.layout.notebook.read_bytes() == book
    return [[turn["content"] for turn in messages[2::2]] for messages in ideas[-2:]]


@pytest.mark.parametrize("is_full", [False, True])
def test_merged_lessons_have_the_same_result_again(run: Run, served: MessagesServer, is_full: bool) -> None:
    """Also a lesson that the full notebook refused before others were merged."""
    other = {**GNN, "gnn": {**GNN["gnn"], "hidden": 12}}
    run.layout.round(1).dir.mkdir()
    run.memory.append_round(rounds.row(1, dsl_config=other, n_params=4000))
    cites = [{"round": 1, "figure": "n_params", "value": 4000}]
    for number in range(MAX_LESSONS if is_full else 0):
        Notebook(run.layout.notebook).add(
            f"earlier {number}", [Citation.read(cites[0], location="")], view(run).history
        )
    run.memory.history.append_attempt(rounds.begun(2))
    first = {"text": "11 units train", "cites": cites}
    merged = {"text": "11 units train well", "cites": cites, "replaces": [1, 2, 3] if is_full else [1]}
    notes = [first, merged, first] if is_full else [first, merged, first, {**merged, "text": "nothing else"}]
    before, after = repeated_notes(run, served, notes)
    assert before == after and len(before) == len(notes)
    assert ("the notebook holds" in str(before[0])) == is_full


def test_recorded_answer_settles_the_call_that_the_ledger_did_not_see(run: Run, served: MessagesServer) -> None:
    served.answer = answer
    propose(run)
    paid = Ledger(run.layout.ledger).totals.to_json()
    lines = run.layout.ledger.read_bytes().splitlines(keepends=True)
    run.layout.ledger.write_bytes(b"".join(lines[:-1]))
    assert Ledger(run.layout.ledger).unsettled.tokens > 0
    resumed(run, 1)
    ledger = Ledger(run.layout.ledger)
    assert ledger.totals.to_json() == paid and ledger.unsettled.tokens == 0 and len(served.requests) == 2


@pytest.mark.parametrize("fault", [fail(500), fail(529)])
def test_outage_is_not_an_answer(run: Run, served: MessagesServer, fault: Behaviour) -> None:
    served.answer = lambda body: fault
    assert propose(run)[0] is None
    served.answer = answer
    assert resumed(run, 1)[0] is not None
