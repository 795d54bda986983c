"""Opening a run for a session."""

from __future__ import annotations

import errno
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NoReturn

import pytest

from autoqec.cli.autoqec import group
from autoqec.cli.common import run_cli
from autoqec.contracts.dsl import PredecoderDSL, TrainingConfig
from autoqec.contracts.events import OnEvent, ignore
from autoqec.contracts.profiles import profile_of
from autoqec.errors import StorageError, UsageError
from autoqec.orchestrator import session
from autoqec.orchestrator.budget import Clock
from autoqec.orchestrator.run import CheckedRun, Run
from autoqec.orchestrator.run_checks import check
from autoqec.orchestrator.run_options import request_run
from autoqec.orchestrator.session import open_run, run_session
from autoqec.runner.round_memory import RoundMemory
from autoqec.store.atomic import storage_error
from autoqec.store.files import load_env
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from autoqec.store.run_state import fold
from autoqec.system import memory
from tests.conftest import Workspace
from tests.support import rounds
from tests.support.clusters import fake_slurm

GNN = PredecoderDSL.model_validate({"type": "gnn", "gnn": {"hidden": 11}}).config()


def checked(env: str | None = None, resume: str | None = None, **given: object) -> CheckedRun:
    return check(request_run(env, given, resume))


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
        open_run(checked("env.yaml", **local), ignore)
    with open_run(checked("env.yaml", **local, executor="slurm"), ignore) as run:
        run_id = run.layout.run_id
    open_run(checked(resume=run_id), ignore).close()
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
        run_session(checked("env.yaml", profile="smoke", ideator="tpe", rounds=1), ignore)


def test_roles_read_the_clock_that_began_with_the_detached_run(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace.root)
    clocks: list[Clock] = []

    def build(run: Run, on_event: OnEvent) -> NoReturn:
        clocks.append(run.clock)
        raise UsageError("no roles")

    monkeypatch.setattr(session, "build_roles", build)
    since = datetime.now(UTC) - timedelta(hours=1)
    with pytest.raises(UsageError, match="no roles"):
        run_session(checked("env.yaml", profile="smoke", rounds=1), ignore, continued_since=since)
    assert clocks[0].elapsed() >= 3599.0
    assert not [*(workspace.root / "runs").glob("2*")], "the run was not created"


def test_replay_ends_with_the_older_run(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(workspace.root)
    older = RunLayout(workspace.root, rounds.RUN_ID)
    older.round(1).dir.mkdir(parents=True)
    History(older).write_info(rounds.info())
    History(older).append_row(rounds.row(1, dsl_config=GNN))
    chosen = checked("env.yaml", profile="smoke", ideator="replay", replay_of=rounds.RUN_ID)
    with open_run(chosen, ignore) as run:
        reply = run.roles.ideator(run.memory.l2_for_ideator(run.env, run.baseline_config))
        assert reply is not None and reply.proposal == GNN
        assert run.roles.stop_reason(fold([])) is None
        assert "all 1 proposals" in str(run.roles.stop_reason(fold([rounds.row(1)])))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"ideator": "oracle"}, "unknown ideator"),
        ({"ideator": "replay"}, "--replay-of"),
        ({"replay_of": "20260101-000000"}, "--ideator replay"),
        ({"ideator": "replay", "replay_of": "20260101-000000"}, "run not found"),
        ({"executor": "cloud"}, "unknown name"),
    ],
)
def test_unknown_ideator_or_executor_starts_no_run(
    given: dict[str, object], words: str, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(workspace.root)
    with pytest.raises(UsageError, match=words):
        checked("env.yaml", **given)
