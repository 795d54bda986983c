"""Settings of a run: stored in run.json, inherited by `--resume`, replaced by given options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.core import ParameterSource

from autoqec.cli.commands.run import command as run_cli_command
from autoqec.errors import UsageError
from autoqec.extensions.language_models.clients.prices import price_list
from autoqec.launch.options import RunOptions, parse_run_options
from autoqec.orchestrator.run import Roles, search, start_run
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from tests.conftest import Workspace
from tests.support.clusters import fake_slurm

ROLES = ("ideator", "coder", "analyst")


def parse(*argv: str) -> RunOptions:
    """Return the options of a command line as click parses them."""
    context = run_cli_command.make_context("run", list(argv))
    chosen = {name: value for name, value in context.params.items() if name not in ("as_json", "quiet", "verbose")}
    explicit = {name for name in chosen if context.get_parameter_source(name) is not ParameterSource.DEFAULT}
    env_name = chosen.pop("env_name")
    return parse_run_options(env_name, explicit - {"env_name"}, **chosen)


def open_run(workspace: Workspace, options: RunOptions, ideator: str = "llm") -> str:
    roles = Roles(search("tpe"))
    with start_run(
        workspace.root / "env.yaml",
        workspace.root,
        "smoke",
        1,
        ideator,
        roles=roles,
        settings=options.settings,
        scale=options.scale,
    ) as run:
        return run.layout.run_id


@pytest.fixture
def in_workspace(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(workspace.root)
    for role in ROLES:
        for name in ("BACKEND", "MODEL", "BASE_URL"):
            monkeypatch.delenv(f"AUTOQEC_{role.upper()}_{name}", raising=False)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-ant-nothing")
    return workspace


LLM = ("env.yaml", "--ideator", "llm", "--model", "claude-sonnet-5-5", "--effort", "high", "--budget", "usd=2,hours=1",
       "--rounds", "2", "--open-modules", "--parallel", "2", "--threads", "2")  # fmt: skip


def test_resume_inherits_model_budget_and_parallelism(in_workspace: Workspace) -> None:
    started = parse(*LLM)
    resumed = parse("--resume", open_run(in_workspace, started))
    assert resumed.settings == started.settings
    assert (resumed.rounds, resumed.budget.hours, resumed.parallel) == (2, 1.0, 2)
    assert resumed.choice.max_usd == 2.0 and resumed.choice.open_modules
    for role in ROLES:
        config = resumed.choice.config(role)
        assert (config.resolved_model(), config.effort) == ("claude-sonnet-5-5", "high")


def test_variable_of_the_key_is_that_of_the_machine_that_resumes(
    in_workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("FIRST_KEY", "SECOND_KEY"):
        monkeypatch.setenv(name, "of-a-gateway-0123")
    monkeypatch.setenv("AUTOQEC_CODER_API_KEY_ENV", "FIRST_KEY")
    started = parse(*LLM)
    assert started.choice.config("coder").api_key_env == "FIRST_KEY"
    run_id = open_run(in_workspace, started)
    monkeypatch.setenv("AUTOQEC_CODER_API_KEY_ENV", "SECOND_KEY")
    assert parse("--resume", run_id).choice.config("coder").api_key_env == "SECOND_KEY"
    monkeypatch.delenv("AUTOQEC_CODER_API_KEY_ENV")
    assert parse("--resume", run_id).choice.config("coder").api_key_env is None


def test_resume_uses_the_model_of_the_start_despite_the_environment(
    in_workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOQEC_CODER_MODEL", "claude-haiku-5-5")
    run_id = open_run(in_workspace, parse(*LLM))
    monkeypatch.setenv("AUTOQEC_CODER_MODEL", "claude-fable-5-2")
    resumed = parse("--resume", run_id)
    assert resumed.choice.config("coder").resolved_model() == "claude-haiku-5-5"
    assert resumed.choice.config("ideator").resolved_model() == "claude-sonnet-5-5"


def test_given_option_replaces_only_its_setting(in_workspace: Workspace) -> None:
    run_id = open_run(in_workspace, parse(*LLM))
    resumed = parse("--resume", run_id, "--rounds", "9", "--budget", "usd=5", "--no-open-modules")
    assert resumed.rounds == 9 and resumed.settings.budget == {"usd": 5.0, "hours": 1.0}
    assert not resumed.choice.open_modules and resumed.parallel == 2
    assert resumed.choice.config("analyst").resolved_model() == "claude-sonnet-5-5"
    other = parse("--resume", run_id, "--model", "claude-opus-5-5")
    assert {role: other.choice.config(role).resolved_model() for role in ROLES} == dict.fromkeys(
        ROLES, "claude-opus-5-5"
    )


def test_changed_setting_is_recorded_in_run_json(in_workspace: Workspace) -> None:
    run_id = open_run(in_workspace, parse(*LLM))
    history = History(RunLayout(in_workspace.root, run_id))
    assert history.update_settings(parse("--resume", run_id).settings) is None
    change = history.update_settings(parse("--resume", run_id, "--parallel", "1").settings)
    assert change is not None and change.changed == {"parallel": 1}
    info = history.info()
    assert info.settings_changes == (change,) and info.settings is not None and info.settings.parallel == 1
    assert parse("--resume", run_id).parallel == 1


def test_run_that_is_no_longer_detached_keeps_no_options_of_its_jobs(
    in_workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in fake_slurm(tmp_path / "fake").env.items():
        monkeypatch.setenv(name, value)
    started = parse("env.yaml", "--executor", "slurm", "--detach", "--detach-slurm", "mem=1G")
    run_id = open_run(in_workspace, started, "tpe")
    for words in (("--no-detach",), ("--executor", "local")):
        resumed = parse("--resume", run_id, *words)
        assert not resumed.settings.detach and resumed.settings.detach_slurm == () and resumed.orchestrator is None
    with pytest.raises(UsageError, match="needs --detach"):
        parse("--resume", run_id, "--no-detach", "--detach-slurm", "mem=2G")


@pytest.mark.parametrize("stored", ["open_modules", "open_surface"])
@pytest.mark.parametrize("option", ["modules", "surface"])
def test_former_name_of_open_modules_is_accepted(in_workspace: Workspace, stored: str, option: str) -> None:
    run_id = open_run(in_workspace, parse(*LLM))
    path = RunLayout(in_workspace.root, run_id).run_info
    info = json.loads(path.read_text(encoding="utf-8"))
    info["settings"][stored] = info["settings"].pop("open_modules")
    path.write_text(json.dumps(info), encoding="utf-8")
    assert parse("--resume", run_id).settings.open_modules
    changed = parse("--resume", run_id, f"--no-open-{option}").settings
    assert not changed.open_modules and changed.model_extra in (None, {})


def test_replayed_run_is_resumed_from_its_cassette(in_workspace: Workspace, tmp_path: Path) -> None:
    recorded = tmp_path / "recorded.jsonl"
    recorded.write_text("", encoding="utf-8")
    run_id = open_run(in_workspace, parse(*LLM, "--cassette", str(recorded)))
    layout = RunLayout(in_workspace.root, run_id)
    layout.cassette.write_text("", encoding="utf-8")  # as the first start copies it
    recorded.unlink()
    assert parse("--resume", run_id).choice.cassette == layout.cassette
    assert parse("--resume", run_id, "--model", "claude-opus-5-5").choice.cassette is None


def test_memory_file_is_resolved_from_another_directory(
    in_workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = parse("env.yaml", "--memory", "memory.jsonl")
    assert started.settings.memory == "memory.jsonl"
    run_id = open_run(in_workspace, started, "tpe")
    (in_workspace.root / "below").mkdir()
    monkeypatch.chdir(in_workspace.root / "below")
    assert parse("--resume", run_id).choice.memory == in_workspace.root / "memory.jsonl"


def test_run_without_stored_settings_names_its_model_on_resume(in_workspace: Workspace) -> None:
    run_id = open_run(in_workspace, parse(*LLM))
    path = RunLayout(in_workspace.root, run_id).run_info
    info: dict[str, Any] = json.loads(path.read_bytes())
    del info["settings"], info["settings_changes"]
    path.write_text(json.dumps(info), encoding="utf-8")
    with pytest.raises(UsageError, match="earlier version.*--model NAME --budget usd=DOLLARS"):
        parse("--resume", run_id)
    assert parse("--resume", run_id, "--model", "claude-opus-5-5").choice.config("coder").model == "claude-opus-5-5"
    assert parse("--resume", run_id, "--model", "claude-opus-5-5").rounds == 3


def test_dry_run_shows_models_and_budget(in_workspace: Workspace) -> None:
    run_id = open_run(in_workspace, parse(*LLM))
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


def test_a_price_makes_a_dollar_budget_possible_and_belongs_to_the_run(
    in_workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOQEC_IDEATOR_BASE_URL", "http://127.0.0.1:9")
    argv = ("env.yaml", "--ideator", "hybrid", "--model", "claude-of-this-test", "--budget", "usd=2")
    with pytest.raises(UsageError, match="no price is known") as raised:
        parse(*argv)
    assert "--price" in str(raised.value.hint)
    started = parse(*argv, "--price", "in=3,out=15")
    run_id = open_run(in_workspace, started, "hybrid")
    stored = {"input": 3.0, "output": 15.0, "cache_read": 3.0}
    assert parse("--resume", run_id).settings.models["ideator"].price == stored
    changed = parse("--resume", run_id, "--price", "in=4,out=15", "--effort", "low").settings.models["analyst"]
    assert changed.price == {**stored, "input": 4.0, "cache_read": 4.0} and changed.effort == "low"
    assert changed.model == "claude-of-this-test"
    with pytest.raises(UsageError, match="calls no language model"):
        parse("env.yaml", "--price", "in=3,out=15")


def test_resume_keeps_the_scale(in_workspace: Workspace) -> None:
    started = parse("env.yaml", "--profile", "smoke", "--scale", "2.5")
    assert started.scale == 2.5 and parse("env.yaml").scale == 1.0
    run_id = open_run(in_workspace, started, "tpe")
    assert History(RunLayout(in_workspace.root, run_id)).info().scale == 2.5
    assert parse("--resume", run_id).scale == parse("--resume", run_id, "--scale", "2.5").scale == 2.5
    with pytest.raises(UsageError, match="started with 2.5"):
        parse("--resume", run_id, "--scale", "1")
