"""init, doctor, machine-state, show, envs in a fresh lab."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import autoqec
from autoqec.cli.commands import doctor
from autoqec.qec import weighted_mwpm
from tests.conftest import Workspace
from tests.support.clusters import fake_slurm
from tests.support.shown import check_error

OWN = Path(autoqec.__file__).parent / "decoders" / "modules"


def test_a_lab_is_a_clean_repository_with_the_packages_surface(workspace: Workspace) -> None:
    assert workspace.git("status", "--porcelain") == "" and workspace.git("rev-list", "--count", "HEAD") == "1"
    surface = workspace.root / "autoqec/decoders/modules"
    own = {path.name: path.read_bytes() for path in OWN.iterdir() if path.is_file()}
    assert {path.name: path.read_bytes() for path in surface.iterdir()} == own
    assert not (workspace.root / "autoqec/__init__.py").exists()  # the installed package must win over it
    assert "/runs/" in (workspace.root / ".gitignore").read_text(encoding="utf-8")
    assert workspace.git("log", "-1", "--format=%an") == "AutoQEC"  # nobody's identity was needed


def test_init_takes_another_env(workspace: Workspace) -> None:
    shown = workspace.autoqec("init", "other", "--env", "surface_d3_depol", "--json")
    assert shown.code == 0 and len(shown.objects[0]["commit"]) == 40
    assert "surface_d3_depol" in (workspace.root / "other/env.yaml").read_text(encoding="utf-8")


def test_doctor_says_what_holds_here(workspace: Workspace) -> None:
    shown = workspace.autoqec("doctor", "--json")
    found = {value["name"]: value for value in shown.objects}
    assert shown.code == 0 and {"python", "torch", "git", "sandbox", "disk"} <= found.keys()
    assert str(workspace.root) in found["git"]["found"]
    assert all(value["hint"] for value in found.values() if value["state"] != "good")


def test_doctor_says_where_the_matching_was_built_without_c(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(weighted_mwpm, "compiled_matcher", lambda: object())
    library = tmp_path / "_match.so"
    library.touch()
    monkeypatch.setattr(weighted_mwpm, "_LIBRARY", library)
    assert [one.state for one in doctor._matching()] == ["good"]
    os.utime(library, (0, 0))
    assert [(one.state, "older weighted_mwpm.c" in one.found) for one in doctor._matching()] == [("weak", True)]
    monkeypatch.setattr(weighted_mwpm, "compiled_matcher", lambda: None)
    (found,) = doctor._matching()
    assert found.state == "weak" and "slower" in found.found and "C compiler" in (found.hint or "")


def test_doctor_says_whether_a_cluster_can_be_used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """For information: no cluster is no fault, and one that does not answer keeps nobody from working here."""
    fake = fake_slurm(tmp_path)
    for name, value in fake.env.items():
        monkeypatch.setenv(name, value)
    (found,) = doctor._slurm()
    assert found.state == "good" and "--executor slurm" in found.found
    fake.change(down=True)
    (found,) = doctor._slurm()
    assert found.state == "weak" and "Unable to contact slurm controller" in found.found and found.hint
    monkeypatch.setenv("PATH", str(tmp_path))
    (found,) = doctor._slurm()
    assert (found.state, found.hint) == ("good", None) and "none here" in found.found


def test_doctor_outside_a_repository_says_how_to_get_one(workspace: Workspace) -> None:
    there = Workspace(workspace.root.parent / "home", workspace.env)
    (git,) = [value for value in there.autoqec("doctor", "--json").objects if value["name"] == "git"]
    assert git["state"] == "weak" and "autoqec init" in git["hint"]


def test_machine_state_is_one_object(workspace: Workspace) -> None:
    (state,) = workspace.autoqec("machine-state", "--json").objects
    assert state["machine"]["cpu"]["cores"] >= 1


def test_nothing_to_show_says_how_to_begin(workspace: Workspace) -> None:
    shown = workspace.autoqec("show")
    assert shown.code == 0 and "autoqec run" in shown.out
    assert workspace.autoqec("show", "--json").objects == []


def test_every_builtin_env_can_be_checked_by_name(workspace: Workspace) -> None:
    names = [value["name"] for value in workspace.autoqec("envs", "--json").objects]
    assert "smoke" in names
    shown = workspace.autoqec("run", "smoke", "--dry-run", "--profile", "smoke", "--seed", "7", "--json")
    (plan,) = shown.objects
    assert (plan["env"]["name"], plan["seed"], plan["profile"]["name"], plan["rounds"]) == ("smoke", 7, "smoke", 3)


def test_options_that_contradict_each_other(workspace: Workspace) -> None:
    for argv, part in (
        (("--ideator", "replay"), "--replay-of"),
        (("--ideator", "llm", "--no-llm"), "--no-llm"),
        (("--budget", "rounds=-1"), "--budget"),
        (("--budget", "joy=3"), "--budget"),
        (("--secret-file", "nowhere"), "nowhere"),
    ):
        shown = workspace.autoqec("run", "smoke", *argv)
        assert shown.code == 2
        check_error(shown.err, part, hint=True)
    assert not (workspace.root / "runs").exists()
