"""`autoqec run --dry-run` checks what the same command without it would check, and writes nothing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoqec.store.layout import RunLayout
from autoqec.system import run_lock
from tests.conftest import Workspace
from tests.support.clusters import fake_slurm
from tests.support.shown import check_error
from tests.support.starts import start_run


@pytest.fixture
def run(workspace: Workspace) -> RunLayout:
    """A run without rounds."""
    with start_run(workspace.root / "env.yaml", workspace.root, "smoke", 1, "tpe") as run:
        return run.layout


def resume(workspace: Workspace, run: RunLayout, *more: str) -> tuple[str, ...]:
    return ("run", "--resume", run.run_id, "--dry-run", *more)


def test_resume_shows_plan_and_writes_nothing(workspace: Workspace, run: RunLayout) -> None:
    before = workspace.files()
    shown = workspace.autoqec(*resume(workspace, run, "--json"))
    assert shown.code == 0, shown.err
    (plan,) = shown.objects
    assert (plan["resume"], plan["recovery"], plan["profile"]["name"]) == (run.run_id, [], "smoke")
    assert "env       smoke" in shown.err and workspace.files() == before


def test_checks_import_no_torch(workspace: Workspace) -> None:
    """It takes most of the time of a check that does not need it; only the circuits of a family do."""
    shown = workspace.autoqec("run", "env.yaml", "--profile", "smoke", "--dry-run", PYTHONPROFILEIMPORTTIME="1")
    imported = {line.rpartition("|")[2].strip() for line in shown.err.splitlines() if line.startswith("import time:")}
    assert shown.code == 0 and {"autoqec.orchestrator.run_checks", "autoqec.qec.problem"} <= imported, shown.err
    assert "torch" not in imported


def test_resume_names_planned_recovery(workspace: Workspace, run: RunLayout) -> None:
    workspace.git("branch", f"exp/{run.run_id}/01-try")
    shown = workspace.autoqec(*resume(workspace, run))
    assert shown.code == 0, shown.err
    assert f"exp/{run.run_id}/01-try" in shown.out and "recovery  " in shown.out
    assert workspace.git("branch", "--list", "exp/*")


def branch_exp(workspace: Workspace, run: RunLayout) -> None:
    workspace.git("branch", "exp")


def changed_secret(workspace: Workspace, run: RunLayout) -> None:
    run.secret.write_bytes(bytes(32))


def changed_env(workspace: Workspace, run: RunLayout) -> None:
    run.env.write_text(run.env.read_text(encoding="utf-8") + "# changed\n", encoding="utf-8")


def changed_code(workspace: Workspace, run: RunLayout) -> None:
    info = json.loads(run.run_info.read_bytes())
    run.run_info.write_text(json.dumps(info | {"code_sha256": "0" * 64}), encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "code", "part"),
    [
        (branch_exp, 2, "`exp`"),
        (changed_secret, 3, "secret"),
        (changed_env, 3, "env.yaml"),
        (changed_code, 3, "code that can change results"),
    ],
)
def test_resume_fails_like_the_resume_itself(
    workspace: Workspace, run: RunLayout, change, code: int, part: str
) -> None:  # type: ignore[no-untyped-def]
    change(workspace, run)
    before = workspace.files()
    planned = workspace.autoqec(*resume(workspace, run))
    assert planned.code == code and part in planned.err, planned
    check_error(planned.err, hint=True)
    real = workspace.autoqec("run", "--resume", run.run_id)
    assert (real.code, real.err) == (planned.code, planned.err)
    assert workspace.files() == before


def test_resume_of_a_held_run_is_rejected(workspace: Workspace, run: RunLayout) -> None:
    with run_lock.lock_run(run.root):
        shown = workspace.autoqec(*resume(workspace, run))
    assert shown.code == 2
    check_error(shown.err, "the run is held by process", hint=True)


def test_jobs_of_rounds_are_shown(workspace: Workspace, tmp_path: Path) -> None:
    cluster = fake_slurm(tmp_path / "fake")
    words = ("run", "env.yaml", "--profile", "smoke", "--dry-run", "--json", "--executor", "slurm")
    shown = workspace.autoqec(*words, **cluster.env)
    assert "job       time=17, cpus=1, mem=5000M; one per round\n" in shown.err
    assert shown.objects[-1]["slurm"] == {"time": "17", "cpus": "1", "mem": "5000M"}
    assert shown.objects[-1]["detached"] is None and shown.objects[-1]["container"] is None
