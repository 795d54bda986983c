"""Opening a run for a session."""

from __future__ import annotations

import errno
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest
from autoqec.launch import session
from autoqec.launch.options import RunOptions, complete_options, parse_run_options
from autoqec.launch.session import open_run, run_session

from autoqec.cli.autoqec import group
from autoqec.cli.common import run_cli
from autoqec.contracts.dsl import TrainingConfig
from autoqec.contracts.events import ignore
from autoqec.contracts.profiles import profile_of
from autoqec.errors import StorageError, UsageError
from autoqec.orchestrator.budget import Clock
from autoqec.orchestrator.run import Roles, Run, search
from autoqec.runner.round_memory import RoundMemory
from autoqec.store.atomic import storage_error
from autoqec.store.files import load_env
from autoqec.system import memory
from tests.conftest import Workspace
from tests.support.clusters import fake_slurm


def options(env: str | None = None, resume: str | None = None, **named: object) -> RunOptions:
    return parse_run_options(env, set(named), **complete_options(named, resume=resume))


def opened(chosen: RunOptions) -> Run:
    return open_run(chosen, lambda context: Roles(search("tpe")), ignore, ())


def test_rounds_in_jobs_need_no_memory_for_training_here(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A resume in a job of a detached run has the memory of that job, not of those that train."""
    monkeypatch.chdir(workspace.root)
    needed = RoundMemory.of(load_env(Path("env.yaml"))[0], TrainingConfig(), profile_of("smoke"))
    own = sum((*needed.run.values(), *needed.build.values()))
    monkeypatch.setattr(memory, "available_bytes", lambda: own)
    for name, value in fake_slurm(tmp_path / "fake").env.items():
        monkeypatch.setenv(name, value)
    local = {"profile": "smoke", "ideator": "tpe", "rounds": 1}
    with pytest.raises(UsageError, match="GB available"):
        opened(options("env.yaml", **local))
    with opened(options("env.yaml", **local, executor="slurm")) as run:
        run_id = run.layout.run_id
    opened(options(resume=run_id)).__exit__(None, None, None)
    assert run_cli(group, ["run", "--resume", run_id, "--dry-run"]) == 0
    new = ("run", "env.yaml", "--profile", "smoke", "--ideator", "tpe", "--rounds", "1", "--dry-run")
    assert run_cli(group, [*new, "--executor", "slurm"]) == 0
    assert run_cli(group, new) == 2


def test_full_disk_is_reported_with_the_command_that_continues(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace.root)

    def fill_disk(run: Run, *_: Any, **__: Any) -> NoReturn:
        raise storage_error(run.layout.root / "history.jsonl", OSError(errno.ENOSPC, "No space left on device"))

    monkeypatch.setattr(session.loop, "run_rounds", fill_disk)
    with pytest.raises(StorageError, match=r"history\.jsonl: .*df -h .*, then: autoqec run --resume 2\d+-\d+"):
        run_session(options("env.yaml", profile="smoke", ideator="tpe", rounds=1), ignore)


def test_roles_read_the_clock_that_began_with_the_detached_run(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace.root)
    clocks: list[Clock] = []

    def build(*given: Any) -> NoReturn:
        clocks.extend(one for one in given if isinstance(one, Clock))
        raise UsageError("no roles")

    monkeypatch.setattr(session, "build_roles", build)
    since = datetime.now(UTC) - timedelta(hours=1)
    chosen = options("env.yaml", profile="smoke", ideator="tpe", rounds=1)
    with pytest.raises(UsageError, match="no roles"):
        run_session(chosen, ignore, detached_since=since)
    assert clocks[0].elapsed() >= 3599.0
