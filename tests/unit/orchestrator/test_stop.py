"""Requests of `autoqec stop`: the run ends after its rounds in progress."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from autoqec.cli.commands import stop
from autoqec.cli.workspace import make_workspace
from autoqec.contracts.events import ignore
from autoqec.contracts.messages import IdeatorResponse
from autoqec.contracts.round import RoundMetrics, RunnerConfig
from autoqec.contracts.views import IdeatorView
from autoqec.errors import UsageError
from autoqec.orchestrator import loop as loop_module
from autoqec.orchestrator.executors import ParallelExecutor, SerialExecutor
from autoqec.orchestrator.hold import hold_run
from autoqec.orchestrator.loop import LoopResult, run_rounds
from autoqec.orchestrator.roles import search
from autoqec.orchestrator.run import Roles, Run
from autoqec.orchestrator.run_checks import check
from autoqec.orchestrator.run_options import request_run
from autoqec.orchestrator.session import run_session
from autoqec.store import run_control
from autoqec.store.layout import RunLayout
from autoqec.system import run_lock
from tests.conftest import Workspace
from tests.crash import canned
from tests.crash.starts import ENV
from tests.support.shown import check_error
from tests.support.starts import resume_run, start_run


@pytest.fixture(autouse=True)
def verifier_that_decides_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    canned.install(monkeypatch.setattr)


def propose(view: IdeatorView) -> IdeatorResponse:
    hidden = 4 + len(view.history) + len(view.pending)
    return IdeatorResponse(hypothesis="a net", slug="net", proposal={"type": "mlp", "mlp": {"hidden": hidden}})


def stopped_in_round(
    workspace: Path, monkeypatch: pytest.MonkeyPatch, number: int, parallel: int
) -> tuple[RunLayout, LoopResult]:
    """Run rounds, and ask the run to stop while this round is measured."""

    def measure(config: RunnerConfig, on_event: Any) -> RoundMetrics:
        if config.round_idx == number:
            run_control.request_stop(layout)
        return canned.run_round(config, on_event=on_event)

    serial, several = SerialExecutor(measure), ParallelExecutor
    monkeypatch.setattr(loop_module, "SerialExecutor", lambda: serial)
    monkeypatch.setattr(
        loop_module, "ParallelExecutor", lambda slots, stop_reason, gpus: several(slots, measure, stop_reason)
    )
    make_workspace(workspace, ENV)
    roles = Roles(propose, analyst=canned.analyse)
    with start_run(workspace / "env.yaml", workspace, "smoke", 1, "tpe", roles=roles, parallel=parallel) as run:
        layout = run.layout
        return layout, run_rounds(run, 5, ignore)


def test_round_in_progress_is_finished_and_no_other_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, outcome = stopped_in_round(tmp_path, monkeypatch, 2, 1)
    assert [(row.round, row.status) for row in outcome.rows] == [(1, "ok"), (2, "ok")]
    assert outcome.stop_reason == run_control.STOPPED and outcome.interrupted


def test_round_that_waits_for_a_slot_is_not_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, outcome = stopped_in_round(tmp_path, monkeypatch, 1, 2)
    statuses = [row.status for row in outcome.rows]
    assert statuses[0] == "ok" and set(statuses[2:]) <= {"orphaned_branch"}, statuses
    assert outcome.stop_reason == run_control.STOPPED
    assert all("stop requested" in str(row.status_reason) for row in outcome.rows[2:])


def test_next_start_withdraws_the_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    layout, _ = stopped_in_round(tmp_path, monkeypatch, 1, 1)
    assert run_control.stop_requested(layout)
    monkeypatch.chdir(tmp_path)
    outcome = run_session(check(request_run(None, {"rounds": 2}, layout.run_id)), ignore).outcome
    assert not run_control.stop_requested(layout) and outcome.stop_reason == "2 of 2 rounds"


def test_request_during_a_start_is_kept(workspace: Workspace) -> None:
    """Recovery of a start can take minutes, in which the run is held and a request is accepted."""
    with start_run(workspace.root / "env.yaml", workspace.root, "smoke", 1, "tpe") as run:
        layout = run.layout
    run_control.request_stop(layout)

    def roles(run: Run) -> Roles:
        assert not run_control.stop_requested(layout), "this start replaces the earlier request"
        run_control.request_stop(layout)
        return Roles(search("tpe"))

    with resume_run(layout.run_id, workspace.root, roles=roles) as run:
        assert run_rounds(run, 5).stop_reason == run_control.STOPPED
    run_control.withdraw_stop(layout)
    run_control.request_stop(layout)
    with resume_run(layout.run_id, workspace.root, roles=Roles(search("tpe")), withdraw_stop=False):
        assert run_control.stop_requested(layout)


def test_run_that_is_not_in_progress_is_refused(workspace: Workspace) -> None:
    with start_run(workspace.root / "env.yaml", workspace.root, "smoke", 1, "tpe") as run:
        layout = run.layout
        shown = workspace.autoqec("stop", layout.run_id, "--json")
        assert shown.code == 0 and shown.objects == [{"run_id": layout.run_id}], shown.err
        assert f"autoqec run --resume {layout.run_id}" in shown.err and run_control.stop_requested(layout)
        run_control.withdraw_stop(layout)
    refused = workspace.autoqec("stop", layout.run_id)
    assert refused.code == 2 and not run_control.stop_requested(layout)
    check_error(refused.err, "not in progress", hint=True)


def test_command_that_runs_no_rounds_is_named_and_not_asked_to_end(workspace: Workspace) -> None:
    """`autoqec verify` and others hold the run as well, and read no request."""
    with start_run(workspace.root / "env.yaml", workspace.root, "smoke", 1, "tpe") as run:
        layout = run.layout
    with hold_run(layout, "verify"):
        refused = workspace.autoqec("stop", layout.run_id)
        assert refused.code == 2 and not run_control.stop_requested(layout)
        check_error(refused.err, "`autoqec verify`", f"process {os.getpid()}", hint=True)
        with pytest.raises(UsageError, match=r"held by process .* \(`autoqec verify`\)"):
            resume_run(layout.run_id, workspace.root)


def test_lock_of_another_machine_is_no_promise(workspace: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """On some network file systems the lock of a run is not seen by other machines."""
    with start_run(workspace.root / "env.yaml", workspace.root, "smoke", 1, "tpe") as run:
        layout = run.layout
    monkeypatch.setattr(run_lock, "unreliable_lock", lambda root: "lies on nfs")
    monkeypatch.chdir(workspace.root)
    shown = CliRunner().invoke(stop.command, [layout.run_id])
    assert shown.exit_code == 0 and f"if it runs on {socket.gethostname()}" in shown.output
    assert run_control.stop_requested(layout)
