"""Tools that read rounds, code and notes, screen proposals and keep lessons: bounded, safe, offered if available."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autoqec.contracts.dsl import PredecoderDSL
from autoqec.contracts.round import PairedCounts, Trial
from autoqec.extensions.language_models.clients.anthropic_client import AnthropicLM
from autoqec.extensions.language_models.clients.base import ToolCall
from autoqec.extensions.language_models.clients.scripted import ScriptedLM
from autoqec.extensions.language_models.roles import literature
from autoqec.extensions.language_models.roles.ideator import LlmIdeator
from autoqec.extensions.language_models.roles.notebook import Notebook
from autoqec.extensions.language_models.roles.research_tools import MAX_SCREENS, ResearchSources, ResearchTools
from autoqec.extensions.language_models.roles.run_record import RoundEvidence
from tests.support.messages_server import MessagesServer, say_json, use_tool
from tests.support.role_views import ideator_view
from tests.unit.extensions.language_models.roles.test_roles import ENV
from tests.unit.extensions.language_models.roles.test_run_record import row

MLP = PredecoderDSL.model_validate({"type": "mlp", "mlp": {"hidden": 16, "depth": 1}}).config()
BRANCH = "exp/r/01-x"
COUNTS = PairedCounts(shots=5_000, errors_reference=80, errors_candidate=70, fixed=22, broken=12)


def trial(**more: Any) -> Trial:
    fields = {
        "key": "k", "kind": "screen", "round": 2, "round_attempt_id": "a", "share": 0.05, "status": "ok", "val": COUNTS,
        "n_params": 100, "flops_per_syndrome": 200, "train_shots": 6000, "seconds": 12.5, "at": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    return Trial.model_validate(fields | more)


def tools(tmp_path: Path, result: Trial | None = None, asked: list[Any] | None = None) -> ResearchTools:
    def screen(config: dict[str, Any], branches: tuple[str, ...], share: float) -> Trial:
        if asked is not None:
            asked.append((config, branches, share))
        return result or trial()

    evidence = RoundEvidence(curves={"edge labels": [(number, 1.0 / number) for number in range(1, 200)]})
    modules = {"mlp.py": "import torch\n\x1b[2Jx = 1\n", "long.py": "y" * 100_000}
    sources = ResearchSources(
        lambda number: evidence, lambda branch: modules if branch in (BRANCH, "") else {}, screen,
        Notebook(tmp_path / "notebook.jsonl"),
    )  # fmt: skip
    return ResearchTools(ideator_view([row(1, branch=BRANCH)], baseline_config=MLP), None, sources)


def call(research: ResearchTools, name: str, **arguments: Any) -> tuple[str, bool]:
    return research.run(ToolCall(id="1", name=name, input=arguments))


def test_round_its_code_and_the_notes_can_be_read(tmp_path: Path) -> None:
    research = tools(tmp_path)
    text, good = call(research, "read_round", round=1)
    assert good and "expected: idea 1" in text and text.count(":0.0") > 20, "more losses than the record shows"
    text, good = call(research, "read_code", round=1)
    assert good and "mlp.py: 23 characters" in text
    text, good = call(research, "read_code", round=0, file="mlp.py")
    assert good and "x = 1" in text and "\x1b" not in text
    text, good = call(research, "read_code", round=1, file="long.py")
    assert good and len(text) < 13_000
    for topic in literature.topics():
        text, good = call(research, "read_notes", topic=topic)
        assert good and len(text) < 6_000
    assert {"matching", "predecoders", "sources", "training"} <= set(literature.topics())


def test_faulty_calls_are_answered_with_the_reason(tmp_path: Path) -> None:
    research = tools(tmp_path)
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
def test_tools_refuse_what_an_answer_may_not_propose(proposal: Any, pins: dict[str, Any]) -> None:
    """Under pins, too: 64 processes, and values that are no config."""
    view = ideator_view([row(1, branch=BRANCH)], baseline_config=MLP, pins=pins)
    research = ResearchTools(view, None, ResearchSources(screen=lambda config, branches, share: trial()))
    for name, more in (("check_proposal", {}), ("screen", {"fork_from": [], "share": 0.05})):
        text, good = call(research, name, proposal=proposal, **more)
        assert not good and text.startswith(name), text
    assert call(research, "screen", proposal=MLP, fork_from=[], share=0.05)[1]


def test_pinned_loop_is_screened() -> None:
    pins, asked = {"training.loop": "sync"}, list[dict[str, Any]]()
    view = ideator_view([row(1, branch=BRANCH)], baseline_config=MLP, pins=pins)

    def screen(config: dict[str, Any], branches: tuple[str, ...], share: float) -> Trial:
        asked.append(config)
        return trial()

    assert call(ResearchTools(view, None, ResearchSources(screen=screen)), "screen", proposal=MLP, fork_from=[],
                share=0.05)[1]  # fmt: skip
    assert asked[0]["training"]["loop"] == "sync", "the user chose it"


def test_screen_shows_an_interval_and_no_time(tmp_path: Path) -> None:
    asked: list[Any] = []
    text, good = call(tools(tmp_path, asked=asked), "screen", proposal=MLP, fork_from=[1], share=0.05)
    assert good and asked == [(MLP, (BRANCH,), 0.05)]
    assert "22 fixed, 12 broken of 5000 shots, delta +2.00e-03 [" in text and "12.5" not in text
    failed = trial(status="compile_error", reason="shapes differ", log="Traceback: mlp.py line 3", val=None)
    text, good = call(tools(tmp_path, failed), "screen", proposal=MLP, fork_from=[], share=0.01)
    assert good and "compile_error: shapes differ" in text and "mlp.py line 3" in text


def test_screens_of_a_round_are_limited(tmp_path: Path) -> None:
    asked: list[Any] = []
    research = tools(tmp_path, asked=asked)
    for _ in range(MAX_SCREENS):
        assert call(research, "screen", proposal=MLP, fork_from=[], share=0.02)[1]
    text, good = call(research, "screen", proposal=MLP, fork_from=[], share=0.02)
    assert not good and "propose the round" in text and len(asked) == MAX_SCREENS


def test_lesson_appears_in_the_next_prompt(tmp_path: Path) -> None:
    cites = [{"round": 1, "figure": "delta_ler", "value": 1e-3}]
    assert call(tools(tmp_path), "write_lesson", text="small nets gain 1.0e-3", cites=cites)[1]
    ideator = LlmIdeator(ScriptedLM([]), notebook=Notebook(tmp_path / "notebook.jsonl"))
    rows = [row(1, branch=BRANCH), row(2, status="train_error", status_reason="NaN")]
    request = ideator.request(ideator_view(rows, env=ENV, notes=["a note of another run"], sampler=["x" * 300] * 90))
    turn = str(request.rendered_messages()[0].content)
    assert "1. small nets gain 1.0e-3 [r1 delta_ler 0.001]" in turn and "r2: idea 2: train_error: NaN" in turn
    assert "a note of another run" in request.context[0], "it does not compete with the state of the run"


def test_only_available_tools_are_offered(tmp_path: Path) -> None:
    names = [one.name for one in ResearchSources().tools()]
    assert names == ["query_history", "diff", "check_proposal", "read_notes"]
    text, good = ResearchTools(ideator_view(), None, ResearchSources()).run(ToolCall(id="1", name="screen", input={}))
    assert not good and "unknown tool" in text


def test_screen_and_lesson_over_the_api(tmp_path: Path) -> None:
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
        ideator = LlmIdeator(
            lm, screen=lambda *arguments: trial(), notebook=Notebook(tmp_path / "notebook.jsonl"), on_turn=turns.append
        )
        assert ideator(ideator_view([row(1, branch=BRANCH)], env=ENV, baseline_config=MLP)) is not None
        assert [one["name"] for one in server.requests[0]["tools"]][-2:] == ["screen", "write_lesson"]
        results = [request["messages"][-1]["content"][0] for request in server.requests[1:]]
    assert "22 fixed, 12 broken" in results[0]["content"] and "noted as lesson 1" in results[1]["content"]
    assert [set(turn) - {"role"} for turn in turns] == [{"text", "tool_calls"}, {"tool_results", "failed"}] * 2 + [
        {"text", "tool_calls"}
    ]
    assert turns[0]["tool_calls"][0]["name"] == "screen" and "noted as lesson" in turns[3]["tool_results"]["b"]


@pytest.mark.parametrize("use_tools", [True, False])
def test_prompt_names_only_tools_that_are_offered(tmp_path: Path, use_tools: bool) -> None:
    notebook = Notebook(tmp_path / "notebook.jsonl")
    lm = ScriptedLM([])
    lm.supports_tools = use_tools
    request = LlmIdeator(lm, notebook=notebook).request(ideator_view(env=ENV))
    assert [one.name for one in request.tools if one.name == "write_lesson"] == ["write_lesson"] * use_tools
    assert ("write_lesson" in "\n".join(request.system)) == use_tools
