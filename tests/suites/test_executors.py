"""Conformance of executors: what the loop relies on, for this machine and for SLURM through submitit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from autoqec.cli.workspace import make_workspace
from autoqec.contracts.events import Event, RoundEvent, ignore
from autoqec.contracts.verdict import VerifyReport
from autoqec.extensions.slurm.executor import SlurmExecutor
from autoqec.extensions.slurm.jobs import Polling
from autoqec.orchestrator.executors import Executor, ParallelExecutor, SerialExecutor
from autoqec.orchestrator.rounds import finish_round, runner_config, start_round
from autoqec.orchestrator.run import Roles, Run
from autoqec.store.layout import RoundLayout
from autoqec.store.round_files import read_contract
from tests.crash import driver
from tests.crash.starts import ENV
from tests.support.clusters import Cluster, fake_slurm, slurm, slurm_unavailable_reason
from tests.support.starts import start_run


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if reason := slurm_unavailable_reason():
        pytest.skip(reason)
    with slurm(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture(params=["serial", "parallel", "stand-in", pytest.param("slurm", marks=pytest.mark.slurm)])
def executor(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Executor:
    if request.param == "serial":
        return SerialExecutor()
    if request.param == "parallel":
        return ParallelExecutor(2)
    cluster: Cluster = request.getfixturevalue("real") if request.param == "slurm" else fake_slurm(tmp_path / "fake")
    for name, value in cluster.env.items():
        monkeypatch.setenv(name, value)
    return SlurmExecutor(2, {"mem": "1G"}, polling=Polling(0.05, 0.3, 1.0))


def run_of(workspace: Path, *cases: str) -> Run:
    """Start a run whose proposals are those of the crash tests."""
    make_workspace(workspace, ENV)
    roles = Roles(
        lambda view: driver.scripted(set(cases), view),
        coder=driver.literal,
        analyst=driver.nominate,
    )
    return start_run(workspace / "env.yaml", workspace, "smoke", 1, "tpe", roles=roles)


def test_round_is_measured_and_verified(executor: Executor, tmp_path: Path) -> None:
    events: list[Event] = []
    with run_of(tmp_path / "workspace") as run:
        started = start_round(run, ignore)
        metrics = executor.submit(runner_config(run, started), events.append).result()
        assert metrics is not None and metrics.status == "ok" and metrics.delta_ler is not None
        row = finish_round(run, started, metrics, events.append, executor.verify)
        place = run.layout.round(1)
        report = read_contract(place.report_json, VerifyReport)
        assert report is not None and row.verify_verdict == report.verdict
        assert report.round_attempt_id == started.attempt.id and report.artifact_sha256
        assert not place.verification_dir.exists()
    assert {event.round for event in events if isinstance(event, RoundEvent)} == {1}


def test_failed_rounds_are_metrics_and_results_may_be_asked_for_in_any_order(
    executor: Executor, tmp_path: Path
) -> None:
    assert executor.capacity >= 1
    with run_of(tmp_path / "workspace", "bad") as run:
        started = [start_round(run, ignore) for _ in range(2)]
        futures = [executor.submit(runner_config(run, each), ignore) for each in started]
        for number in (2, 1):
            metrics = futures[number - 1].result()
            assert metrics is not None and metrics.status == "compile_error" and metrics.status_reason
            layout = run.layout.round(number)
            assert metrics.measurement_started_at and layout.metrics.exists() and layout.pointer.exists()


def test_cancelled_round_leaves_nothing_that_measures_it(executor: Executor, tmp_path: Path) -> None:
    with run_of(tmp_path / "workspace", "bad") as run:
        started = start_round(run, ignore)
        config = runner_config(run, started)
        executor.submit(config, ignore).cancel()
        assert not RoundLayout(Path(config.round_dir), 1).job.exists()
