"""The scale of a run for which none is chosen: it grows with the matching graph in the profile `dev`."""

from __future__ import annotations

import pytest
from autoqec.launch.options import RunOptions, complete_options, parse_run_options

from autoqec.locate import builtin_envs
from tests.conftest import Workspace

GROWN = dict.fromkeys(  # edges
    ["surface_d7_depol", "surface_d7_x_depol", "surface_family_d7", "surface_family_si1000", "surface_family_x_si1000"],
    883,
)


@pytest.fixture
def in_workspace(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> Workspace:
    monkeypatch.chdir(workspace.root)
    return workspace


def options(env: str, **named: object) -> RunOptions:
    return parse_run_options(env, set(named), **complete_options(named))


def test_builtin_envs_of_distance_5_and_below_keep_the_amounts_of_dev(in_workspace: Workspace) -> None:
    for name in builtin_envs():
        found = options(name, rounds=1)
        edges = GROWN.get(name)
        assert (found.scale, found.n_edges) == ((1.0, None) if edges is None else (2.93, edges)), name


@pytest.mark.parametrize("chosen", [{"scale": 1.0}, {"scale": 7.0}, {"profile": "smoke"}])
def test_chosen_scale_and_other_profiles_do_not_grow(in_workspace: Workspace, chosen: dict[str, object]) -> None:
    found = options("surface_d7_depol", rounds=1, **chosen)
    assert (found.scale, found.n_edges) == (chosen.get("scale", 1.0), None)


def test_dry_run_shows_scale_and_amounts(in_workspace: Workspace) -> None:
    shown = in_workspace.autoqec("run", "surface_d7_depol", "--rounds", "1", "--dry-run", "--json")
    assert shown.code == 0, shown.err
    (plan,) = shown.objects
    assert "scale     2.93, for a matching graph of 883 edges; --scale sets another one" in shown.err
    assert (plan["scale"], plan["profile"]["train_shots"]) == (2.93, round(2.93 * 1_750_000))
    assert plan["profile"]["round_wallclock_s"] == round(2.93 * 900)
