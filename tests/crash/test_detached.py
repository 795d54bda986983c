"""Detached runs: a run executes in a chain of SLURM jobs."""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from autoqec.contracts.settings import RunSettings
from autoqec.extensions.slurm.script import is_cancelled, submit_command
from autoqec.launch.options import complete_options, parse_run_options
from autoqec.runner.job import claiming_job_id

from autoqec.contracts.events import ignore
from autoqec.contracts.history import RunInfo
from autoqec.contracts.job import DetachedRun
from autoqec.errors import AutoqecError, InfrastructureError, StorageError, UsageError
from autoqec.extensions.slurm import detached, orchestrator_job
from autoqec.extensions.slurm import submission as slurm
from autoqec.orchestrator.loop import LoopResult
from autoqec.orchestrator.run import Run
from autoqec.store import run_control
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from autoqec.system import run_lock
from autoqec.system.run_lock import lock_run
from tests.conftest import Workspace, made_workspace
from tests.support.clusters import KEY, Cluster
from tests.support.messages_server import MessagesServer
from tests.support.shown import check_error
from tests.support.starts import start_run

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


def start(workspace: Workspace, cluster: Cluster, rounds: int) -> tuple[RunLayout, str]:
    """Detach a run and return it with its first job."""
    if cluster.conf is not None:
        cluster.change(cpus=4)
    words = ("run", "env.yaml", "--profile", "smoke", "--rounds", str(rounds), "--json", *DETACH)
    shown = workspace.autoqec(*words, **cluster.env, ANTHROPIC_API_KEY=KEY)
    assert shown.code == 0, shown.err
    event = shown.objects[-1]
    layout = RunLayout(workspace.root, event["run_id"])
    assert event["event"] == "run_detached" and f"autoqec stop {layout.run_id}" in shown.err
    return layout, event["job"]


@LONG
@pytest.mark.parametrize("signal_name", ["TERM", "KILL"])
def test_next_job_continues_the_round_in_progress(tmp_path: Path, cluster: Cluster, signal_name: str) -> None:
    """The first job is asked to end, or killed, while its round is measured: nothing is lost or measured twice."""
    workspace, known = made_workspace(tmp_path), set(cluster.jobs())
    layout, first = start(workspace, cluster, 2)
    until(lambda: (layout.round(1).dir / "child.tmp" / "out").exists(), layout)
    measuring = claiming_job_id(layout.round(1))
    chain = run_control.read_detached(layout)
    assert chain is not None and chain.job_id == first and cluster.jobs()[str(chain.successor_id)] == "PENDING"
    cluster.ask("scancel", f"--signal={signal_name}", "--batch", first)
    until(lambda: (run_control.read_detached(layout) or chain).number == 2, layout)
    assert cluster.jobs()[str(measuring)] in ("RUNNING", "COMPLETING", "COMPLETED")
    until(lambda: run_control.read_detached(layout) is None, layout)
    ended = run_control.last_chain(layout)
    assert ended is not None and ended.ended == "2 of 2 rounds" and ended.number == 2
    assert [row for row in rows(layout) if row[1] == "ok"][:2] == [(1, "ok"), (2, "ok")]
    assert claiming_job_id(layout.round(1)) == measuring
    assert len(list(layout.round(1).job_dir.glob("*_submitted.pkl"))) == 1
    cluster.await_state(str(ended.successor_id), "CANCELLED")
    assert len(set(cluster.jobs()) - known) >= 5, "three of the chain, and one per round"
    watched = workspace.autoqec("watch", layout.run_id, **cluster.env)
    assert watched.code == 0 and "has stopped" in watched.err
    assert "ended: 2 of 2 rounds" in workspace.autoqec("show", layout.run_id).out


@LONG
def test_stop_ends_the_chain_after_the_round_in_progress(tmp_path: Path, fake: Cluster) -> None:
    workspace = made_workspace(tmp_path)
    layout, job_id = start(workspace, fake, 9)
    until(lambda: (layout.round(1).dir / "child.tmp" / "out").exists(), layout)
    shown = workspace.autoqec("show", layout.run_id, **fake.env).out
    assert f"Detached run: job {job_id} (running), then job" in shown and "(pending). Stop it:" in shown
    stopped = workspace.autoqec("stop", layout.run_id, **fake.env)
    assert stopped.code == 0 and "after its rounds in progress" in stopped.out, stopped.err
    until(lambda: run_control.read_detached(layout) is None, layout)
    fake.await_state(job_id, "FAILED")  # exit status 130, as after Ctrl-C
    assert {row[0] for row in rows(layout)} == {1}
    ended = run_control.last_chain(layout)
    assert ended is not None and ended.ended == run_control.STOPPED
    fake.await_state(str(ended.successor_id), "CANCELLED")


def test_run_whose_job_waits_is_stopped_at_once_and_detached_once(tmp_path: Path, fake: Cluster) -> None:
    workspace = made_workspace(tmp_path)
    fake.change(hold=True)
    layout, job_id = start(workspace, fake, 2)
    assert fake.conf is not None
    job = json.loads((fake.conf.parent / f"job_{job_id}" / "job.json").read_text())
    assert KEY not in json.dumps(job), "no role of this run asks a language model"
    options = job["options"]
    assert (options["time"], options["mem"], options["signal"]) == ("60", "1G", "B:TERM@120") and "requeue" in options
    for words in ((), ("--no-detach",), ("--executor", "local"), ("--no-detach", "--dry-run")):
        again = workspace.autoqec("run", "--resume", layout.run_id, *words, **fake.env)
        assert again.code == 2, words
        check_error(again.err, job_id, hint=True)
    stopped = workspace.autoqec("stop", layout.run_id, **fake.env)
    assert stopped.code == 0 and "cancelled" in stopped.out, stopped.err
    assert fake.jobs() == {job_id: "CANCELLED"} and run_control.read_detached(layout) is None
    resumed = workspace.autoqec("run", "--resume", layout.run_id, "--json", **fake.env)
    assert resumed.code == 0 and resumed.objects[-1]["job"] != job_id, resumed.err
    assert not run_control.stop_requested(layout)
    dead = resumed.objects[-1]["job"]
    fake.ask("scancel", dead)
    for command in ("watch", "show"):
        shown = workspace.autoqec(command, layout.run_id, **fake.env)
        assert shown.code == 0 and "SLURM has no job of it" in shown.out + shown.err, command
        assert f"autoqec run --resume {layout.run_id}" in shown.out + shown.err


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
    workspace_of_user: Workspace, fake: Cluster, words: tuple[str, ...], message: str
) -> None:
    shown = workspace_of_user.autoqec("run", "env.yaml", *words, **fake.env)
    assert shown.code == 2
    check_error(shown.err, message, hint=True)
    assert not (workspace_of_user.root / "runs").exists() and fake.jobs() == {}


def test_key_reaches_the_model_through_the_environment_of_the_job_alone(
    workspace_of_user: Workspace, fake: Cluster
) -> None:
    """No file of the run, no script and no command line holds it. A start without a key is refused."""
    words = ("run", "env.yaml", "--profile", "smoke", "--rounds", "1", "--ideator", "llm", "--json", *DETACH)
    assert fake.conf is not None
    with MessagesServer(key=KEY) as server:
        endpoint = {**fake.env, "ANTHROPIC_BASE_URL": server.url}
        refused = workspace_of_user.autoqec(*words, **endpoint)
        assert refused.code == 2 and fake.jobs() == {}
        check_error(refused.err, "no key for the language model", hint=True)
        shown = workspace_of_user.autoqec(*words, **endpoint, ANTHROPIC_API_KEY=KEY)
        assert shown.code == 0, shown.err
        layout, job_id = RunLayout(workspace_of_user.root, shown.objects[-1]["run_id"]), shown.objects[-1]["job"]
        until(lambda: server.requests, layout)  # requests without the key are refused and not kept
        for job in reversed(fake.jobs()):
            with suppress(subprocess.CalledProcessError):  # it has ended
                fake.ask("scancel", job)
    place = fake.conf.parent / f"job_{job_id}"
    job = json.loads((place / "job.json").read_text())
    assert job["env"]["ANTHROPIC_API_KEY"] == KEY
    assert KEY not in json.dumps({**job, "env": None}) + (place / "script").read_text()
    written = [path for path in workspace_of_user.root.rglob("*") if path.is_file()]
    assert layout.detached in written and not [path for path in written if KEY.encode() in path.read_bytes()]


def test_dry_run_shows_the_jobs_and_queues_none(workspace_of_user: Workspace, fake: Cluster) -> None:
    words = (*DETACH, "--slurm", "account=ours", "--slurm", "gpus=1", "--dry-run", "--json")
    shown = workspace_of_user.autoqec("run", "env.yaml", "--profile", "smoke", *words, **fake.env)
    assert shown.code == 0, shown.err
    assert shown.objects[-1]["detached"] == {"time": "60", "cpus": "1", "mem": "1G", "account": "ours"}
    assert "detached  time=60" in shown.err and fake.jobs() == {}


@pytest.fixture
def workspace_of_user(tmp_path: Path) -> Workspace:
    return made_workspace(tmp_path)


@pytest.fixture
def layout(workspace_of_user: Workspace, fake: Cluster, monkeypatch: pytest.MonkeyPatch) -> RunLayout:
    """A run without rounds, in whose first job this process is. Jobs that it queues stay queued."""
    fake.change(hold=True)
    monkeypatch.setenv("SLURM_JOB_ID", "700")
    root = workspace_of_user.root
    with start_run(root / "env.yaml", root, "smoke", 1, "tpe") as run:
        run_control.write_detached(run.layout, DetachedRun(number=1, began=datetime.now(UTC)))
        return run.layout


def in_job(layout: RunLayout, number: int, outcome: LoopResult | BaseException) -> DetachedRun:
    """Continue the run in a job with this outcome of its rounds, and return the state that it leaves."""

    def run_rounds(began: datetime) -> LoopResult:
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    detached.continue_run(layout, number, run_rounds)
    state = run_control.last_chain(layout)
    assert state is not None
    return state


def script_variables(script: str) -> dict[str, str]:
    """Return the variables of a detached run that the script of a job exports."""
    words = shlex.split(script.replace(";", " ; "))
    return dict(word.split("=", 1) for word in words if word.startswith("AUTOQEC_DETACHED"))


HANDED_OVER = LoopResult((), "interrupted; --resume continues", interrupted=True)


def detach(layout: RunLayout, on_open: Callable[[Run], None] = lambda run: None) -> DetachedRun:
    """Detach the run as `autoqec run --resume RUN --executor slurm --detach` does."""
    chosen = complete_options({"executor": "slurm", "detach": True}, resume=layout.run_id)
    options = parse_run_options(None, {"executor", "detach"}, **chosen)
    return detached.start(options, ignore, on_open, ())[1]


def test_run_is_held_until_its_first_job_is_recorded(
    layout: RunLayout, fake: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that begins at once waits, so that it overwrites nothing, and a second start is refused."""
    queue_job = orchestrator_job.submit

    class StillWaits(BaseException):
        pass

    def wait(seconds: float) -> None:
        raise StillWaits

    def submit(*arguments: Any, **more: Any) -> str:
        if "after" in more:  # of the job that follows
            return queue_job(*arguments, **more)
        assert run_lock.is_locked(layout.root)
        with pytest.raises(UsageError, match="held by process"):
            detach(layout)
        job_id = queue_job(*arguments, **more)
        before = layout.detached.read_bytes()
        with monkeypatch.context() as in_own_job, pytest.raises(StillWaits):
            in_own_job.setenv("SLURM_JOB_ID", job_id)
            in_own_job.setattr(detached, "time", SimpleNamespace(sleep=wait))
            in_job(layout, arguments[2], HANDED_OVER)
        assert layout.detached.read_bytes() == before
        return job_id

    monkeypatch.setattr(orchestrator_job, "submit", submit)
    monkeypatch.chdir(layout.repo_root)
    state = detach(layout)
    assert run_control.read_detached(layout) == state and state.job_id is not None
    first, successor = fake.jobs()
    assert first == state.job_id
    monkeypatch.setenv("SLURM_JOB_ID", first)
    continued = in_job(layout, state.number, HANDED_OVER)
    assert (continued.job_id, continued.successor_id) == (first, successor), "it continues once the run is not held"


def test_second_start_is_refused_if_the_first_one_detached_the_run_meanwhile(
    layout: RunLayout, fake: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both starts found no chain; the first one held the run, queued its job and ended, before the second held it."""
    monkeypatch.chdir(layout.repo_root)

    def first_start(run: Run) -> None:
        state = DetachedRun(number=3, began=datetime.now(UTC))
        job_id = orchestrator_job.submit(layout, RunSettings(), 3, state)
        run_control.write_detached(layout, state.model_copy(update={"job_id": job_id}))

    with pytest.raises(UsageError, match="detached: SLURM job"):
        detach(layout, first_start)
    assert list(fake.jobs().values()) == ["PENDING"]


@pytest.mark.parametrize("words", [(), ("--no-detach",)])
def test_job_whose_id_was_not_recorded_holds_the_run(
    layout: RunLayout, workspace_of_user: Workspace, fake: Cluster, words: tuple[str, ...]
) -> None:
    """The command that queued the first job was killed before it wrote the id."""
    state = DetachedRun(number=1, began=datetime.now(UTC))
    job_id = orchestrator_job.submit(layout, RunSettings(), 1, state)
    refused = workspace_of_user.autoqec("run", "--resume", layout.run_id, *words, **fake.env)
    assert refused.code == 2
    check_error(refused.err, f"SLURM job {job_id} holds it", hint=True)
    stopped = workspace_of_user.autoqec("stop", layout.run_id, **fake.env)
    assert stopped.code == 0 and job_id in stopped.out and fake.jobs() == {job_id: "CANCELLED"}


def test_interrupted_job_leaves_its_successor(layout: RunLayout, fake: Cluster) -> None:
    state = in_job(layout, 1, HANDED_OVER)
    assert state.ended is None and state.handed_over and fake.jobs() == {state.successor_id: "PENDING"}


@pytest.mark.parametrize("error", [UsageError("wrong"), None])
def test_finished_or_refused_run_cancels_the_successor(
    layout: RunLayout, fake: Cluster, error: Exception | None
) -> None:
    if error is None:
        in_job(layout, 1, LoopResult((), "2 of 2 rounds"))
    else:
        with pytest.raises(UsageError):
            in_job(layout, 1, error)
    ended = run_control.last_chain(layout)
    assert ended is not None and ended.ended in ("2 of 2 rounds", "wrong")
    assert fake.jobs() == {ended.successor_id: "CANCELLED"}
    with pytest.raises(UsageError, match="has ended"):
        in_job(layout, 2, HANDED_OVER)


@pytest.mark.parametrize(
    "error", [StorageError("full"), UsageError("no answer", code=slurm.UNREACHABLE), InfrastructureError("killed")]
)
def test_failure_that_may_pass_is_left_to_a_limited_number_of_further_jobs(
    layout: RunLayout, fake: Cluster, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    for number in range(1, detached.MAX_WITHOUT_PROGRESS + 1):
        with pytest.raises(type(error)):
            in_job(layout, number, error)
        state = run_control.read_detached(layout)
        assert state is not None and state.jobs_without_progress == number - 1
        monkeypatch.setenv("SLURM_JOB_ID", str(state.successor_id))
    with pytest.raises(InfrastructureError, match="5 consecutive jobs"):
        in_job(layout, detached.MAX_WITHOUT_PROGRESS + 1, HANDED_OVER)
    assert run_control.read_detached(layout) is None


class Held:
    """The lock of a run, held by another process until this one has waited a few times."""

    def __init__(self, layout: RunLayout, at_end: Callable[[], object] = lambda: None) -> None:
        self._fd, self._polls, self._at_end = os.open(layout.root, os.O_RDONLY), 0, at_end
        fcntl.flock(self._fd, fcntl.LOCK_EX)

    def wait(self, seconds: float) -> None:
        self._polls += 1
        if self._polls == 3:
            self._at_end()
            os.close(self._fd)


def test_job_waits_for_the_lock_of_the_run(layout: RunLayout, fake: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before it writes anything, and when another process takes the lock just before it starts its rounds."""
    before, held = layout.detached.read_bytes(), Held(layout)
    tries = 0

    def wait(seconds: float) -> None:
        if tries == 0:
            assert layout.detached.read_bytes() == before and list(fake.jobs().values()) == ["PENDING"]
            held.wait(seconds)

    def run_rounds(began: datetime) -> LoopResult:
        nonlocal tries
        tries += 1
        with lock_run(layout.root) if tries == 1 else nullcontext():
            run_lock.require_unlocked(layout.root)
        return HANDED_OVER

    monkeypatch.setattr(detached, "time", SimpleNamespace(sleep=wait))
    detached.continue_run(layout, 1, run_rounds)
    state = run_control.read_detached(layout)
    assert tries == 2 and state is not None and state.handed_over and fake.jobs() == {state.successor_id: "PENDING"}


def test_job_that_finds_the_chain_ended_after_the_wait_cancels_its_successor(
    layout: RunLayout, fake: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first instance of a requeued job finished the run while the second waited."""
    state = run_control.last_chain(layout)
    assert state is not None
    held = Held(layout, at_end=lambda: run_control.end_detached(layout, state, "2 of 2 rounds"))
    monkeypatch.setattr(detached, "time", SimpleNamespace(sleep=held.wait))
    with pytest.raises(UsageError, match="2 of 2 rounds"):
        in_job(layout, 1, HANDED_OVER)
    ended = run_control.last_chain(layout)
    assert ended is not None and ended.ended == "2 of 2 rounds" and list(fake.jobs().values()) == ["CANCELLED"]


def test_full_disk_at_the_start_keeps_the_chain(
    layout: RunLayout, fake: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(layout: RunLayout, state: DetachedRun) -> None:
        raise StorageError("full")

    with monkeypatch.context() as patched:
        patched.setattr(run_control, "write_detached", full)
        shutil.rmtree(layout.detached_logs, ignore_errors=True)
        layout.detached_logs.write_text("in place of the directory")
        for number in range(1, detached.MAX_WITHOUT_PROGRESS + 2):
            with pytest.raises(StorageError):
                in_job(layout, number, HANDED_OVER)
    assert len(fake.jobs()) == detached.MAX_WITHOUT_PROGRESS, "and no job for ever"
    state = in_job(layout, 3, HANDED_OVER)
    assert state.ended is None and state.number == 3 and state.jobs_without_progress == 1


def test_damaged_run_ends_the_chain_with_a_reason(layout: RunLayout, fake: Cluster) -> None:
    text = (layout.root / "run.json").read_text()
    (layout.root / "run.json").write_text("{")
    with pytest.raises(AutoqecError):
        in_job(layout, 1, HANDED_OVER)
    (layout.root / "run.json").write_text(text)
    ended = run_control.last_chain(layout)
    assert ended is not None and ended.ended and "run.json" in ended.ended and fake.jobs() == {}


def test_requeued_job_queues_no_second_successor(layout: RunLayout, fake: Cluster) -> None:
    for _ in range(2):
        with pytest.raises(StorageError):
            in_job(layout, 1, StorageError("full"))
    assert len(fake.jobs()) == 1


def test_requeued_starts_are_not_counted(layout: RunLayout, fake: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """A job that is preempted again and again finishes no round, and would not fail otherwise."""
    for restarts in range(detached.MAX_WITHOUT_PROGRESS + 2):
        if restarts:
            monkeypatch.setenv("SLURM_RESTART_COUNT", str(restarts))
        with pytest.raises(KeyboardInterrupt):
            in_job(layout, 1, KeyboardInterrupt())
    state = run_control.read_detached(layout)
    assert state is not None and state.jobs_without_progress == 0 and len(fake.jobs()) == 1


@pytest.mark.parametrize("forgets", [False, True])
def test_cancelled_successor_is_replaced_at_the_end(layout: RunLayout, fake: Cluster, forgets: bool) -> None:
    """The user cancelled the queued job; for some minutes SLURM still knows it by its name."""
    fake.change(forgets=forgets)

    def run_rounds(began: datetime) -> LoopResult:
        (cancelled,) = fake.jobs()
        fake.ask("scancel", cancelled)
        return HANDED_OVER

    detached.continue_run(layout, 1, run_rounds)
    state = run_control.read_detached(layout)
    fake.change(forgets=False)
    assert state is not None and list(fake.jobs().values()) == ["CANCELLED", "PENDING"]
    assert fake.jobs()[str(state.successor_id)] == "PENDING"


def test_refused_successor_is_tried_again_at_the_end(
    layout: RunLayout, fake: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "RETRY_DELAYS_S", ())
    fake.change(down=True)

    def run_rounds(began: datetime) -> LoopResult:
        fake.change(down=False)
        return HANDED_OVER

    detached.continue_run(layout, 1, run_rounds)
    state = run_control.read_detached(layout)
    assert state is not None and fake.jobs() == {state.successor_id: "PENDING"}
    fake.change(down=True)
    monkeypatch.setenv("SLURM_JOB_ID", str(state.successor_id))
    in_job(layout, 2, HANDED_OVER)
    ended = run_control.last_chain(layout)
    assert ended is not None and "no further job could be queued" in str(ended.ended)
    assert "Unable to contact slurm controller" in str(ended.ended), "what the user has to know"


def test_chain_ends_if_the_user_cancels_all_of_its_jobs(
    layout: RunLayout, fake: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `scancel --me` does. SIGTERM reaches the process, which must not queue another job."""
    own = orchestrator_job.submit(layout, RunSettings(), 1, DetachedRun(number=1, began=datetime.now(UTC)))
    monkeypatch.setenv("SLURM_JOB_ID", own)

    def run_rounds(began: datetime) -> LoopResult:
        for job_id in fake.jobs():
            fake.ask("scancel", job_id)
        return HANDED_OVER

    detached.continue_run(layout, 1, run_rounds)
    ended = run_control.last_chain(layout)
    assert ended is not None and "cancelled" in str(ended.ended)
    assert list(fake.jobs().values()) == ["CANCELLED", "CANCELLED"]


def test_job_over_its_time_limit_is_not_cancelled(
    layout: RunLayout, fake: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its successor was cancelled, and another one is queued in its place."""
    own = orchestrator_job.submit(layout, RunSettings(), 1, DetachedRun(number=1, began=datetime.now(UTC)))
    monkeypatch.setenv("SLURM_JOB_ID", own)

    def run_rounds(began: datetime) -> LoopResult:
        for job_id in fake.jobs().keys() - {own}:
            fake.ask("scancel", job_id)
        fake.put(own, state="COMPLETING", why="TimeLimit")
        return HANDED_OVER

    detached.continue_run(layout, 1, run_rounds)
    state = run_control.read_detached(layout)
    fake.put(own, state="CANCELLED")
    assert state is not None and fake.jobs()[str(state.successor_id)] == "PENDING"


@pytest.mark.parametrize(
    ("state", "why", "restarts", "cancelled"),
    [
        ("RUNNING", "None", 1, False),
        ("COMPLETING", "None", 1, True),
        ("COMPLETING", "None", 2, False),
        ("COMPLETING", "TimeLimit", 1, False),
        ("COMPLETED", "None", 1, False),
        ("CANCELLED", "None", 1, True),
    ],
)
def test_cancelled_job_is_told_from_one_that_ends_otherwise(
    fake: Cluster, monkeypatch: pytest.MonkeyPatch, state: str, why: str, restarts: int, cancelled: bool
) -> None:
    """It was requeued once before."""
    fake.change(hold=True)
    own = fake.ask("sbatch", "--wrap=true").split()[-1]
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    fake.put(own, state=state, why=why, restarts=restarts)
    assert is_cancelled(own) == cancelled
    fake.put(own, state="CANCELLED")


IGNORES_SIGTERM = """#!/bin/sh
trap '' TERM
touch {ready}
while :; do sleep 0.2; done
"""


@pytest.mark.slurm
@pytest.mark.parametrize(("words", "cancelled"), [(("scancel",), True), (("scontrol", "requeue"), False)])
def test_slurm_tells_a_cancelled_job_from_a_requeued_one(
    real: Cluster, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...], cancelled: bool
) -> None:
    """While its processes still run, SLURM calls both COMPLETING."""
    for name, value in real.env.items():
        monkeypatch.setenv(name, value)
    script, ready = tmp_path / "script", tmp_path / "ready"
    script.write_text(IGNORES_SIGTERM.format(ready=shlex.quote(str(ready))))
    own = real.ask("sbatch", "--parsable", "--requeue", "--mem=50", "--output=/dev/null", str(script)).strip()
    deadline = time.monotonic() + PATIENCE_S
    while not ready.exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert not is_cancelled(own)
    real.ask(*words, own)
    real.await_state(own, "COMPLETING")
    assert is_cancelled(own) == cancelled
    real.ask("scancel", own)


def replace_by_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


DAMAGE: dict[str, Callable[[Path], object]] = {
    "not JSON": lambda path: path.write_text("{"),
    "another schema": lambda path: path.write_text('{"number": "first"}'),
    "a directory": replace_by_directory,
}


@pytest.mark.parametrize("kind", ["not JSON", "another schema"])
def test_job_continues_the_chain_if_its_state_is_damaged(
    layout: RunLayout, fake: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """It was given the state when it was queued, and replaces the file."""
    first = in_job(layout, 1, HANDED_OVER)
    assert fake.conf is not None
    queued = json.loads((fake.conf.parent / f"job_{first.successor_id}" / "job.json").read_text())
    for name, value in script_variables(queued["options"]["wrap"]).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SLURM_JOB_ID", str(first.successor_id))
    DAMAGE[kind](layout.detached)
    state = in_job(layout, 2, HANDED_OVER)
    assert state.number == 2 and state.began == first.began and state.ended is None
    assert fake.jobs() == {first.successor_id: "PENDING", state.successor_id: "PENDING"}
    assert "detached.json" in caplog.text


def test_unreadable_state_that_cannot_be_replaced_ends_in_a_limited_number_of_jobs(
    layout: RunLayout, fake: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = DetachedRun(number=1, began=datetime.now(UTC))
    monkeypatch.setenv("AUTOQEC_DETACHED_STATE", json.dumps(state.dump()))
    DAMAGE["a directory"](layout.detached)
    for number in range(1, detached.MAX_WITHOUT_PROGRESS + 2):
        monkeypatch.setenv("AUTOQEC_DETACHED", f"{layout.run_id}:{number}")
        with pytest.raises(StorageError):
            in_job(layout, number, HANDED_OVER)
    assert len(fake.jobs()) == detached.MAX_WITHOUT_PROGRESS, "and no job for ever"


@pytest.mark.parametrize("kind", [*DAMAGE])
def test_damaged_state_is_shown_and_the_next_start_replaces_it(
    layout: RunLayout, workspace_of_user: Workspace, fake: Cluster, kind: str
) -> None:
    job_id = orchestrator_job.submit(layout, RunSettings(), 1, DetachedRun(number=1, began=datetime.now(UTC)))
    DAMAGE[kind](layout.detached)
    shown = workspace_of_user.autoqec("show", layout.run_id, **fake.env)
    assert shown.code == 0 and "detached.json" in shown.out and f"job {job_id} (pending)" in shown.out, shown.err
    refused = workspace_of_user.autoqec("run", "--resume", layout.run_id, "--dry-run", **fake.env)
    assert refused.code == 2
    check_error(refused.err, "detached.json", f"SLURM job {job_id} holds it", "autoqec stop", hint=True)
    fake.ask("scancel", job_id)
    watched = workspace_of_user.autoqec("watch", layout.run_id, **fake.env)
    assert watched.code == 0 and "SLURM has no job of it" in watched.out + watched.err
    refused = workspace_of_user.autoqec("stop", layout.run_id, **fake.env)
    assert refused.code == 2
    check_error(refused.err, "not in progress", hint=True)
    words = () if kind == "a directory" else ("--executor", "slurm", "--detach")
    resumed = workspace_of_user.autoqec("run", "--resume", layout.run_id, *words, "--rounds", "1", **fake.env)
    if kind == "a directory":  # the user has to move it
        assert resumed.code == 74
        check_error(resumed.err, "detached.json", hint=True)
    else:
        state = run_control.read_detached(layout)
        assert resumed.code == 0 and state is not None and fake.jobs()[str(state.job_id)] == "PENDING", resumed.err
        assert "detached.json" in resumed.err, "a note says that it was replaced"


def test_file_system_that_fails_for_some_time_keeps_the_chain(
    layout: RunLayout, fake: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """run.json, of which the options of the next job follow, cannot be read at first, e.g. through a stale handle."""
    read, waits = History.info, list[float]()

    def info(history: History) -> RunInfo:
        if len(waits) < 3:
            raise StorageError("could not be read: Stale file handle")
        return read(history)

    monkeypatch.setattr(History, "info", info)
    monkeypatch.setattr(detached, "time", SimpleNamespace(sleep=waits.append))
    state = in_job(layout, 1, HANDED_OVER)
    assert state.ended is None and fake.jobs() == {state.successor_id: "PENDING"}


def test_failure_without_a_queued_successor_is_recorded(
    layout: RunLayout, fake: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing would continue the run, and `show` has to say so."""
    monkeypatch.setattr(slurm, "RETRY_DELAYS_S", ())
    fake.change(down=True)
    with pytest.raises(InfrastructureError):
        in_job(layout, 1, InfrastructureError("killed"))
    ended = run_control.last_chain(layout)
    assert ended is not None and "killed" in str(ended.ended)


def test_time_limit_is_announced_to_the_command(fake: Cluster, tmp_path: Path) -> None:
    """SIGTERM reaches the command itself, which has replaced the shell of the job."""
    fake.change(minute_s=4.0)
    code = "import signal, time; signal.signal(signal.SIGTERM, lambda *_: exit('asked to end')); time.sleep(60)"
    number = submit_command(
        ["python3", "-c", code], name="a-command", options={"time": "1"}, directory=tmp_path,
        log=tmp_path / "%j.log", package=tmp_path,
    )  # fmt: skip
    fake.await_state(number, "FAILED")
    assert (tmp_path / f"{number}.log").read_text() == "asked to end\n"
