"""Options of the language models: stored with the run, inherited by a resume, checked before a run exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoqec.contracts.run_spec import RunSpec
from autoqec.errors import ContractError, UsageError
from autoqec.extensions.continual.runtime.run_memory import CrossRunMemory
from autoqec.extensions.language_models.clients.errors import LlmAuthError
from autoqec.extensions.language_models.clients.prices import price_list
from autoqec.extensions.language_models.plugin import ROLES, ModelOptions, plugin
from autoqec.orchestrator.roles import search
from autoqec.orchestrator.run import Roles, Run
from autoqec.orchestrator.run_checks import check
from autoqec.orchestrator.run_options import request_run
from autoqec.store.layout import RunLayout
from tests.conftest import Workspace
from tests.support import rounds

LLM = {"ideator": "llm", "model": "claude-sonnet-5-5", "effort": "high", "budget": "usd=2,hours=1", "rounds": 2,
       "open_modules": True, "profile": "smoke"}  # fmt: skip


@pytest.fixture
def in_workspace(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(workspace.root)
    for role in ROLES["llm"]:
        for name in ("BACKEND", "MODEL", "BASE_URL"):
            monkeypatch.delenv(f"AUTOQEC_{role.upper()}_{name}", raising=False)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-nothing")
    return workspace


def options(resume: str | None = None, **given: object) -> ModelOptions:
    """Return the options as they are stored, after their check."""
    return plugin.check(request_run(None if resume else "env.yaml", given, resume))


def started(**given: object) -> str:
    with Run.create(check(request_run("env.yaml", given)), Roles(search("tpe"))) as run:
        return run.layout.run_id


def model_of(found: ModelOptions, role: str) -> str:
    return found.config(role).resolved_model()


def test_resume_inherits_the_models(in_workspace: Workspace) -> None:
    found = options(started(**LLM))
    assert found.open_modules and set(found.models) == set(ROLES["llm"])
    for role in ROLES["llm"]:
        assert (model_of(found, role), found.config(role).effort) == ("claude-sonnet-5-5", "high")


def test_variable_of_the_key_is_that_of_the_machine_that_resumes(
    in_workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FIRST_KEY", "SECOND_KEY"):
        monkeypatch.setenv(name, "of-a-gateway-0123")
    monkeypatch.setenv("AUTOQEC_CODER_API_KEY_ENV", "FIRST_KEY")
    run_id = started(**LLM)
    assert options(run_id).config("coder").api_key_env == "FIRST_KEY"
    monkeypatch.setenv("AUTOQEC_CODER_API_KEY_ENV", "SECOND_KEY")
    assert options(run_id).config("coder").api_key_env == "SECOND_KEY"


def test_resume_uses_the_model_of_the_start_despite_the_environment(
    in_workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOQEC_CODER_MODEL", "claude-haiku-5-5")
    run_id = started(**LLM)
    monkeypatch.setenv("AUTOQEC_CODER_MODEL", "claude-fable-5-2")
    found = options(run_id)
    assert (model_of(found, "coder"), model_of(found, "ideator")) == ("claude-haiku-5-5", "claude-sonnet-5-5")


def test_given_option_replaces_only_its_setting(in_workspace: Workspace) -> None:
    run_id = started(**LLM)
    changed = options(run_id, open_modules=False)
    assert not changed.open_modules and model_of(changed, "analyst") == "claude-sonnet-5-5"
    other = options(run_id, model="claude-opus-5-5")
    assert {model_of(other, role) for role in ROLES["llm"]} == {"claude-opus-5-5"}


def test_replayed_run_is_resumed_from_its_cassette(in_workspace: Workspace, tmp_path: Path) -> None:
    recorded = tmp_path / "recorded.jsonl"
    recorded.write_text("", encoding="utf-8")
    run_id = started(**LLM, cassette=recorded)
    layout = RunLayout(in_workspace.root, run_id)
    layout.cassette.write_text("", encoding="utf-8")  # as the first start copies it
    recorded.unlink()
    assert options(run_id).tape == layout.cassette
    assert options(run_id, model="claude-opus-5-5").tape is None


def test_a_price_makes_a_dollar_budget_possible_and_belongs_to_the_run(
    in_workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOQEC_IDEATOR_BASE_URL", "http://127.0.0.1:9")
    given = {"ideator": "hybrid", "model": "claude-of-this-test", "budget": "usd=2", "profile": "smoke"}
    with pytest.raises(UsageError, match="no price is known") as raised:
        options(**given)
    assert "--price" in str(raised.value.hint)
    run_id = started(**given, price="in=3,out=15")
    stored = {"input": 3.0, "output": 15.0, "cache_read": 3.0}
    assert options(run_id).models["ideator"].price == stored
    changed = options(run_id, price="in=4,out=15", effort="low").models["analyst"]
    assert changed.price == {**stored, "input": 4.0, "cache_read": 4.0}
    assert (changed.effort, changed.model) == ("low", "claude-of-this-test")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"model": "claude-opus-5-5"}, "calls no language model"),
        ({"ideator": "random", "budget": "usd=1"}, "calls no language model"),
        ({"price": "in=3,out=15"}, "calls no language model"),
        ({"ideator": "llm", "no_llm": True}, "calls a language model"),
        ({"ideator": "hybrid", "open_modules": True}, "no code is edited"),
        ({"ideator": "llm", "model": "mistral-large"}, "no backend"),
        ({"ideator": "llm", "cassette": "nowhere.jsonl"}, "does not exist"),
        ({"ideator": "policy", "ideator_memory": "ep_000001"}, "needs a language model"),
        ({"ideator": "random", "analyst_memory": "ep_000001"}, "needs a language model"),
        ({"ideator": "llm", "ideator_memory": "nowhere/ep_000001"}, "checkpoint"),
        ({"memory": "nowhere/memory.jsonl"}, "a memory cannot be stored here"),
    ],
)
def test_invalid_choice_is_refused_before_a_run_exists(
    in_workspace: Workspace, given: dict[str, object], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        options(**given)


def test_file_that_is_no_cassette_is_refused(in_workspace: Workspace, tmp_path: Path) -> None:
    (tmp_path / "history.jsonl").write_text('{"round": 1}\n', encoding="utf-8")
    with pytest.raises(ContractError, match="not a recorded call"):
        options(ideator="llm", cassette=tmp_path / "history.jsonl")


def test_missing_key_is_reported(in_workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with pytest.raises(LlmAuthError, match="no key"):
        options(ideator="llm")


def test_rounds_are_added_once_to_the_memory_file_of_the_workspace(
    in_workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    (in_workspace.root / "below").mkdir()
    monkeypatch.chdir(in_workspace.root / "below")
    request = request_run("../env.yaml", {"memory": "../memory.jsonl", "profile": "smoke"})
    assert ModelOptions.of(request.spec).memory == "memory.jsonl"
    with Run.create(check(request), Roles(search("tpe"))) as run:
        run.layout.round(1).dir.mkdir()
        run.memory.history.append_row(rounds.row(1, dsl_config={"type": "mlp", "mlp": {"hidden": 8}}))
        assert plugin.finish(run) == "1 round added to memory.jsonl" and plugin.finish(run) is None
    assert len(CrossRunMemory(in_workspace.root / "memory.jsonl")) == 1


def test_run_of_another_ideator_has_no_models(in_workspace: Workspace) -> None:
    assert options() == ModelOptions() and list(plugin.plan(request_run("env.yaml", {}))) == []
    assert ModelOptions.of(RunSpec()).models == {}


def test_dry_run_shows_models_and_budget(in_workspace: Workspace) -> None:
    run_id = started(**LLM)
    result = in_workspace.autoqec("run", "--resume", run_id, "--dry-run", ANTHROPIC_API_KEY="sk-ant-nothing")
    assert result.code == 0, result.err
    assert "claude-sonnet-5-5 through anthropic, effort high" in result.out and "usd 2" in result.out
    price = price_list().models["claude-sonnet-5-5"]
    assert f"${price.input:g} in and ${price.output:g} out per million tokens (as of 20" in result.out
    assert "at most 600 s per call" in result.out and "calls of a round take at most 1800 s" in result.out
    assert "sent      the env; configs, figures" in result.out and "never the secret" in result.out
    assert "none in dollars" not in result.out
    free = in_workspace.autoqec("run", "env.yaml", "--ideator", "llm", "--model", "scripted:expert", "--dry-run")
    assert "scripted:expert through scripted, free" in free.out and "none in dollars or tokens" in free.out
