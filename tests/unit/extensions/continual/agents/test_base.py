"""Agents over a language model and a memory."""

from __future__ import annotations

import json

import pytest
from pydantic import ValidationError

from autoqec.errors import UsageError
from autoqec.extensions.continual.agents.base import (
    HistoryAgent,
    HistoryAgentConfig,
    MemoryAgent,
    MemoryAgentConfig,
    MemorylessAgent,
    MemorylessAgentConfig,
    ReflectionConfig,
    ReflexionAgent,
    ReflexionAgentConfig,
    fill_template,
)
from autoqec.extensions.continual.agents.cheatsheet import (
    CodeExecutionService,
    DynamicCheatsheetAgent,
    DynamicCheatsheetAgentConfig,
    run_sandboxed,
)
from autoqec.extensions.continual.agents.registry import AGENTS, build_agent, parse_agent_config
from autoqec.extensions.continual.memory.base import Entry, ExperienceEntry, ReflectionEntry
from autoqec.extensions.continual.memory.modules import CheatsheetConfig, HybridConfig, build_memory
from autoqec.system import sandbox
from tests.support.models import FunctionModel, replies

GOOD = {"correct": True, "target": "4", "message": "exact-match"}


def episode(agent, *observations):
    """Play one step per observation; the next observation follows each action."""
    agent.reset()
    for number, obs in enumerate(observations):
        agent.act(obs)
        after = observations[number + 1] if number + 1 < len(observations) else None
        agent.observe(after, GOOD, after is None)
    agent.end_episode()


def memory_agent(lm=None, **config):
    return MemoryAgent(MemoryAgentConfig(**config), lm or replies("4"))


def test_eval_mode_ends_also_after_an_exception():
    agent = memory_agent()
    with pytest.raises(ZeroDivisionError), agent.eval_mode():
        assert not agent.training
        raise ZeroDivisionError
    assert agent.training
    episode(agent, "2+2?")
    assert len(agent.memory.recall()) == 1


def test_base_memory_agent_works_without_a_subclass():
    agent = memory_agent()
    episode(agent, "2+2?")
    assert agent.memory.recall() == [ExperienceEntry(obs="2+2?", action="4", feedback=GOOD)]


def test_observe_before_act_changes_nothing():
    agent = memory_agent()
    agent.observe("x", GOOD, False)
    agent.act("2+2?")
    agent.observe(None, GOOD, True)
    agent.observe(None, GOOD, True)
    assert len(agent.memory.recall()) == 1 and len(agent._trajectory) == 1


def test_experience_holds_the_observation_that_was_acted_on():
    agent = memory_agent()
    episode(agent, "first", "second", "third")
    assert [entry.obs for entry in agent.memory.recall()] == ["first", "second", "third"]


@pytest.mark.parametrize(
    ("k", "shown"), [(0, []), (1, ["c"]), (2, ["b", "c"]), (None, ["a", "b", "c"]), (9, list("abc"))]
)
def test_prompt_has_at_most_history_k_entries(k, shown):
    lm = replies("x")
    agent = memory_agent(lm, history_k=k)
    episode(agent, "a", "b", "c")
    lm.calls.clear()
    agent.act("now")
    lines = lm.calls[0][1].splitlines()
    assert [line[3] for line in lines[:-1]] == list(shown)
    assert lines[-1] == "Q: now"


def test_history_agent_writes_typed_lines():
    lm = replies("4")
    agent = HistoryAgent(HistoryAgentConfig(), lm)
    episode(agent, "2+2?")
    feedback = '{"correct":true,"message":"exact-match","target":"4"}'
    assert agent.memory.recall() == [
        Entry(type="Observation", content="2+2?"),
        Entry(type="Action", content="4"),
        Entry(type="Feedback", content=feedback),
    ]
    agent.act("3+1?")
    assert lm.calls[-1] == (
        "You are a helpful assistant. Use prior history when useful.",
        f"Observation: 2+2?\nAction: 4\nFeedback: {feedback}\nObservation: 3+1?",
    )
    configured = HistoryAgent(HistoryAgentConfig(system_prompt="Be brief."), lm)
    configured.act("x")
    assert lm.calls[-1] == ("Be brief.", "Observation: x")


def test_default_prompt_is_minimal_question_answering():
    lm = replies("4")
    agent = memory_agent(lm)
    episode(agent, "2+2?")
    agent.act("3+1?")
    assert lm.calls[-1] == (
        "You are a helpful QA assistant. Use prior history when useful.",
        'Q: 2+2? A: 4 F: {"correct":true,"message":"exact-match","target":"4"}\nQ: 3+1?',
    )
    MemorylessAgent(MemorylessAgentConfig(), lm).act("3+1?")
    assert lm.calls[-1] == ("You are a helpful QA assistant. Use prior history when useful.", "Q: 3+1?")


def reflexion(lm, **config):
    return ReflexionAgent(ReflexionAgentConfig(reflection_config=ReflectionConfig(**config)), lm)


@pytest.mark.parametrize(
    ("config", "calls"),
    [({}, 1), ({"mode": "per_step"}, 3), ({"mode": "both"}, 4), ({"enabled": False}, 0)],
)
def test_reflection_mode_decides_when_the_agent_reflects(config, calls):
    lm = replies("text")
    agent = reflexion(lm, **config)
    episode(agent, "a", "b", "c")
    assert len(lm.calls) == 3 + calls
    reflections = [entry for entry in agent.memory.recall() if isinstance(entry, ReflectionEntry)]
    assert len(reflections) == calls
    lm.calls.clear()
    with agent.eval_mode():
        episode(agent.clone_for_episode(), "a", "b")
    assert len(lm.calls) == 2


def test_per_step_reflection_precedes_storing_the_experience():
    agent = reflexion(replies("x"), mode="per_step")
    episode(agent, "a")
    assert [entry.type for entry in agent.memory.recall()] == ["reflection", "experience"]


def test_failing_model_loses_only_the_reflection():
    def answer(system, user):
        if "look back" in system:
            raise TimeoutError("slow")
        return "4"

    agent = reflexion(FunctionModel(answer))
    episode(agent, "a", "b")
    assert [entry.type for entry in agent.memory.recall()] == ["experience", "experience"]


def test_prompt_and_budget_of_a_reflection():
    lm = replies("4", "r" * 100)
    agent = reflexion(lm, max_tokens=5, system_prompt="Reflect.")
    episode(agent, "a")
    system, user = lm.calls[1]
    assert system == "Reflect. Use at most 5 tokens."
    assert user.startswith("Step 1: Q: a A: 4 F: ")
    assert agent.memory.recall()[-1] == ReflectionEntry(content="r" * 20)


def sheet_agent(lm, run_code=None, **config):
    return DynamicCheatsheetAgent(DynamicCheatsheetAgentConfig(**config), lm, run_code=run_code)


def test_two_calls_per_step_in_training_and_one_in_evaluation():
    lm = replies("<cheatsheet>learned</cheatsheet>")
    agent = sheet_agent(lm)
    episode(agent, "a", "b")
    assert len(lm.calls) == 4
    assert agent.hybrid.get_cheatsheet() == "learned"
    assert [entry.obs for entry in agent.hybrid.experiences.recall()] == ["a", "b"]
    before = agent.memory.snapshot()
    with agent.eval_mode():
        episode(agent.clone_for_episode(), "c", "d")
    assert len(lm.calls) == 6
    assert agent.memory.snapshot() == before


def test_prompt_contains_cheatsheet_examples_and_recent_steps():
    lm = replies("x")
    agent = sheet_agent(
        lm, retrieve_top_k=1, history_k=2, generator_template="{cheatsheet}|{examples}|{history}|{question}"
    )
    agent.hybrid.set_cheatsheet("use {question} with care")
    for obs in ("surface code", "torus", "honeycomb"):
        agent.memory.update(ExperienceEntry(obs=obs, action="a", feedback={}))
    agent.eval()
    agent.act("surface")
    assert lm.calls[0][1] == (
        "use {question} with care|Q: surface code A: a F: {}|Q: torus A: a F: {}\nQ: honeycomb A: a F: {}|surface"
    )
    other = sheet_agent(lm, use_retrieval=False)
    other.memory.update(ExperienceEntry(obs="surface code", action="a", feedback={}))
    other.eval()
    other.act("surface")
    assert "Like cases:\n(none)" in lm.calls[1][1]


@pytest.mark.parametrize("bad", ["nothing", "<edits>[{}]</edits>", "<cheatsheet>x</cheatsheet>"])
def test_malformed_curation_keeps_the_old_cheatsheet(bad):
    agent = sheet_agent(replies("4", bad), memory_config=HybridConfig(cheatsheet=CheatsheetConfig(min_keep=0.5)))
    agent.hybrid.set_cheatsheet("a long sheet that is worth its while")
    assert agent.act("q") == "4"
    assert agent.hybrid.cheatsheet.versions() == ["a long sheet that is worth its while"]


def test_failing_curator_does_not_end_the_step():
    def answer(system, user):
        if "curate" in system:
            raise TimeoutError("slow")
        return "4"

    agent = sheet_agent(FunctionModel(answer))
    episode(agent, "q")
    assert agent.hybrid.get_cheatsheet() == ""


def test_long_cheatsheet_is_compacted_at_the_end_of_an_episode():
    lm = replies("4", "<cheatsheet>" + "x" * 50 + "</cheatsheet>", "<cheatsheet>short</cheatsheet>")
    agent = sheet_agent(lm, compact_above=20)
    episode(agent, "q")
    assert len(lm.calls) == 3
    assert agent.hybrid.cheatsheet.versions() == ["x" * 50, "short"]


CODE = "Let me see.\n```python\nprint(6 * 7)\n```\nEXECUTE CODE!\nSo that."


def test_execution_flag_is_kept_if_execution_is_disabled():
    agent = sheet_agent(replies(CODE), run_code=lambda code, timeout: "never", use_code_execution=False)
    assert agent.act("q") == CODE


def test_execution_flag_is_replaced_by_the_result():
    calls = []

    def run(code, timeout):
        calls.append((code, timeout))
        return "42"

    agent = sheet_agent(replies(CODE), run_code=run, use_code_execution=True, code_timeout_sec=3)
    answer = agent.act("q")
    assert calls == [("print(6 * 7)\n", 3.0)]
    assert "EXECUTE CODE!" not in answer
    assert answer.endswith("Output:\n```\n42\n```\nSo that.")
    assert CodeExecutionService(run).execute_blocks("no code here EXECUTE CODE!") == "no code here EXECUTE CODE!"


def test_generation_continues_after_executed_code():
    lm = replies("```python\n6\n```\nEXECUTE CODE!", "```python\n7\n```\nEXECUTE CODE!", "The answer is 42.")
    options = {"run_code": lambda code, timeout: f"<{code.strip()}>", "use_code_execution": True}
    agent = sheet_agent(lm, max_generation_rounds=5, **options)
    agent.training = False
    answer = agent.act("q")
    assert answer.index("<6>") < answer.index("<7>") < answer.index("The answer is 42.")
    prompts = [user for _, user in lm.calls]
    assert len(prompts) == 3 and "<6>" in prompts[1] and "<7>" in prompts[2] and prompts[0] in prompts[2]


def test_generation_ends_at_its_limit():
    lm = replies(CODE)
    agent = sheet_agent(lm, lambda code, timeout: "more", use_code_execution=True, max_generation_rounds=2)
    agent.training = False
    assert agent.act("q").count("more") == 2 and len(lm.calls) == 2
    with pytest.raises(ValidationError, match="needs `use_code_execution`"):
        DynamicCheatsheetAgentConfig(max_generation_rounds=2)


def test_registry_builds_every_agent_and_lists_them():
    classes = (MemorylessAgent, MemoryAgent, HistoryAgent, ReflexionAgent, DynamicCheatsheetAgent)
    assert list(AGENTS) == [
        "memoryless_agent",
        "memory_agent",
        "history_agent",
        "reflexion_agent",
        "dynamic_cheatsheet_agent",
    ]
    for (kind, (config, _)), agent in zip(AGENTS.items(), classes, strict=True):
        built = build_agent(parse_agent_config({"type": kind}), replies("x"))
        assert type(built) is agent and type(built.config) is config and built.config.type == kind
    with pytest.raises(UsageError, match=r"unknown agent type 'nope'.*history_agent, reflexion_agent"):
        parse_agent_config({"type": "nope"})
    with pytest.raises(UsageError, match=r"unknown agent type 'nope'.*history_agent, reflexion_agent"):
        build_agent(MemoryAgentConfig().model_copy(update={"type": "nope"}), replies("x"))
    with pytest.raises(UsageError, match="no `type`"):
        parse_agent_config({})
    with pytest.raises(UsageError, match="histroy_k"):
        parse_agent_config({"type": "history_agent", "histroy_k": 3})
    with pytest.raises(UsageError, match="unknown memory type"):
        parse_agent_config({"type": "history_agent", "memory_config": {"_type": "nope"}})


def test_agent_refuses_a_memory_it_cannot_write_to():
    config = parse_agent_config({"type": "history_agent", "memory_config": {"_type": "cheatsheet"}})
    with pytest.raises(UsageError, match="cheatsheet"):
        build_agent(config, replies("x"))
    with pytest.raises(UsageError, match="hybrid"):
        build_agent(DynamicCheatsheetAgentConfig(), replies("x"), memory=build_memory({"type": "history_list"}))


def test_clones_share_memory_and_model_but_not_the_episode():
    agent = memory_agent()
    agent.reset()
    agent.act("open")
    first_clone, second_clone = agent.clone_for_episode(), agent.clone_for_episode()
    assert first_clone.lm is agent.lm and first_clone.memory is agent.memory and not first_clone.training
    assert (
        first_clone._trajectory is not second_clone._trajectory
        and first_clone._episode_entries is not second_clone._episode_entries
    )
    first_clone.act("x")
    assert second_clone._last_action is None and agent._last_obs == "open"
    apart = agent.clone_for_episode(training=True, share_memory=False)
    episode(apart, "y")
    assert len(apart.memory.recall()) == 1 and agent.memory.recall() == []


def test_evaluation_episode_sees_only_its_own_steps():
    lm = replies("4")
    agent = memory_agent(lm)
    episode(agent, "trained")
    with agent.eval_mode():
        clone = agent.clone_for_episode()
        episode(clone, "a", "b")
        assert [line[:4] for line in lm.calls[-1][1].splitlines()] == ["Q: t", "Q: a", "Q: b"]
        clone.reset()
        clone.act("c")
    assert [line[:4] for line in lm.calls[-1][1].splitlines()] == ["Q: t", "Q: c"]


def test_every_call_is_reported_including_failed_ones():
    def answer(system, user):
        if "curate" in system:
            raise TimeoutError("slow")
        return "4"

    agent = sheet_agent(FunctionModel(answer))
    records = []
    agent.on_call = records.append
    agent.act("q")
    assert [record["kind"] for record in records] == ["actions", "reflections"]
    assert records[0]["output"] == "4" and records[0]["user_prompt"].endswith("Q: q")
    assert records[1]["output"] is None and records[1]["error"] == "TimeoutError: slow"
    assert json.dumps(records)


def test_fill_replaces_names_once_and_leaves_other_braces():
    assert fill_template('{"a": {x}} {y} {z}', x="{y}", y="2") == '{"a": {y}} 2 {z}'


SANDBOX = pytest.mark.skipif(sandbox.probe() == "none", reason=f"no sandbox backend; install: {sandbox.INSTALL}")


@SANDBOX
def test_code_runs_in_the_sandbox_and_its_output_is_returned():
    assert run_sandboxed("print(6 * 7)", 20) == "42"
    assert "exit status 3" in run_sandboxed("import sys; sys.exit(3)", 20)


@SANDBOX
def test_timeout_kills_the_child_and_is_reported():
    answer = run_sandboxed("import time\nprint('begun', flush=True)\ntime.sleep(600)", 1.5)
    assert "begun" in answer and "killed: wall clock" in answer


@SANDBOX
def test_code_has_no_network_and_no_files(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("the secret")
    assert "the secret" not in run_sandboxed(f"print(open({str(secret)!r}).read())", 20)
    assert "Error" in run_sandboxed(f"open({str(tmp_path / 'new')!r}, 'w')", 20)
    assert not (tmp_path / "new").exists()
    answer = run_sandboxed("import socket\nsocket.create_connection(('127.0.0.1', 9), 2)\nprint('through')", 20)
    assert "through" not in answer


@SANDBOX
def test_no_key_reaches_the_code(monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-not-for-you")
    assert "not-for-you" not in run_sandboxed("import os\nprint(dict(os.environ))", 20)
