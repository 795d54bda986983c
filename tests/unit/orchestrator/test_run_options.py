"""Options of a run: parsed, stored in run.json, inherited by a resume and replaced by given ones."""

from __future__ import annotations

import pytest
from click.core import ParameterSource

from autoqec.cli.commands.run import command
from autoqec.contracts.run_spec import RunSpec, option_fields
from autoqec.errors import UsageError
from autoqec.locate import builtin_envs
from autoqec.orchestrator.budget import Budget
from autoqec.orchestrator.plugin_protocols import run_plugins
from autoqec.orchestrator.run_options import request_run
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from tests.conftest import Workspace
from tests.support.starts import start_run

GROWN = dict.fromkeys(  # edges
    ["surface_d7_depol", "surface_d7_x_depol", "surface_family_d7", "surface_family_si1000", "surface_family_x_si1000"],
    883,
)


@pytest.fixture
def in_workspace(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(workspace.root)
    return workspace


@pytest.fixture
def layout(in_workspace: Workspace) -> RunLayout:
    """A run with a limit of time and two rounds at once."""
    options = {"rounds": 2, "budget": {"hours": 1.0}, "parallel": 2, "scale": 2.5}
    with start_run("env.yaml", ".", "smoke", **options) as run:
        return run.layout


def resumed(layout: RunLayout, **given: object) -> RunSpec:
    return request_run(None, given, layout.run_id).spec


def test_every_option_of_a_specification_is_one_of_the_command() -> None:
    context = command.make_context("run", ["smoke"])
    models = [RunSpec, *(plugin.Options for plugin in run_plugins())]
    names = {each.name for model in models for each in option_fields(model)}
    assert names <= set(context.params)
    assert all(context.get_parameter_source(name) is ParameterSource.DEFAULT for name in names)


def test_resume_inherits_what_is_not_given(layout: RunLayout) -> None:
    stored = History(layout).info().spec()
    assert resumed(layout).settings() == stored.settings()
    changed = resumed(layout, rounds=9, budget="plateau=5")
    assert (changed.rounds, changed.budget, changed.parallel) == (9, {"hours": 1.0, "plateau": 5}, 2)
    assert resumed(layout, budget="hours=3").rounds is None


def test_changed_option_is_recorded_in_run_json(layout: RunLayout) -> None:
    history = History(layout)
    assert history.update_spec(resumed(layout)) is None
    change = history.update_spec(resumed(layout, parallel=1))
    assert change is not None and change.changed == {"parallel": 1}
    assert history.info().changes == (change,) and resumed(layout).parallel == 1


@pytest.mark.parametrize(
    "given", [{"profile": "dev"}, {"scale": 1.0}, {"seed": 2}, {"ideator": "random"}, {"secret_file": "secret"}]
)
def test_fixed_option_cannot_change(layout: RunLayout, given: dict[str, object]) -> None:
    with pytest.raises(UsageError) as raised:
        resumed(layout, **given)
    assert raised.value.hint == f"autoqec run --resume {layout.run_id}"
    assert resumed(layout, profile="smoke", scale=2.5, seed=1, ideator="tpe").scale == 2.5


@pytest.mark.parametrize(
    ("given", "location"),
    [
        ({"round": 3}, "round"),
        ({"rounds": 3, "budget": "rounds=4"}, "--rounds"),
        ({"budget": "coffee=2"}, "--budget"),
        ({"budget": "usd=free"}, "--budget"),
        ({"recorded": "data"}, "--recorded"),
        ({"profile": "tiny"}, "options"),
        ({"parallel": 0}, "options"),
    ],
)
def test_invalid_option_is_refused(in_workspace: Workspace, given: dict[str, object], location: str) -> None:
    with pytest.raises(UsageError) as raised:
        request_run("env.yaml", given)
    assert raised.value.location == location and raised.value.hint


def test_budget_sets_limits_of_the_loop_and_of_extensions(in_workspace: Workspace) -> None:
    spec = request_run("env.yaml", {"budget": "rounds=20, usd=3, tokens=200000, plateau=4"}).spec
    assert spec.rounds is None and Budget.of(spec) == Budget(rounds=20, plateau=4)
    assert (spec.budget["usd"], spec.budget["tokens"]) == (3.0, 200_000.0)
    assert request_run("env.yaml", {}).spec.rounds == 3


def test_builtin_envs_of_distance_5_and_below_keep_the_amounts_of_dev(in_workspace: Workspace) -> None:
    for name in builtin_envs():
        found, edges = request_run(name, {}), GROWN.get(name)
        assert (found.spec.scale, found.n_edges) == ((1.0, None) if edges is None else (2.93, edges)), name


@pytest.mark.parametrize("chosen", [{"scale": 1.0}, {"scale": 7.0}, {"profile": "smoke"}])
def test_chosen_scale_and_other_profiles_do_not_grow(in_workspace: Workspace, chosen: dict[str, object]) -> None:
    found = request_run("surface_d7_depol", chosen)
    assert (found.spec.scale, found.n_edges) == (chosen.get("scale", 1.0), None)


def test_dry_run_shows_scale_and_amounts(in_workspace: Workspace) -> None:
    shown = in_workspace.autoqec("run", "surface_d7_depol", "--rounds", "1", "--dry-run", "--json")
    assert shown.code == 0, shown.err
    (plan,) = shown.objects
    assert "scale     2.93, for a matching graph of 883 edges; --scale sets another one" in shown.err
    assert (plan["scale"], plan["profile"]["train_shots"]) == (2.93, round(2.93 * 1_750_000))
    assert plan["profile"]["round_wallclock_s"] == round(2.93 * 900)
