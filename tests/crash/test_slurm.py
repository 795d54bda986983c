"""Rounds as SLURM jobs: with fake SLURM commands, and (`make test-slurm`) with SLURM itself."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.history import HistoryRow
from autoqec.contracts.job import JobOrder
from autoqec.contracts.provenance import Manifest
from autoqec.contracts.verdict import VerifyReport
from autoqec.errors import UsageError
from autoqec.extensions.slurm.commands import NODE_SCRATCH
from autoqec.extensions.slurm.job import claiming_job_id
from autoqec.orchestrator import failpoint, gc
from autoqec.orchestrator.archive import publish_secret
from autoqec.orchestrator.recovery.apply import reconcile
from autoqec.store.history import History
from autoqec.store.layout import RoundLayout, RunLayout
from autoqec.store.round_files import read_contract
from autoqec.system.git import Repo
from autoqec.verification import job
from tests.conftest import made_workspace
from tests.crash.invariants import Before, check, git, refs, run_ids
from tests.crash.starts import ROOT, run_until_killed, start
from tests.support.clusters import KEY, Cluster, fake_slurm

PATIENCE_S = 300
LONG = pytest.mark.long


class RunningProcess:
    """A start in a separate process, on the second round of a workspace that has one round."""

    def __init__(self, workspace: Path, *cases: str, rounds: int = 2) -> None:
        (run_id,) = run_ids(workspace)
        env = {**os.environ, "OMP_NUM_THREADS": "1", "HOME": str(workspace.parent), "PYTHONPATH": str(ROOT)}
        env.pop(failpoint.FAILPOINT_VARIABLE, None)
        command = [sys.executable, "-m", "tests.crash.driver", str(workspace), str(rounds), run_id, "slurm", *cases]
        self.process = subprocess.Popen(command, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True)
        self.layout = RunLayout(workspace, run_id)

    def until(self, condition: Callable[[], object]) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not condition():
            assert time.monotonic() < deadline and self.process.poll() is None, self.process.communicate()
            time.sleep(0.02)

    def until_at_work(self, number: int = 2) -> str:
        """Wait until the job has begun the round; return the job number."""
        round_layout = self.layout.round(number)
        self.until(lambda: (round_layout.dir / "child.tmp" / "out").exists())
        return str(claiming_job_id(round_layout))

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def end(self) -> str:
        _, err = self.process.communicate(timeout=PATIENCE_S)
        return err


def layout_of(workspace: Path) -> tuple[RunLayout, RoundLayout]:
    (run_id,) = run_ids(workspace)
    layout = RunLayout(workspace, run_id)
    return layout, layout.round(2)


def submitted_as(layout: RoundLayout) -> str | None:
    """Return the id of the job that the order of a round names."""
    order = read_contract(layout.job, JobOrder)
    return None if order is None else order.job_id


def last(before: Before) -> HistoryRow:
    """Check the invariants and return the second and last row."""
    (run_id,) = run_ids(before.workspace)
    rows = check(before, run_id)
    assert [row.round for row in rows] == [1, 2]
    return rows[-1]


def test_job_survives_the_process_that_submitted_it(workspace: Path, cluster: Cluster) -> None:
    """SIGKILL while the job trains: recovery does not touch it, and the next start finds it by its number."""
    before, known = Before.of(workspace), cluster.jobs()
    going = RunningProcess(workspace)
    number = going.until_at_work()
    going.until(lambda: submitted_as(going.layout.round(2)) == number)
    workers = cluster.workers(number)
    assert workers
    for worker in workers:  # a child between fork and exec still has the command line of the worker
        with suppress(FileNotFoundError, ProcessLookupError):
            seen = Path(f"/proc/{worker}/environ").read_text(encoding="utf-8")
            assert KEY not in seen and "AUTOQEC_OWNER" not in seen
    going.kill()
    repo = Repo.discover(workspace)
    assert reconcile(going.layout, repo) == []
    assert "worktree" not in {item.kind for item in gc.find_removable(going.layout, repo)}
    with pytest.raises(UsageError, match="a job of a cluster still measures round 2"):
        publish_secret(going.layout, repo)
    assert start(workspace, 2, run_ids(workspace)[0], "slurm").returncode == 0
    row = last(before)
    assert row.status == "ok" and row.sandbox is not None
    assert set(cluster.jobs()) - set(known) == {number}, "one job, one training"
    assert KEY not in "".join(path.read_text() for path in going.layout.round(2).job_dir.glob("*.sh"))


def test_workers_of_another_cluster_are_not_killed(fake: Cluster, tmp_path: Path) -> None:
    """Each test has a cluster of its own, whose first job has the number 1; tests may run at the same time."""
    other = fake_slurm(tmp_path / "other")
    command = [sys.executable, "-c", "import time; time.sleep(600)", "submitit.core._submit"]
    workers = [subprocess.Popen(command, env={**each.env, "SLURM_JOB_ID": "1"}) for each in (fake, other)]
    try:
        deadline = time.monotonic() + PATIENCE_S
        while fake.workers("1") != [workers[0].pid] or other.workers("1") != [workers[1].pid]:
            assert time.monotonic() < deadline, [each.workers("1") for each in (fake, other)]
            time.sleep(0.02)
        other.kill_workers("1")
        assert workers[1].wait() == -signal.SIGKILL and workers[0].poll() is None
    finally:
        for worker in workers:
            worker.kill()
            worker.wait()


@pytest.mark.parametrize(
    "point", ["job_queued", *(pytest.param(name, marks=LONG) for name in ("job_ordered", "job_numbered", "measured"))]
)
def test_kill_between_order_and_submission_makes_one_job(workspace: Path, cluster: Cluster, point: str) -> None:
    (run_id,), before, known = run_ids(workspace), Before.of(workspace), cluster.jobs()
    run_until_killed(workspace, 2, run_id, "slurm", "bad", at=point)
    assert start(workspace, 2, run_id, "slurm", "bad").returncode == 0
    assert last(before).status == "compile_error"
    assert len(set(cluster.jobs()) - set(known)) == 1


@LONG
def test_concurrent_rounds_are_one_array_and_give_rows_in_round_order(workspace: Path, cluster: Cluster) -> None:
    before, known = Before.of(workspace), cluster.jobs()
    going = RunningProcess(workspace, "parallel", rounds=3)
    numbers = [going.until_at_work(2), going.until_at_work(3)]
    array = numbers[0].partition("_")[0]
    assert numbers == [f"{array}_0", f"{array}_1"] and set(cluster.jobs()) - set(known) == set(numbers)
    assert [cluster.jobs()[number] for number in numbers] == ["RUNNING"] * 2
    assert going.end() == ""
    rows = check(before, run_ids(workspace)[0])
    assert [(row.round, row.status) for row in rows] == [(1, "ok"), (2, "ok"), (3, "ok")]


@LONG
def test_cancelled_element_of_an_array_fails_its_round_alone(workspace: Path, cluster: Cluster) -> None:
    # SLURM waits a few seconds before it kills a cancelled job, in which a short round would end.
    before, going = Before.of(workspace), RunningProcess(workspace, "parallel", "endless_second", rounds=3)
    numbers = [going.until_at_work(2), going.until_at_work(3)]
    cluster.ask("scancel", numbers[0])
    assert going.end() == "" and going.process.returncode == 0
    rows = check(before, run_ids(workspace)[0])
    assert [(row.round, row.status) for row in rows] == [(1, "ok"), (2, "train_error"), (3, "ok")]
    assert f"SLURM job {numbers[0]} ended CANCELLED" in str(rows[1].status_reason)


@LONG
def test_elements_survive_the_process_that_submitted_them(workspace: Path, cluster: Cluster) -> None:
    """SIGKILL while an array runs: the next start finds each element by its number."""
    before, known = Before.of(workspace), cluster.jobs()
    going = RunningProcess(workspace, "parallel", rounds=3)
    numbers = [going.until_at_work(2), going.until_at_work(3)]
    going.kill()
    assert start(workspace, 3, run_ids(workspace)[0], "slurm", "parallel").returncode == 0
    rows = check(before, run_ids(workspace)[0])
    assert [(row.round, row.status) for row in rows] == [(1, "ok"), (2, "ok"), (3, "ok")]
    assert set(cluster.jobs()) - set(known) == set(numbers), "nothing was trained twice"


@LONG
def test_killed_job_has_a_row_with_the_reason(workspace: Path, cluster: Cluster) -> None:
    before, going = Before.of(workspace), RunningProcess(workspace)
    number = going.until_at_work()
    cluster.kill_workers(number)
    assert going.end() == "" and going.process.returncode == 0
    row = last(before)
    assert row.status == "train_error"
    assert f"SLURM job {number} ended FAILED" in str(row.status_reason) and "left no result" in str(row.status_reason)


@LONG
def test_job_that_died_without_a_watching_process_is_recovered(workspace: Path, cluster: Cluster) -> None:
    before, going = Before.of(workspace), RunningProcess(workspace)
    number = going.until_at_work()
    going.kill()
    cluster.kill_workers(number)
    assert start(workspace, 2, run_ids(workspace)[0], "slurm").returncode == 0
    assert last(before).status == "train_error"


@LONG
def test_second_interrupt_cancels_the_job(workspace: Path, cluster: Cluster) -> None:
    before, going = Before.of(workspace), RunningProcess(workspace)
    number = going.until_at_work()
    for _ in range(2):
        going.process.send_signal(signal.SIGINT)
        time.sleep(0.2)
    going.end()
    assert going.process.returncode != 0
    deadline = time.monotonic() + PATIENCE_S
    while cluster.jobs()[number] in ("RUNNING", "COMPLETING") or cluster.workers(number):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert cluster.jobs()[number] == "CANCELLED"
    reconcile(going.layout, Repo.discover(workspace))
    assert last(before).status == "orphaned_branch"


@LONG
def test_first_interrupt_waits_for_the_round(workspace: Path, cluster: Cluster) -> None:
    before, going = Before.of(workspace), RunningProcess(workspace, rounds=9)
    going.until_at_work()
    going.process.send_signal(signal.SIGTERM)
    assert going.end() == "" and going.process.returncode == 0
    assert last(before).status == "ok"


def registered_tests(layout: RunLayout, number: int) -> list[int]:
    """Return the indices of the tests that are registered for a round."""
    tests = History(layout).attempt_state().registered_tests
    return [test.attempt_index for test in tests if test.round == number]


@LONG
def test_verification_survives_the_process_that_submitted_it(workspace: Path, cluster: Cluster) -> None:
    """SIGKILL while the verification is a job: the next start waits for that job, under the same test."""
    before, known = Before.of(workspace), cluster.jobs()
    going = RunningProcess(workspace, "nominate")
    layout, round_layout = layout_of(workspace)
    place = round_layout.verification_dir
    going.until(lambda: (place / job.ORDER).exists() and not (place / job.SEEDS).exists())
    going.kill()
    secret = layout.secret.read_bytes()
    for path in place.rglob("*"):
        if path.is_file():
            assert secret not in path.read_bytes() and secret.hex() not in path.read_text(errors="replace")
    assert start(workspace, 2, run_ids(workspace)[0], "slurm", "nominate").returncode == 0
    row = next(row for row in check(before, run_ids(workspace)[0])[::-1] if row.round == 2)
    assert row.verify_verdict is not None
    assert len(set(cluster.jobs()) - set(known)) == 2, "one job trained, one verified"
    assert not place.exists() and round_layout.report_json.exists()
    assert len(registered_tests(layout, 2)) == 1, "the verdict is that of the test which was registered first"


@LONG
def test_killed_verification_job_is_repeated_once_as_a_further_test(workspace: Path, fake: Cluster) -> None:
    before, known = Before.of(workspace), fake.jobs()
    going = RunningProcess(workspace, "nominate")
    layout, round_layout = layout_of(workspace)
    place = round_layout.verification_dir
    going.until(lambda: (place / job.ORDER).exists() and not (place / job.SEEDS).exists())
    (number,) = [number for number, state in fake.jobs().items() if state == "RUNNING"]
    fake.kill_workers(number)
    assert going.end() == ""
    row = last(before)
    assert row.verify_verdict is not None
    assert len(set(fake.jobs()) - set(known)) == 3
    first, second = registered_tests(layout, 2)
    report = read_contract(round_layout.report_json, VerifyReport)
    assert report is not None and report.test is not None and report.test.attempt_index == second == first + 1


APPTAINER = """#!/bin/sh
echo "$@" >> "$0.calls"
while [ "$1" != python3 ]; do shift; done
shift
exec {python} "$@"
"""


@LONG
def test_jobs_run_in_the_container_and_record_its_digest(
    workspace: Path, cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without PYTHONPATH: the package is that of the image, here the one that is installed on this machine."""
    before, program, image = Before.of(workspace), tmp_path / "tools" / "apptainer", tmp_path / "an image.sif"
    program.parent.mkdir()
    program.write_text(APPTAINER.format(python=sys.executable))
    program.chmod(0o755)
    image.write_bytes(b"an image")
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    assert start(workspace, 2, run_ids(workspace)[0], "slurm", "nominate", f"container={image}").returncode == 0
    row = last(before)
    assert row.status == "ok" and row.verify_verdict is not None
    _, round_layout = layout_of(workspace)
    manifest = read_contract(round_layout.manifest, Manifest)
    assert manifest is not None and manifest.container == sha256_bytes(b"an image")
    measured, verified = program.with_name("apptainer.calls").read_text().splitlines()
    for call in (measured, verified):
        assert (
            call.startswith(f"exec --bind {workspace}") and f"{image} python3 -P -s -u -m submitit.core._submit" in call
        )
    script = next(round_layout.job_dir.glob("*.sh")).read_text()
    assert "PYTHONPATH" not in script and NODE_SCRATCH in script


def test_refusal_by_slurm_is_quoted(workspace: Path, cluster: Cluster) -> None:
    (run_id,), before = run_ids(workspace), Before.of(workspace)
    done = start(workspace, 2, run_id, "slurm", "slurm=partition=nowhere")
    assert done.returncode == 2 and "invalid partition specified: nowhere" in done.stderr, done.stderr
    assert len(done.stderr.strip().splitlines()) == 1 and "hint: `sinfo`" in done.stderr
    assert last(before).status == "orphaned_branch"


@LONG
def test_job_over_its_time_limit_is_killed_by_safety(workspace: Path, cluster: Cluster) -> None:
    """SLURM warns a job first; the fake kills without a warning, like a hanging node."""
    if cluster.conf is not None:
        cluster.change(minute_s=4.0)
    before = Before.of(workspace)
    assert start(workspace, 2, run_ids(workspace)[0], "slurm", "endless", "slurm=time=1").returncode == 0
    row = last(before)
    assert row.status == "killed_by_safety", row.status_reason
    assert "time" in str(row.status_reason) and "1" in str(row.status_reason)


def test_forgotten_job_without_files_is_aborted(workspace: Path, fake: Cluster) -> None:
    """Accounting is disabled and ended jobs leave the queue; without its files the round is aborted."""
    before, going = Before.of(workspace), RunningProcess(workspace)
    number = going.until_at_work()
    fake.change(forgets=True)
    fake.kill_workers(number)
    assert going.end() == ""
    row = last(before)
    assert row.status == "train_error" and f"no longer knows job {number}" in str(row.status_reason)


@LONG
def test_accounting_is_queried_last(workspace: Path, fake: Cluster) -> None:
    before, going = Before.of(workspace), RunningProcess(workspace)
    number = going.until_at_work()
    fake.change(forgets=True, accounting=True)
    fake.kill_workers(number)
    assert going.end() == ""
    row = last(before)
    assert row.status == "train_error" and f"SLURM job {number} ended FAILED" in str(row.status_reason)


@pytest.mark.parametrize("state", ["NODE_FAIL", pytest.param("PREEMPTED", marks=LONG)])
def test_job_lost_with_its_node_or_preempted_has_a_row_with_the_state(
    workspace: Path, fake: Cluster, state: str
) -> None:
    before, going = Before.of(workspace), RunningProcess(workspace)
    number = going.until_at_work()
    fake.lose(number, state)
    assert going.end() == "" and going.process.returncode == 0
    row = last(before)
    assert row.status == "train_error" and f"SLURM job {number} ended {state}" in str(row.status_reason)


def test_requeued_job_measures_its_round_once(workspace: Path, fake: Cluster) -> None:
    before, known = Before.of(workspace), fake.jobs()
    going = RunningProcess(workspace)
    number = going.until_at_work()
    fake.lose(number, "PENDING")
    assert going.end() == "" and going.process.returncode == 0
    assert last(before).status == "ok" and set(fake.jobs()) - set(known) == {number}


def test_submit_limit_reached_during_a_run_is_quoted_and_the_round_has_a_row(workspace: Path, fake: Cluster) -> None:
    message = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
    fake.change(refuses=message, accepts_tests=True)
    (run_id,), before = run_ids(workspace), Before.of(workspace)
    done = start(workspace, 2, run_id, "slurm")
    assert done.returncode == 2 and message in done.stderr and "squeue --me" in done.stderr, done.stderr
    row = last(before)
    assert row.status == "orphaned_branch" and message in str(row.status_reason)


@LONG
def test_unreachable_controller_loses_no_round(workspace: Path, fake: Cluster) -> None:
    before, going = Before.of(workspace), RunningProcess(workspace)
    number = going.until_at_work()
    fake.change(down=True)
    fake.kill_workers(number)
    time.sleep(1)
    assert going.process.poll() is None, "it waits"
    fake.change(down=False)
    assert going.end() == ""
    assert last(before).status == "train_error"


@LONG
def test_files_of_a_finished_round_take_precedence_over_slurm(workspace: Path, fake: Cluster) -> None:
    (run_id,), before = run_ids(workspace), Before.of(workspace)
    run_until_killed(workspace, 2, run_id, "slurm", "bad", at="measured")
    fake.change(down=True)
    assert start(workspace, 2, run_id, "slurm", "bad").returncode == 0
    assert last(before).status == "compile_error"


@LONG
def test_job_with_a_cancelled_order_does_nothing(workspace: Path, fake: Cluster) -> None:
    """Its worktree was deleted, so that recovery closed the round: the job begins later and finds no order."""
    fake.change(hold=True)
    before, going = Before.of(workspace), RunningProcess(workspace)
    layout, round_layout = layout_of(workspace)
    going.until(lambda: submitted_as(round_layout))
    number = str(submitted_as(round_layout))
    going.kill()
    (worktree,) = (workspace / ".worktrees").iterdir()
    shutil.rmtree(worktree)
    reconcile(layout, Repo.discover(workspace))
    assert last(before).status == "orphaned_branch" and not round_layout.job.exists()
    fake.change(hold=False)
    deadline = time.monotonic() + PATIENCE_S
    while fake.jobs()[number] != "COMPLETED":
        assert time.monotonic() < deadline, fake.jobs()
        time.sleep(0.05)
    assert claiming_job_id(round_layout) is None and not round_layout.metrics.exists()


@LONG
def test_running_job_ends_if_its_order_is_removed(workspace: Path, fake: Cluster) -> None:
    """Recovery cancels the order without SLURM, while no controller answers: the job ends itself."""
    before, going = Before.of(workspace), RunningProcess(workspace, "endless")
    number = going.until_at_work()
    layout, round_layout = layout_of(workspace)
    going.kill()
    fake.change(down=True)
    (branch,) = [name for name in refs(workspace) if "/02-" in name]
    git(workspace, "update-ref", "-d", f"refs/heads/{branch}")
    reconcile(layout, Repo.discover(workspace))
    deadline = time.monotonic() + PATIENCE_S
    while fake.workers(number):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert last(before).status == "orphaned_branch"
    assert (
        not round_layout.metrics.exists()
        and not round_layout.pointer.exists()
        and not (round_layout.dir / "child.tmp").exists()
    )
    fake.change(down=False)
    assert fake.jobs()[number] == "COMPLETED"


@LONG
def test_start_without_slurm_resumes_submitted_rounds(workspace: Path, fake: Cluster) -> None:
    before, going = Before.of(workspace), RunningProcess(workspace, "bad")
    _, round_layout = layout_of(workspace)
    going.until(round_layout.job.exists)
    going.kill()
    assert start(workspace, 2, run_ids(workspace)[0], "bad").returncode == 0
    assert last(before).status == "compile_error" and len(fake.jobs()) == 1


@LONG
def test_command_line_runs_on_a_cluster(tmp_path: Path, cluster: Cluster) -> None:
    workspace, known = made_workspace(tmp_path), cluster.jobs()
    flags = ("--executor", "slurm", "--slurm", "mem=1G", "--slurm", "time=00:10:00")
    result = workspace.autoqec(
        "run", "env.yaml", "--profile", "smoke", "--rounds", "1", "--json", *flags, **cluster.env
    )
    assert result.code == 0, result.err
    submitted = set(cluster.jobs()) - set(known)
    job_events = [value for value in result.objects if value["event"] == "job"]
    number = job_events[0]["job"]
    assert {value["job"] for value in job_events} == submitted, "the round's, and that of a verification"
    assert "RUNNING" in {value["state"] for value in job_events}
    assert any(value["event"] == "training" for value in result.objects), "its progress is seen from here"
    assert f"Round 1 is SLURM job {number}: " in result.err and result.objects[-1]["event"] == "run_finished"


def test_order_is_a_contract(workspace: Path, fake: Cluster) -> None:
    (run_id,) = run_ids(workspace)
    run_until_killed(workspace, 2, run_id, "slurm", "bad", at="job_ordered")
    layout, round_layout = layout_of(workspace)
    stored = json.loads(round_layout.job.read_bytes())
    assert stored["job_id"] is None and stored["config"]["round_attempt_id"] in stored["name"]
    assert stored["options"] == {"time": "17", "cpus": "1", "mem": "1G"}
