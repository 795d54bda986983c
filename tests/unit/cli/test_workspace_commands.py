"""init, doctor, machine-state, show and envs in a new workspace."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import autoqec
from autoqec.cli.assistant_files import installed_command, render
from autoqec.cli.commands import doctor
from autoqec.decoders import local_forward
from autoqec.qec import weighted_mwpm
from autoqec.system import sandbox
from tests.conftest import Workspace
from tests.support.clusters import fake_slurm
from tests.support.shown import check_error

PACKAGED_MODULES = Path(autoqec.__file__).parent / "decoders" / "modules"


def test_init_creates_clean_repository_with_packaged_modules(workspace: Workspace) -> None:
    assert workspace.git("status", "--porcelain") == "" and workspace.git("rev-list", "--count", "HEAD") == "1"
    modules = workspace.root / "autoqec/decoders/modules"
    packaged = {path.name: path.read_bytes() for path in PACKAGED_MODULES.iterdir() if path.is_file()}
    assert {path.name: path.read_bytes() for path in modules.iterdir()} == packaged
    assert not (workspace.root / "autoqec/__init__.py").exists()  # the installed package must win over it
    assert "/runs/" in (workspace.root / ".gitignore").read_text(encoding="utf-8")
    assert workspace.git("log", "-1", "--format=%an") == "AutoQEC"  # works without a git identity of the user


def test_init_writes_files_for_assistants(workspace: Workspace) -> None:
    """They call this installation by its path, which is not committed."""
    root = workspace.root
    for name, text in render(installed_command()).items():
        assert (root / name).read_text(encoding="utf-8") == text
    server = json.loads((root / ".mcp.json").read_text(encoding="utf-8"))["mcpServers"]["autoqec"]
    command = (root / ".claude/skills/review-log/SKILL.md").read_text(encoding="utf-8").split("```")[1].split()[0]
    for program in (server["command"], command):
        assert os.path.isabs(program) and os.access(program, os.X_OK)
    assert not (root / ".claude/skills/review-framework").exists()
    assert not any(name.startswith((".claude", ".mcp")) for name in workspace.git("ls-files").splitlines())


def test_init_copies_chosen_env(workspace: Workspace) -> None:
    shown = workspace.autoqec("init", "other", "--env", "surface_d3_depol", "--json")
    assert shown.code == 0 and len(shown.objects[0]["commit"]) == 40
    assert "surface_d3_depol" in (workspace.root / "other/env.yaml").read_text(encoding="utf-8")


def test_doctor_reports_each_check(workspace: Workspace) -> None:
    shown = workspace.autoqec("doctor", "--json")
    found = {value["name"]: value for value in shown.objects}
    assert shown.code == 0 and {"python", "torch", "git", "sandbox", "disk"} <= found.keys()
    assert str(workspace.root) in found["git"]["found"]
    assert all(value["hint"] for value in found.values() if value["state"] != "ok")


def test_doctor_warns_about_missing_or_outdated_c_matcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(local_forward, "compiled_network", lambda: object())
    monkeypatch.setattr(local_forward, "is_outdated", lambda: False)
    monkeypatch.setattr(weighted_mwpm, "compiled_matcher", lambda: object())
    library = tmp_path / "_match.so"
    library.touch()
    monkeypatch.setattr(weighted_mwpm, "_LIBRARY", library)
    assert [finding.state for finding in doctor._matching()] == ["ok"]
    os.utime(library, (0, 0))
    (found,) = doctor._matching()
    assert found.state == "warning" and "older weighted_mwpm.c" in found.found
    monkeypatch.setattr(weighted_mwpm, "compiled_matcher", lambda: None)
    (found,) = doctor._matching()
    assert found.state == "warning" and "slower" in found.found and "C compiler" in (found.hint or "")


@pytest.mark.parametrize(
    ("built", "outdated", "warned"), [(True, False, False), (False, False, True), (True, True, True)]
)
def test_doctor_warns_about_missing_or_outdated_c_network(
    built: bool, outdated: bool, warned: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weighted_mwpm, "compiled_matcher", lambda: object())
    monkeypatch.setattr(weighted_mwpm, "is_outdated", lambda: False)
    monkeypatch.setattr(local_forward, "compiled_network", lambda: object() if built else None)
    monkeypatch.setattr(local_forward, "is_outdated", lambda: outdated)
    (found,) = doctor._matching()
    assert (found.state == "warning" and "`local`" in found.found) is warned


@pytest.mark.parametrize(("uid", "warned"), [(0, True), (1000, False)])
def test_doctor_warns_about_root_under_landlock(uid: int, warned: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "probe", lambda: "landlock")
    monkeypatch.setattr(os, "geteuid", lambda: uid)
    (found,) = doctor._sandbox()
    assert found.state == "warning" and ("run as another user" in found.found) is warned


def test_doctor_reports_slurm(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine without SLURM is ok; a controller that does not answer is a warning only."""
    fake = fake_slurm(tmp_path)
    for name, value in fake.env.items():
        monkeypatch.setenv(name, value)
    (found,) = doctor._executors()
    assert found.state == "ok" and "--executor slurm" in found.found
    fake.change(down=True)
    (found,) = doctor._executors()
    assert found.state == "warning" and "Unable to contact slurm controller" in found.found and found.hint
    monkeypatch.setenv("PATH", str(tmp_path))
    (found,) = doctor._executors()
    assert (found.state, found.hint) == ("ok", None) and "not installed" in found.found


def test_doctor_outside_repository_suggests_init(workspace: Workspace) -> None:
    there = Workspace(workspace.root.parent / "home", workspace.env)
    (git,) = [value for value in there.autoqec("doctor", "--json").objects if value["name"] == "git"]
    assert git["state"] == "warning" and "autoqec init" in git["hint"]


def test_machine_state_prints_one_object(workspace: Workspace) -> None:
    (state,) = workspace.autoqec("machine-state", "--json").objects
    assert state["machine"]["cpu"]["cores"] >= 1


def test_show_without_runs_suggests_run(workspace: Workspace) -> None:
    shown = workspace.autoqec("show")
    assert shown.code == 0 and "autoqec run" in shown.out
    assert workspace.autoqec("show", "--json").objects == []


def test_dry_run_accepts_packaged_env_name(workspace: Workspace) -> None:
    names = [value["name"] for value in workspace.autoqec("envs", "--json").objects]
    assert "smoke" in names
    shown = workspace.autoqec("run", "smoke", "--dry-run", "--profile", "smoke", "--seed", "7", "--json")
    (plan,) = shown.objects
    assert (plan["env"]["name"], plan["seed"], plan["profile"]["name"], plan["rounds"]) == ("smoke", 7, "smoke", 3)


def test_contradictory_run_options_are_rejected(workspace: Workspace) -> None:
    for argv, part in (
        (("--ideator", "replay"), "--replay-of"),
        (("--ideator", "llm", "--no-llm"), "--no-llm"),
        (("--budget", "rounds=-1"), "--budget"),
        (("--budget", "joy=3"), "--budget"),
        (("--secret-file", "nowhere"), "nowhere"),
        (("--rounds", "2", "--budget", "rounds=3"), "--rounds"),
        (("--effort", "high"), "--effort"),
        (("--open-modules",), "--open-modules"),
        (("--slurm", "time=5"), "--executor slurm"),
    ):
        shown = workspace.autoqec("run", "smoke", *argv)
        assert shown.code == 2
        check_error(shown.err, part, hint=True)
    assert not (workspace.root / "runs").exists()


def test_init_refuses_a_path_with_a_line_break(workspace: Workspace) -> None:
    shown = workspace.autoqec("init", "two\nlines")
    assert shown.code == 2 and "line break" in shown.err and not (workspace.root / "two\nlines").exists()
