"""Which rounds have jobs when, and which job a round is awaited from; with a Runner that returns at once."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autoqec.cli.workspace import make_workspace
from autoqec.contracts.history import HistoryRow
from autoqec.contracts.job import JobOrder
from autoqec.extensions.slurm import executor, job, jobs, submission
from autoqec.extensions.slurm.executor import SlurmExecutor
from autoqec.extensions.slurm.jobs import Polling
from autoqec.orchestrator.loop import run_rounds
from autoqec.orchestrator.run import Roles, Run
from autoqec.store.round_files import read_contract
from tests.crash import canned, driver
from tests.crash.starts import ENV
from tests.support import job_worker
from tests.support.clusters import Cluster
from tests.support.starts import resume_run, start_run

PATIENCE_S = 300


@pytest.fixture(autouse=True)
def quick_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    canned.install(monkeypatch.setattr)
    monkeypatch.setattr(job, "measure_round", job_worker.measure_round)


def until(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def roles() -> Roles:
    return Roles(
        lambda view: driver.scripted(set(), view),
        coder=driver.literal,
        analyst=lambda view: driver.nominate(view, verdict="ignore"),
    )


def new_run(tmp_path: Path) -> Run:
    make_workspace(tmp_path / "workspace", ENV)
    return start_run(tmp_path / "workspace" / "env.yaml", tmp_path / "workspace", "smoke", 1, "tpe", roles=roles())


def slots(number: int, action: Callable[[], object] = lambda: None, **more: Any) -> SlurmExecutor:
    """Return an executor that calls `action` whenever it waits."""
    made = SlurmExecutor(number, {"mem": "1G"}, polling=Polling(0.05, 0.2, 0.5), **more)
    while_waiting = made.while_waiting

    def acting() -> None:
        action()
        while_waiting()

    made.while_waiting = acting  # type: ignore[method-assign]
    return made


def results(run: Run) -> list[tuple[int, str, str | None]]:
    """Return number, status and job of each recorded round."""
    rows: list[HistoryRow] = run.memory.history.rows()
    return [(row.round, row.status, job.claiming_job_id(run.layout.round(row.round))) for row in rows]


def test_rounds_that_are_ready_together_are_one_array(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "ARRAY_WAIT_S", 600.0)
    with new_run(tmp_path) as run:
        run_rounds(run, 2, executor=slots(2))
        assert results(run) == [(1, "ok", "1_0"), (2, "ok", "1_1")]


def test_round_is_submitted_if_the_next_proposal_takes_longer(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(executor, "ARRAY_WAIT_S", 0.0)
    with new_run(tmp_path) as run:
        run_rounds(run, 2, executor=slots(2))
        assert results(run) == [(1, "ok", "1"), (2, "ok", "2")]


def test_slots_have_further_rounds_while_the_oldest_one_is_measured(tmp_path: Path, cluster: Cluster) -> None:
    """Rounds are recorded in the order of their start; completed ones that wait for that keep no slot."""
    with new_run(tmp_path) as run:
        block = job_worker.blocker(run.layout.root, 1)
        block.touch()

        def release() -> None:
            if job.claiming_job_id(run.layout.round(3)) is not None:
                block.unlink(missing_ok=True)

        run_rounds(run, 3, executor=slots(2, release))
        assert [result[:2] for result in results(run)] == [(1, "ok"), (2, "ok"), (3, "ok")]


@pytest.mark.parametrize(
    ("number", "complete", "capacity"),
    [(1, [False], 1), (1, [True], 1), (8, [], 8), (8, [False, True, True], 10), (8, [False] + [True] * 20, 16)],
)
def test_capacity_has_rounds_in_place_of_completed_ones_unless_the_oldest_is_to_be_recorded(
    number: int, complete: list[bool], capacity: int
) -> None:
    made = SlurmExecutor(number)
    made.active = [SimpleNamespace(is_complete=lambda done=done: done) for done in complete]  # type: ignore[misc]
    assert made.capacity == capacity


def submitted_twice(
    run: Run, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, action: Callable[[], object] = lambda: None
) -> SlurmExecutor:
    """Return an executor whose first sbatch times out before SLURM accepts the job, so that it submits round 1 again.

    The first job claims the round and is blocked in it; the second one, whose id is returned, finds the claim and ends.
    `action` is called once the order names the first job, and the round is no longer blocked then.
    """
    cluster.change(busy=1, late=True, unlisted=1)
    layout, block = run.layout.round(1), job_worker.blocker(run.layout.root, 1)
    block.touch()

    def wait_for_claim(seconds: float) -> None:
        if seconds:
            until(lambda: job.claiming_job_id(layout) == "1")

    def act() -> None:
        order = read_contract(layout.job, JobOrder)
        if block.exists() and order is not None and order.job_id == "1":
            action()
            block.unlink()

    monkeypatch.setattr(submission, "time", SimpleNamespace(sleep=wait_for_claim))
    return slots(1, act)


def test_round_is_awaited_from_the_job_that_began_it(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_run(tmp_path) as run:
        run_rounds(run, 1, executor=submitted_twice(run, cluster, monkeypatch))
        assert results(run) == [(1, "ok", "1")]
    assert len(cluster.jobs()) == 2, "the other one ended without a measurement"


@pytest.mark.parametrize(("forgets", "reason"), [(False, "job 1 ended NODE_FAIL"), (True, "no longer knows job 1")])
def test_round_fails_if_the_job_that_began_it_is_lost(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch, forgets: bool, reason: str
) -> None:
    def lose() -> None:
        cluster.lose("1", "NODE_FAIL")
        cluster.change(forgets=forgets)

    with new_run(tmp_path) as run:
        run_rounds(run, 1, executor=submitted_twice(run, cluster, monkeypatch, lose))
        (row,) = run.memory.history.rows()
    assert row.status == "train_error" and reason in str(row.status_reason)


def test_job_that_cannot_begin_its_round_fails_it(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "measure_round", exit)
    with new_run(tmp_path) as run:
        run_rounds(run, 1, executor=slots(1))
        assert results(run) == [(1, "train_error", None)]


def test_detached_run_leaves_its_jobs_to_the_next_process(tmp_path: Path, cluster: Cluster) -> None:
    run = new_run(tmp_path)
    block = job_worker.blocker(run.layout.root, 1)
    block.touch()
    with run:
        outcome = run_rounds(
            run, 1, executor=slots(1, leave=lambda: job.claiming_job_id(run.layout.round(1)) is not None)
        )
    assert "the next start continues" in outcome.stop_reason and cluster.jobs() == {"1": "RUNNING"}
    block.unlink()
    with resume_run(run.info.run_id, run.layout.repo_root, roles=roles()) as again:
        run_rounds(again, 1, executor=slots(1))
        assert results(again) == [(1, "ok", "1")]


def test_second_interrupt_asks_a_silent_slurm_once_and_the_run_can_be_resumed(
    tmp_path: Path, cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs end by themselves, since their orders are withdrawn."""
    cluster.change(cpus=3)
    run, asked, run_command = new_run(tmp_path), list[str](), jobs.run_command
    blocks = [job_worker.blocker(run.layout.root, number) for number in (1, 2, 3)]
    for block in blocks:
        block.touch()

    def interrupt() -> None:
        if all(job.claiming_job_id(run.layout.round(number)) is not None for number in (1, 2, 3)):
            cluster.change(down=True)
            monkeypatch.setattr(jobs, "run_command", lambda *argv: (asked.append(argv[0]), run_command(*argv))[1])
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), run:
        run_rounds(run, 3, executor=slots(3, interrupt))
    assert asked == ["scancel"]
    cluster.change(down=False)
    until(lambda: set(cluster.jobs().values()) == {"COMPLETED"})
    for block in blocks:
        block.unlink()
    with resume_run(run.info.run_id, run.layout.repo_root, roles=roles()) as again:
        run_rounds(again, 3, executor=slots(3))
        assert [result[:2] for result in results(again)][3:] == [(4, "ok"), (5, "ok"), (6, "ok")]
