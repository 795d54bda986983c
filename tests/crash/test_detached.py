"""Detached runs: a SLURM job executes the run, and is queued again before its time ends."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pytest

from autoqec.contracts.job import DetachedRun
from autoqec.extensions.slurm import detached
from autoqec.extensions.slurm.job import claiming_job_id
from autoqec.store import atomic
from autoqec.store.layout import RunLayout
from autoqec.system.run_lock import lock_run
from tests.conftest import Workspace, made_workspace
from tests.support.clusters import KEY, Cluster
from tests.support.messages_server import MessagesServer
from tests.support.shown import check_error

PATIENCE_S = 400
LONG = pytest.mark.long
DETACH = ("--executor", "slurm", "--slurm", "mem=900M", "--detach", "--detach-slurm", "mem=1G")


def until(condition: Callable[[], object], layout: RunLayout) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        logs = "".join(path.read_text() for path in sorted(layout.detached_logs.glob("*.log")))
        assert time.monotonic() < deadline, logs[-3000:]
        time.sleep(0.05)


def rows(layout: RunLayout) -> list[tuple[int, str]]:
    lines = [json.loads(line) for line in layout.history.read_text(encoding="utf-8").splitlines()]
    return [(line["round"], line["status"]) for line in lines]


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return made_workspace(tmp_path)


def start(workspace: Workspace, cluster: Cluster, rounds: int) -> tuple[RunLayout, str]:
    """Detach a run and return it with its job."""
    if cluster.conf is not None:
        cluster.change(cpus=4)
    words = ("run", "env.yaml", "--profile", "smoke", "--rounds", str(rounds), "--json", *DETACH)
    shown = workspace.autoqec(*words, **cluster.env, ANTHROPIC_API_KEY=KEY)
    assert shown.code == 0, shown.err
    event = shown.objects[-1]
    layout = RunLayout(workspace.root, event["run_id"])
    assert event["event"] == "run_detached" and f"autoqec stop {layout.run_id}" in shown.err
    return layout, event["job"]


def until_measured(layout: RunLayout) -> str | None:
    """Wait until a job measures the first round, and return its id."""
    until(lambda: (layout.round(1).dir / "child.tmp" / "out").exists(), layout)
    return claiming_job_id(layout.round(1))


def check_finished(layout: RunLayout, measuring: str | None) -> None:
    """Check that two rounds were measured, the first one in this job alone."""
    assert [row for row in rows(layout) if row[1] == "ok"][:2] == [(1, "ok"), (2, "ok")]
    assert claiming_job_id(layout.round(1)) == measuring
    assert len(list(layout.round(1).job_dir.glob("*_submitted.pkl"))) == 1


@LONG
def test_job_is_queued_again_before_its_time_ends(workspace: Workspace, cluster: Cluster) -> None:
    """It leaves the round in progress to its next start: nothing is lost or measured twice."""
    layout, job_id = start(workspace, cluster, 2)
    measuring = until_measured(layout)
    cluster.ask("scancel", "--signal=USR1", "--batch", job_id)  # the warning
    until(lambda: not layout.detached.exists(), layout)
    check_finished(layout, measuring)
    cluster.await_state(job_id, "COMPLETED")
    log = (layout.detached_logs / f"{job_id}.log").read_text()
    assert log.count(f"Run {layout.run_id}") >= 1 and "Resume:" in log, "the same job ended and began again"
    watched = workspace.autoqec("watch", layout.run_id, **cluster.env)
    assert watched.code == 0 and "has stopped" in watched.err and "Detached" not in watched.err


@LONG
def test_job_is_submitted_again_where_jobs_may_not_be_requeued(workspace: Workspace, fake: Cluster) -> None:
    fake.change(no_requeue=True)
    layout, job_id = start(workspace, fake, 2)
    measuring = until_measured(layout)
    fake.ask("scancel", "--signal=USR1", "--batch", job_id)
    until(lambda: not layout.detached.exists(), layout)
    check_finished(layout, measuring)
    assert len(list(layout.detached_logs.glob("*.log"))) == 2 and fake.jobs()[job_id] == "FAILED"


@LONG
def test_cancelled_job_is_not_queued_again_and_the_run_can_be_continued(workspace: Workspace, cluster: Cluster) -> None:
    layout, job_id = start(workspace, cluster, 2)
    measuring = until_measured(layout)
    cluster.ask("scancel", job_id)
    cluster.await_state(job_id, "CANCELLED")
    for command in ("show", "watch"):
        shown = workspace.autoqec(command, layout.run_id, **cluster.env)
        assert shown.code == 0 and "SLURM has no job of it" in shown.out + shown.err, command
    resumed = workspace.autoqec("run", "--resume", layout.run_id, "--json", **cluster.env)
    assert resumed.code == 0 and resumed.objects[-1]["job"] != job_id, resumed.err
    until(lambda: not layout.detached.exists(), layout)
    check_finished(layout, measuring)


@LONG
def test_stop_ends_the_run_after_the_round_in_progress(workspace: Workspace, fake: Cluster) -> None:
    layout, job_id = start(workspace, fake, 9)
    until_measured(layout)
    shown = workspace.autoqec("show", layout.run_id, **fake.env).out
    assert f"Detached run: job {job_id} (running). Stop it:" in shown
    stopped = workspace.autoqec("stop", layout.run_id, **fake.env)
    assert stopped.code == 0 and "after its rounds in progress" in stopped.out, stopped.err
    until(lambda: not layout.detached.exists(), layout)
    fake.await_state(job_id, "FAILED")  # exit status 130, as after Ctrl-C
    assert {row[0] for row in rows(layout)} == {1}


def test_run_whose_job_waits_is_stopped_at_once_and_detached_once(workspace: Workspace, fake: Cluster) -> None:
    fake.change(hold=True)
    layout, job_id = start(workspace, fake, 2)
    assert fake.conf is not None
    job = json.loads((fake.conf.parent / f"job_{job_id}" / "job.json").read_text())
    assert KEY not in json.dumps(job), "no role of this run asks a language model"
    options = job["options"]
    assert (options["time"], options["mem"], options["signal"]) == ("60", "1G", "B:USR1@120") and "requeue" in options
    for words in ((), ("--no-detach",), ("--executor", "local"), ("--no-detach", "--dry-run")):
        again = workspace.autoqec("run", "--resume", layout.run_id, *words, **fake.env)
        assert again.code == 2, words
        check_error(again.err, job_id, hint=True)
    stopped = workspace.autoqec("stop", layout.run_id, **fake.env)
    assert stopped.code == 0 and "cancelled" in stopped.out, stopped.err
    assert fake.jobs() == {job_id: "CANCELLED"} and not layout.detached.exists()
    resumed = workspace.autoqec("run", "--resume", layout.run_id, "--json", **fake.env)
    assert resumed.code == 0 and resumed.objects[-1]["job"] != job_id, resumed.err


def test_run_is_not_continued_beside_its_job_if_slurm_does_not_answer(workspace: Workspace, fake: Cluster) -> None:
    fake.change(hold=True)
    layout, _ = start(workspace, fake, 2)
    fake.change(down=True)
    refused = workspace.autoqec("run", "--resume", layout.run_id, "--no-detach", "--executor", "local", **fake.env)
    assert refused.code == 2
    check_error(refused.err, "SLURM does not answer", hint=True)
    shown = workspace.autoqec("show", layout.run_id, **fake.env)
    assert shown.code == 0 and "SLURM does not answer" in shown.out
    stopped = workspace.autoqec("stop", layout.run_id, **fake.env)
    assert stopped.code == 0 and layout.stop_request.exists() and layout.detached.exists()


def test_job_waits_for_the_lock_of_the_run(workspace: Workspace, fake: Cluster) -> None:
    """`autoqec verify` may hold it."""
    fake.change(hold=True)
    layout, job_id = start(workspace, fake, 1)
    log = layout.detached_logs / f"{job_id}.log"
    with lock_run(layout.root, "verify"):
        fake.change(hold=False)
        fake.await_state(job_id, "RUNNING")
        time.sleep(8)
        assert fake.jobs()[job_id] == "RUNNING" and "held" not in log.read_text()
        workspace.autoqec("stop", layout.run_id, **fake.env)
    until(lambda: not layout.detached.exists(), layout)
    assert not layout.history.exists() or rows(layout) == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--detach",), "needs --executor slurm"),
        (("--executor", "slurm", "--detach-slurm", "time=5"), "needs --detach"),
        ((*DETACH, "--detach-slurm", "partition=nowhere"), "invalid partition specified: nowhere"),
        ((*DETACH, "--detach-slurm", "time=soon"), "--detach-slurm time"),
    ],
)
def test_refused_options_write_nothing(
    workspace: Workspace, fake: Cluster, words: tuple[str, ...], message: str
) -> None:
    shown = workspace.autoqec("run", "env.yaml", *words, **fake.env)
    assert shown.code == 2
    check_error(shown.err, message, hint=True)
    assert not (workspace.root / "runs").exists() and fake.jobs() == {}


def test_refused_job_leaves_a_run_that_is_not_detached(workspace: Workspace, fake: Cluster) -> None:
    fake.change(refuses="Job violates accounting/QOS policy", accepts_tests=True)
    shown = workspace.autoqec("run", "env.yaml", "--profile", "smoke", *DETACH, **fake.env)
    assert shown.code == 2
    check_error(shown.err, "violates accounting", hint=True)
    (run,) = (workspace.root / "runs").glob("2*")
    assert not RunLayout(workspace.root, run.name).detached.exists()


def test_mark_without_a_job_is_shown_and_the_run_continues(workspace: Workspace, fake: Cluster) -> None:
    """The command was killed before it queued the job."""
    fake.change(hold=True)
    layout, job_id = start(workspace, fake, 1)
    workspace.autoqec("stop", layout.run_id, **fake.env)
    atomic.write_json(layout.detached, DetachedRun(began=datetime.now(UTC)).dump())
    assert "SLURM has no job of it" in workspace.autoqec("show", layout.run_id, **fake.env).out
    detached.require_free(layout)
    assert not layout.detached.exists(), "a resume without --detach is not a detached run"
    resumed = workspace.autoqec("run", "--resume", layout.run_id, "--json", **fake.env)
    assert resumed.code == 0 and fake.jobs() == {job_id: "CANCELLED", resumed.objects[-1]["job"]: "PENDING"}


def test_key_reaches_the_model_through_the_environment_of_the_job_alone(workspace: Workspace, fake: Cluster) -> None:
    """No file of the run, no script and no command line holds it. A start without a key is refused."""
    words = ("run", "env.yaml", "--profile", "smoke", "--rounds", "1", "--ideator", "llm", "--json", *DETACH)
    assert fake.conf is not None
    with MessagesServer(key=KEY) as server:
        endpoint = {**fake.env, "ANTHROPIC_BASE_URL": server.url}
        refused = workspace.autoqec(*words, **endpoint)
        assert refused.code == 2 and fake.jobs() == {}
        check_error(refused.err, "no key for the language model", hint=True)
        shown = workspace.autoqec(*words, **endpoint, ANTHROPIC_API_KEY=KEY)
        assert shown.code == 0, shown.err
        layout, job_id = RunLayout(workspace.root, shown.objects[-1]["run_id"]), shown.objects[-1]["job"]
        until(lambda: server.requests, layout)  # requests without the key are refused and not kept
        for job in reversed(fake.jobs()):
            with suppress(subprocess.CalledProcessError):  # it has ended
                fake.ask("scancel", job)
    place = fake.conf.parent / f"job_{job_id}"
    job = json.loads((place / "job.json").read_text())
    assert job["env"]["ANTHROPIC_API_KEY"] == KEY
    assert KEY not in json.dumps({**job, "env": None}) + (place / "script").read_text()
    written = [path for path in workspace.root.rglob("*") if path.is_file()]
    assert layout.detached in written and not [path for path in written if KEY.encode() in path.read_bytes()]


def test_dry_run_shows_the_jobs_and_queues_none(workspace: Workspace, fake: Cluster) -> None:
    words = (*DETACH, "--slurm", "account=ours", "--slurm", "gpus=1", "--dry-run", "--json")
    shown = workspace.autoqec("run", "env.yaml", "--profile", "smoke", *words, **fake.env)
    assert shown.code == 0, shown.err
    assert shown.objects[-1]["detached"] == {"time": "60", "cpus": "1", "mem": "1G", "account": "ours"}
    assert "detached  time=60" in shown.err and fake.jobs() == {}
