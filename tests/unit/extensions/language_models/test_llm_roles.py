"""Roles by name: invalid choices are refused early; model calls are recorded and limited by the budget."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoqec.contracts.dsl import PredecoderDSL
from autoqec.contracts.events import Event, LlmUnusable
from autoqec.contracts.messages import IdeatorResponse
from autoqec.contracts.views import IdeatorView
from autoqec.errors import UsageError
from autoqec.extensions.continual.runtime.main import evaluate
from autoqec.extensions.continual.runtime.run_memory import CrossRunMemory
from autoqec.extensions.language_models.clients.config import round_timeout_s
from autoqec.extensions.language_models.clients.errors import CassetteMissError
from autoqec.extensions.language_models.clients.ledger import Ledger
from autoqec.orchestrator.budget import Clock
from autoqec.orchestrator.run import Run
from autoqec.store import jsonl
from autoqec.store.run_state import fold
from autoqec.system import machine
from tests.support import rounds
from tests.support.messages_server import Behaviour, MessagesServer, fail, say, say_json, trickled
from tests.support.role_views import coder_view
from tests.support.starts import model_roles
from tests.unit.extensions.continual.runtime.test_checkpoint_agents import config, measured

GNN = PredecoderDSL.model_validate({"type": "gnn", "gnn": {"hidden": 11}}).config()
ANSWER = {"hypothesis": "messages see the lattice", "slug": "gnn-eleven", "fork_from": [], "proposal": GNN}


@pytest.fixture
def model(tmp_path: Path) -> str:
    path = tmp_path / "said.jsonl"
    path.write_text(json.dumps({"when": "Propose the next round", "say": ANSWER}) + "\n", encoding="utf-8")
    return f"scripted:{path}"


def view(run: Run) -> IdeatorView:
    return run.memory.l2_for_ideator(run.env, run.baseline_config)


def test_model_calls_are_recorded_and_entered_in_the_ledger(run: Run, model: str) -> None:
    roles = model_roles(run, model=model)
    reply = roles.ideator(view(run))
    assert reply is not None and reply.proposal == GNN and reply.source.startswith("llm scripted:")
    assert roles.stop_reason(fold([])) is None
    ledger = Ledger(run.layout.ledger)
    assert ledger.by_attempt["attempt-1"].calls == 1 and ledger.by_role["ideator"].calls == 1
    assert [row["role"] for row in jsonl.read(run.layout.cassette)] == ["ideator"]
    coded = roles.coder(coder_view(GNN))
    assert coded is None, "a model without an answer leaves the step to the Coder without one"


def test_recorded_run_is_replayed_without_the_model(
    run: Run, model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = model_roles(run, model=model).ideator(view(run))
    cassette_file = tmp_path / "tape.jsonl"
    run.layout.cassette.rename(cassette_file)
    (tmp_path / "said.jsonl").unlink()
    assert f"{machine.cpu_count()} cores" in cassette_file.read_text(encoding="utf-8"), (
        "the prompt describes the machine"
    )
    monkeypatch.setattr(machine, "snapshot", lambda: {"cpu": {"cores": 4096}})
    roles = model_roles(run, model=model, cassette=str(cassette_file))
    assert roles.ideator(view(run)) == first, "on another machine too"
    assert run.layout.cassette.read_bytes() == cassette_file.read_bytes(), "the tape travels with the run"
    with pytest.raises(CassetteMissError):
        roles.ideator(view(run).model_copy(update={"notes": "something else"}))


def test_exhausted_budget_stops_before_the_call_and_the_next_round(run: Run, model: str) -> None:
    event_kinds: list[str] = []
    roles = model_roles(run, lambda event: event_kinds.append(event.kind), model=model, budget={"tokens": 100.0})
    assert roles.stop_reason(fold([])) is None
    assert roles.ideator(view(run)) is None and roles.ideator(view(run)) is None
    assert "budget is 100" in str(roles.stop_reason(fold([]))) and event_kinds == ["lm_budget"]
    assert Ledger(run.layout.ledger).totals.calls == 0
    assert {row["kind"] for row in jsonl.read(run.layout.cassette)} == {"count"}, "counted, and never asked"


def test_hybrid_does_not_use_a_model_as_coder(run: Run, model: str) -> None:
    roles = model_roles(run, ideator="hybrid", model=model)
    reply = roles.ideator(view(run))
    assert isinstance(reply, IdeatorResponse) and reply.source == "hybrid tpe 0"
    coded = roles.coder(coder_view(GNN))
    assert coded is not None and coded.dsl_config == GNN


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the checkpoint of an agent that RunTime trained on another task."""
    return evaluate(config(tmp_path_factory.mktemp("trained"))).results_dir / "c/latest"


def proposing(folder: Path, say: str) -> str:
    """Return a model that proposes a design if its memory is not empty."""
    path = folder / "design.jsonl"
    path.write_text(json.dumps({"when": "F: .*Design a neural", "say": say}) + "\n", encoding="utf-8")
    return f"scripted:{path}"


def test_trained_agent_proposes_with_its_memory(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    model = proposing(tmp_path, '{"type": "mlp", "mlp.depth": 2}')
    roles = model_roles(run, model=model, ideator_memory=str(checkpoint))
    reply = roles.ideator(view(run))
    assert reply is not None and reply.proposal["mlp"]["depth"] == 2 and reply.source.startswith("MemoryAgent latest")
    assert Ledger(run.layout.ledger).by_attempt["attempt-1"].calls == 1
    assert len(jsonl.read(run.layout.cassette)) == 1, "taped like every other"


@pytest.mark.parametrize("say", ["let me think", '{"type": "mlp", "mlp.depth": 99}', '{"mlp.depth": 2}'])
def test_invalid_reply_of_a_trained_agent_falls_back_to_the_search(
    run: Run, checkpoint: Path, tmp_path: Path, say: str
) -> None:
    event_kinds: list[str] = []
    roles = model_roles(
        run,
        lambda event: event_kinds.append(event.kind),
        model=proposing(tmp_path, say),
        ideator_memory=str(checkpoint),
    )
    assert roles.ideator(view(run)) is None and event_kinds == ["lm_given_up"]


def test_notes_of_earlier_runs_are_in_the_prompt(run: Run, model: str, tmp_path: Path) -> None:
    file, row = tmp_path / "memory.jsonl", rounds.row(1, dsl_config=GNN, status="train_error", status_reason="NaN")
    CrossRunMemory(file).learn("an older run", run.env, [row])
    roles = model_roles(run, model=model, memory=str(file))
    assert roles.ideator(view(run)) is not None
    (line,) = jsonl.read(run.layout.cassette)
    prompt = json.dumps(line["request"])
    assert "notes from earlier runs" in prompt and "train_error: NaN" in prompt and "hidden=11" in prompt


def test_model_reads_what_the_clock_of_the_run_leaves(run: Run, served: MessagesServer) -> None:
    """A job of a detached run continues the clock of the jobs before it."""

    class Later(Clock):
        def elapsed(self) -> float:
            return 5400.0

    run.clock = Later()
    served.script(say_json({}))
    model_roles(run, model="claude-opus-5-5", budget={"hours": 2.0}).ideator(view(run))
    assert "hours: 0.5 of 2" in str(served.requests[0]["messages"])


def test_trained_analyst_nominates_or_falls_back_to_the_interval(run: Run, checkpoint: Path, tmp_path: Path) -> None:
    event_kinds: list[str] = []
    view = measured(tmp_path)
    for reply, ends in (("VERIFIED", "candidate"), ("hard to tell", None)):
        run.layout.cassette.unlink(missing_ok=True)  # without it the first answer would be used again
        (tmp_path / "analyst.jsonl").write_text(json.dumps({"when": "verdict of the verifier", "say": reply}) + "\n")
        roles = model_roles(
            run,
            lambda event: event_kinds.append(f"{event.kind} {event.payload()['role']}"),
            ideator="hybrid",
            model=f"scripted:{tmp_path / 'analyst.jsonl'}",
            analyst_memory=str(checkpoint),
        )
        nomination = roles.analyst(view)
        assert (nomination.verdict if nomination else None) == ends
    assert event_kinds == ["lm_given_up analyst"]


@pytest.mark.parametrize(
    ("fault", "model"),
    [
        (fail(401), "claude-opus-5-5"),
        (fail(403), "claude-opus-5-5"),
        (fail(400, "Your credit balance is too low"), "claude-opus-5-5"),
        (say("never"), "claude-of-next-year"),
    ],
)
def test_a_permanent_fault_ends_the_calls_to_the_model(
    run: Run, served: MessagesServer, fault: Behaviour, model: str
) -> None:
    served.answer = lambda body: fault
    events: list[Event] = []
    roles = model_roles(run, events.append, model=model)
    assert roles.ideator(view(run)) is None and roles.ideator(view(run)) is None
    assert roles.coder(coder_view(GNN)) is None
    assert len(served.requests) == 1
    assert [event.model for event in events if isinstance(event, LlmUnusable)] == [model]
    assert roles.stop_reason(fold([])) is None, "the search goes on"


def test_a_fault_of_one_request_does_not_end_the_calls(run: Run, served: MessagesServer) -> None:
    served.answer = lambda body: fail(400, "prompt is too long")
    events: list[Event] = []
    roles = model_roles(run, events.append, model="claude-opus-5-5")
    assert roles.ideator(view(run)) is None and roles.ideator(view(run)) is None
    assert len(served.requests) == 2 and not any(isinstance(event, LlmUnusable) for event in events)


def test_a_rejected_answer_and_the_reason_are_shown_to_the_model(run: Run, served: MessagesServer) -> None:
    served.script(say("prose instead of a proposal"), say_json({**ANSWER, "slug": "Not A Slug"}))
    roles = model_roles(run, model="claude-opus-5-5")
    assert roles.ideator(view(run)) is None
    (retry,) = [body["messages"][-1]["content"] for body in served.requests[1:]]
    assert "prose instead of a proposal" in retry and "Invalid JSON" in retry
    assert "prose instead" not in str(served.requests[0])


def test_all_calls_of_a_round_end_with_its_time_limit(
    run: Run, served: MessagesServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOQEC_ROUND_LLM_TIMEOUT_S", "4")
    served.answer = lambda body: trickled(say_json(ANSWER), 0.05)
    events: list[Event] = []
    roles = model_roles(run, events.append, model="claude-opus-5-5")
    assert roles.ideator(view(run)) is None and len(served.requests) == 1
    assert roles.coder(coder_view(GNN)) is None and len(served.requests) == 1, "no time is left in this round"
    assert [event.kind for event in events] == ["lm_given_up", "lm_given_up"]
    served.answer = lambda body: say_json(ANSWER)
    run.memory.history.append_attempt(rounds.begun(2))
    assert roles.ideator(view(run)) is not None, "the next round has its own time"


def test_the_time_limit_of_a_round_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert round_timeout_s({}) == 1800.0
    for text in ("soon", "0", "-1", "nan", "inf"):
        with pytest.raises(UsageError, match="AUTOQEC_ROUND_LLM_TIMEOUT_S"):
            round_timeout_s({"AUTOQEC_ROUND_LLM_TIMEOUT_S": text})
