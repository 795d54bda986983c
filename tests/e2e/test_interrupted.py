"""Interruptions of a run: a second start, SIGTERM once, Ctrl-C twice."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Workspace
from tests.support.shown import check_error

PATIENCE_S = 120


def until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end and process.poll() is None, process.communicate()
        time.sleep(0.02)


def going(workspace: Workspace) -> tuple[subprocess.Popen[str], Path]:
    """Start a run of many rounds in a separate process and wait until its first round runs."""
    command = [sys.executable, "-P", "-m", "autoqec.cli", "run", "env.yaml", "--profile", "smoke", "--rounds", "9"]
    process = subprocess.Popen(
        command, cwd=workspace.root, env=workspace.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    until(lambda: bool(list(workspace.root.glob("runs/*/round_1/child.tmp/out"))), process)
    (run,) = (workspace.root / "runs").glob("[0-9]*")
    return process, run


def rows(run: Path) -> list[int]:
    return [json.loads(line)["round"] for line in (run / "history.jsonl").read_text(encoding="utf-8").splitlines()]


@pytest.fixture
def at_work(workspace: Workspace):  # type: ignore[no-untyped-def]
    process, run = going(workspace)
    yield workspace, process, run
    if process.poll() is None:
        process.kill()
    process.communicate()


def test_run_has_one_owner_and_sigterm_finishes_the_round(
    at_work: tuple[Workspace, subprocess.Popen[str], Path],
) -> None:
    workspace, process, run = at_work
    second = workspace.autoqec("run", "--resume", run.name)
    assert second.code == 2
    check_error(second.err, str(process.pid))
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 130, out + err
    assert f"autoqec run --resume {run.name}" in err and "Traceback" not in err
    assert rows(run) == [1]
    assert workspace.git("status", "--porcelain") == "" and len(workspace.git("worktree", "list").splitlines()) == 1


@pytest.mark.parametrize("signals", [["SIGINT", "SIGINT"], pytest.param(["SIGKILL"], marks=pytest.mark.long)])
def test_immediate_stop_loses_no_round(
    at_work: tuple[Workspace, subprocess.Popen[str], Path], signals: list[str]
) -> None:
    workspace, process, run = at_work
    for name in signals:
        time.sleep(0.2)  # two equal pending signals would be delivered once
        process.send_signal(getattr(signal, name))
    out, err = process.communicate(timeout=PATIENCE_S)
    if "SIGKILL" not in signals:
        assert process.returncode == 130, out + err
        assert f"hint: autoqec run --resume {run.name}" in err and "Traceback" not in err
    resumed = workspace.autoqec("run", "--resume", run.name, "--rounds", "1")
    assert resumed.code == 0, resumed.err
    assert rows(run) == [1, 2]  # the aborted attempt keeps its number
    assert not list(run.rglob("*.tmp")), "what the child was writing is swept"
    assert workspace.git("status", "--porcelain") == "" and len(workspace.git("worktree", "list").splitlines()) == 1
