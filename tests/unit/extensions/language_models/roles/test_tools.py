"""Tools that read rounds, code and notes, screen proposals and keep lessons: bounded, safe, offered if available."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autoqec.contracts.dsl import PredecoderDSL
from autoqec.extensions.language_models.clients.anthropic_client import AnthropicLM
from autoqec.extensions.language_models.clients.base import ToolCall
from autoqec.extensions.language_models.clients.scripted import ScriptedLM
from autoqec.extensions.language_models.roles.ideator import LlmIdeator
from autoqec.extensions.language_models.roles.notebook import Notebook
from autoqec.extensions.language_models.roles.record import RoundEvidence
from autoqec.extensions.language_models.roles.tools import (
    MAX_SCREENS,
    IdeatorTools,
    offered_tools,
    topics,
)
from tests.support.messages_server import MessagesServer, say_json, use_tool
from tests.support.research import FakeResearch, trial
from tests.support.role_views import ideator_view
from tests.unit.extensions.language_models.roles.test_ideator import ENV
from tests.unit.extensions.language_models.roles.test_record import row

MLP = PredecoderDSL.model_validate({"type": "mlp", "mlp": {"hidden": 16, "depth": 1}}).config()
GNN = PredecoderDSL.model_validate({"type": "gnn", "gnn": {"hidden": 16}}).config()
BRANCH = "exp/r/01-x"
EVIDENCE = RoundEvidence(curves={"edge labels": [(number, 1.0 / number) for number in range(1, 200)]})
MODULES = {"mlp.py": "import torch\n\x1b[2Jx = 1\n", "long.py": "y" * 100_000}


@pytest.fixture
def book(tmp_path: Path) -> Notebook:
    return Notebook(tmp_path / "notebook.jsonl")


def tools(book: Notebook, research: FakeResearch | None = None, **view: Any) -> IdeatorTools:
    research = research or FakeResearch(evidence=lambda number: EVIDENCE, modules=MODULES)
    return IdeatorTools(ideator_view([row(1, branch=BRANCH)], baseline_config=MLP, **view), research, book)


def call(research: IdeatorTools, name: str, **arguments: Any) -> tuple[str, bool]:
    return research.run(ToolCall(id="1", name=name, input=arguments))


def test_round_its_code_and_the_notes_can_be_read(book: Notebook) -> None:
    research = tools(book)
    text, good = call(research, "read_round", round=1)
    assert good and "expected: idea 1" in text and text.count(":0.0") > 20, "more losses than the record shows"
    text, good = call(research, "read_code", round=1)
    assert good and "mlp.py: 23 characters" in text
    text, good = call(research, "read_code", round=0, file="mlp.py")
    assert good and "x = 1" in text and "\x1b" not in text
    text, good = call(research, "read_code", round=1, file="long.py")
    assert good and len(text) < 13_000
    for topic in topics():
        text, good = call(research, "read_notes", topic=topic)
        assert good and len(text) < 6_000
    assert {"matching", "predecoders", "sources", "training"} <= set(topics())


def test_faulty_calls_are_answered_with_the_reason(book: Notebook) -> None:
    research = tools(book)
    for name, arguments, reason in (
        ("read_round", {"round": 7}, "round 7 is not recorded"),
        ("read_round", {}, "round"),
        ("read_code", {"round": 1, "file": "../../secret"}, "no file"),
        ("read_notes", {"topic": "../../../etc/passwd"}, "no note on"),
        ("screen", {"proposal": MLP, "fork_from": [], "share": 0.5}, "not between"),
        ("screen", {"proposal": {"type": "mlp", "mlp": {"hidden": -1}}, "fork_from": [], "share": 0.05}, "hidden"),
        ("screen", {"proposal": MLP, "fork_from": [9], "share": 0.05}, "not forkable"),
        ("write_lesson", {"text": "x", "cites": []}, "1 to 6 cites"),
        ("write_lesson", {"text": "x", "cites": [{"round": 1, "figure": "secret", "value": 1}]}, "figure"),
        ("write_lesson", {"text": "x", "cites": [{"round": 1, "figure": "delta_ler", "value": 5}]}, "not 5"),
    ):
        text, good = call(research, name, **arguments)
        assert not good and reason in text, (name, text)


SYNC = MLP | {"training": {"loop": "sync", "sync": {"ranks": 64}}}


@pytest.mark.parametrize("pins", [{}, {"type": "local"}])
@pytest.mark.parametrize("proposal", ["mlp", ["mlp"], None, 7, SYNC, MLP | {"colour": 1}])
def test_tools_refuse_what_an_answer_may_not_propose(book: Notebook, proposal: Any, pins: dict[str, Any]) -> None:
    """Under pins, too: 64 processes, and values that are no config."""
    research = tools(book, pins=pins)
    for name, more in (("check_proposal", {}), ("screen", {"fork_from": [], "share": 0.05})):
        text, good = call(research, name, proposal=proposal, **more)
        assert not good and text.startswith(name), text
    assert call(research, "screen", proposal=MLP, fork_from=[], share=0.05)[1]


def test_pinned_loop_is_screened(book: Notebook) -> None:
    fake = FakeResearch()
    pinned = tools(book, fake, pins={"training.loop": "sync"})
    assert call(pinned, "screen", proposal=MLP, fork_from=[], share=0.05)[1]
    assert fake.asked[0][0]["training"]["loop"] == "sync", "the user chose it"


def test_screen_shows_an_interval_and_no_time(book: Notebook) -> None:
    fake = FakeResearch()
    text, good = call(tools(book, fake), "screen", proposal=MLP, fork_from=[1], share=0.05)
    assert good and fake.asked == [(MLP, (BRANCH,), 0.05)]
    assert "22 fixed, 12 broken of 5000 shots, delta +2.00e-03 [" in text and "12.5" not in text
    failed = trial(status="compile_error", reason="shapes differ", log="Traceback: mlp.py line 3", val=None)
    text, good = call(tools(book, FakeResearch(result=failed)), "screen", proposal=MLP, fork_from=[], share=0.01)
    assert good and "compile_error: shapes differ" in text and "mlp.py line 3" in text


def test_screens_of_a_round_are_limited(book: Notebook) -> None:
    fake = FakeResearch()
    research = tools(book, fake)
    for _ in range(MAX_SCREENS):
        assert call(research, "screen", proposal=MLP, fork_from=[], share=0.02)[1]
    text, good = call(research, "screen", proposal=MLP, fork_from=[], share=0.02)
    assert not good and "propose the round" in text and len(fake.asked) == MAX_SCREENS


def test_lesson_appears_in_the_next_prompt(book: Notebook) -> None:
    cites = [{"round": 1, "figure": "delta_ler", "value": 1e-3}]
    assert call(tools(book), "write_lesson", text="small nets gain 1.0e-3", cites=cites)[1]
    ideator = LlmIdeator(ScriptedLM([]), notebook=book)
    rows = [row(1, branch=BRANCH), row(2, status="train_error", status_reason="NaN")]
    request = ideator.request(ideator_view(rows, env=ENV, notes=["a note of another run"], sampler=["x" * 300] * 90))
    turn = str(request.rendered_messages()[0].content)
    assert "1. small nets gain 1.0e-3 [r1 delta_ler 0.001]" in turn and "r2: idea 2: train_error: NaN" in turn
    assert "a note of another run" in request.context[0], "it does not compete with the state of the run"


def test_only_available_tools_are_offered() -> None:
    names = [one.name for one in offered_tools(None, None)]
    assert names == ["query_history", "diff", "check_proposal", "read_notes"]
    text, good = IdeatorTools(ideator_view()).run(ToolCall(id="1", name="screen", input={}))
    assert not good and "unknown tool" in text


def test_screen_and_lesson_over_the_api(book: Notebook) -> None:
    """The tools as the Messages API carries them, with every turn in the transcript."""
    turns: list[dict[str, Any]] = []
    cites = [{"round": 1, "figure": "delta_ler", "value": 1e-3}]
    answer = {"hypothesis": "h", "slug": "s", "fork_from": [], "proposal": MLP}
    with MessagesServer(key="none") as server:
        server.script(
            use_tool("screen", {"proposal": MLP, "fork_from": [], "share": 0.02}, call_id="a"),
            use_tool("write_lesson", {"text": "it gains 1e-3", "cites": cites}, call_id="b"),
            say_json(answer),
        )
        lm = AnthropicLM("claude-opus-5-5", base_url=server.url, max_retries=0)
        ideator = LlmIdeator(lm, FakeResearch(), book, on_turn=turns.append)
        assert ideator(ideator_view([row(1, branch=BRANCH)], env=ENV, baseline_config=MLP)) is not None
        assert [one["name"] for one in server.requests[0]["tools"]][-2:] == ["screen", "write_lesson"]
        results = [request["messages"][-1]["content"][0] for request in server.requests[1:]]
    assert "22 fixed, 12 broken" in results[0]["content"] and "noted as lesson 1" in results[1]["content"]
    assert [set(turn) - {"role"} for turn in turns] == [{"text", "tool_calls"}, {"tool_results", "failed"}] * 2 + [
        {"text", "tool_calls"}
    ]
    assert turns[0]["tool_calls"][0]["name"] == "screen" and "noted as lesson" in turns[3]["tool_results"]["b"]


@pytest.mark.parametrize("use_tools", [True, False])
def test_prompt_names_only_tools_that_are_offered(book: Notebook, use_tools: bool) -> None:
    lm = ScriptedLM([])
    lm.supports_tools = use_tools
    request = LlmIdeator(lm, notebook=book).request(ideator_view(env=ENV))
    assert [one.name for one in request.tools if one.name == "write_lesson"] == ["write_lesson"] * use_tools
    assert ("write_lesson" in "\n".join(request.system)) == use_tools


def test_tools_answer_from_the_view() -> None:
    rows = [row(1, dsl_config=MLP), row(2, dsl_config=GNN, verify_verdict="FAILED")]
    expensive = FakeResearch(cost=lambda dsl: {"n_params": 5_000_000, "flops_per_syndrome": 10})
    tools = IdeatorTools(ideator_view(rows, env=ENV), expensive)
    text, good = tools.run(ToolCall(id="1", name="diff", input={"one": 1, "other": 2}))
    assert good and "type: mlp -> gnn" in text
    text, good = tools.run(ToolCall(id="1", name="query_history", input={"verdict": "FAILED"}))
    assert good and "r2;" in text and "r1;" not in text
    text, good = tools.run(ToolCall(id="1", name="check_proposal", input={"proposal": MLP}))
    assert good and "equivalent to round 1" in text and "exceeds the limit max_params" in text
    again = {**MLP, "training": {**MLP.get("training", {}), "loop": "minibatch_eval"}}
    text, _ = tools.run(ToolCall(id="1", name="check_proposal", input={"proposal": again}))
    assert "equivalent to round 1" in text
    for wrong in ({"one": 1}, {"one": 1, "other": 7}, {"one": "x", "other": 1}):
        assert tools.run(ToolCall(id="1", name="diff", input=wrong))[1] is False
