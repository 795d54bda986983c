"""Starts of a run as processes that a test may kill, and recovery without a start."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from autoqec.contracts.history import HistoryRow
from autoqec.orchestrator import failpoint
from autoqec.orchestrator.recovery.apply import reconcile
from autoqec.store.layout import RunLayout
from autoqec.system.git import Repo
from tests.crash.invariants import Before, check

ROOT = Path(__file__).parents[2]
ENV = ROOT / "autoqec/envs/builtin/smoke.yaml"
NOT_A_COPY = shutil.ignore_patterns("owner.json")  # a run pauses if its original exists elsewhere


def start(
    workspace: Path, rounds: int, run_id: str = "", *cases: str, kill_at: str = ""
) -> subprocess.CompletedProcess[str]:
    env = {name: value for name, value in os.environ.items() if name != failpoint.FAILPOINT_VARIABLE}
    env |= {"OMP_NUM_THREADS": "1", "HOME": str(workspace.parent), "PYTHONPATH": str(ROOT)}
    if kill_at:
        env[failpoint.FAILPOINT_VARIABLE] = kill_at
    command = [sys.executable, "-m", "tests.crash.driver", str(workspace), str(rounds), run_id, *cases]
    return subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=300, check=False)


def run_until_killed(workspace: Path, rounds: int, run_id: str, *cases: str, at: str) -> None:
    done = start(workspace, rounds, run_id, *cases, kill_at=at)
    assert done.returncode == -signal.SIGKILL, f"{at} was never reached: {done.stderr}"


def recover_and_check(workspace: Path, before: Before, run_id: str) -> list[HistoryRow]:
    """Recover, check the invariants, and check that a second recovery finds nothing to do."""
    layout, repo = RunLayout(workspace, run_id), Repo.discover(workspace)
    reconcile(layout, repo)
    rows = check(before, run_id)
    assert reconcile(layout, repo) == []
    return rows
