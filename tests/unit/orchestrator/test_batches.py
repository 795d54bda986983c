"""Several short rounds in one SLURM job, with fake SLURM commands and a Runner that returns at once."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autoqec.cli.workspace import make_workspace
from autoqec.contracts.history import HistoryRow
from autoqec.orchestrator.budget import Budget, Clock, InterruptHandler
from autoqec.orchestrator.executors import slurm, slurm_round
from autoqec.orchestrator.executors.batches import MAX_BATCH, RoundDuration, batch_options, batch_size
from autoqec.orchestrator.executors.slurm import SlurmExecutor
from autoqec.orchestrator.loop import Roles, Run, resume_run, run_rounds, start_run, stop_of_waiting
from autoqec.runner import job
from autoqec.store import run_control
from autoqec.system import slurm as slurm_commands
from tests.crash import canned, driver
from tests.crash.starts import ENV
from tests.support import batch_worker
from tests.support.clusters import Cluster, fake_slurm

LOOSE = (
    "round_attempt_id", "branch", "commit_sha", "checkpoint_path", "started_at", "finished_at",
    "proposal_wallclock_s", "setup_wallclock_s", "measurement_started_at", "measurement_finished_at",
)  # fmt: skip


PATIENCE_S = 300


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


class OrchestratorKilled(BaseException):
    """Ends the loop without any clean-up, as SIGKILL would."""


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    cluster = fake_slurm(tmp_path / "fake")
    for name, value in cluster.env.items():
        monkeypatch.setenv(name, value)
    canned.install(monkeypatch.setattr)
    monkeypatch.setattr(job, "work_batch", batch_worker.work_batch)
    monkeypatch.setattr(slurm, "ARRAY_WAIT_S", 600.0)  # rounds are ready together however slow the machine is
    yield cluster
    for number, state in cluster.jobs().items():
        if state in ("PENDING", "RUNNING"):
            with suppress(subprocess.CalledProcessError):  # it has ended since
                cluster.ask("scancel", number)


def roles() -> Roles:
    return Roles(
        lambda view: driver.scripted(set(), view),
        coder=driver.literal,
        analyst=lambda view: driver.nominate(view, verdict="ignore"),
    )


def new_run(tmp_path: Path) -> Run:
    make_workspace(tmp_path / "workspace", ENV)
    return start_run(tmp_path / "workspace" / "env.yaml", tmp_path / "workspace", "smoke", 1, "tpe", roles=roles())


def executor(run: Run, below_s: float, slots: int = 1, **more: Any) -> SlurmExecutor:
    given = {"poll_files_s": 0.05, "poll_slurm_s": 0.2, "file_lag_s": 0.5, "predict_s": RoundDuration(run), **more}
    return SlurmExecutor(slots, {"mem": "1G"}, batch_below_s=below_s, **given)


def when_waiting(cluster: SlurmExecutor, action: Callable[[], None]) -> SlurmExecutor:
    """Have the executor call `action` whenever it waits."""
    while_waiting = cluster.while_waiting

    def acting(*awaited: Any) -> None:
        action()
        while_waiting(*awaited)

    cluster.while_waiting = acting
    return cluster


def jobs_of(run: Run, rows: list[HistoryRow]) -> list[str | None]:
    """Return the job that began each round."""
    return [job.claiming_job_id(run.layout.round(row.round)) for row in rows]


def statuses(rows: list[HistoryRow]) -> list[tuple[int, str]]:
    return [(row.round, row.status) for row in rows]


class Stub(SimpleNamespace):
    """A round of which an executor needs these attributes alone."""

    __hash__ = object.__hash__


def test_size_of_a_batch_follows_from_the_predicted_duration() -> None:
    assert [batch_size(60.0, seconds) for seconds in (None, 90.0, 60.0, 59.0, 20.0, 11.0)] == [1, 1, 1, 2, 3, 6]
    assert batch_size(60.0, 0.0) == batch_size(1e6, 1.0) == MAX_BATCH
    assert batch_options({"time": "01:00:00", "mem": "1G"}, 90.0) == {"time": "63", "mem": "1G"}
    assert batch_options({"time": "01:00:00"}, 0.0) == {"time": "01:00:00"}


def test_short_rounds_share_a_job_and_give_the_rows_of_single_jobs(tmp_path: Path, fake: Cluster) -> None:
    """The first round is measured alone; its 200 s predict that three rounds fill 500."""
    found: dict[float, list[dict[str, Any]]] = {}
    for below_s, jobs in ((0.0, ["1", "2", "3", "4", "5", "6", "7"]), (500.0, ["8", "9", "9", "9", "10", "10", "10"])):
        with new_run(tmp_path / f"{below_s:g}") as run:
            run_rounds(run, 7, executor=executor(run, below_s))
            rows = run.memory.history.rows()
        assert statuses(rows) == [(number, "ok") for number in range(1, 8)]
        assert jobs_of(run, rows) == jobs
        assert len({row.round_attempt_id for row in rows}) == 7
        found[below_s] = [{key: value for key, value in row.dump().items() if key not in LOOSE} for row in rows]
    for alone, together in zip(found[0.0], found[500.0], strict=True):
        assert {key for key in alone if alone[key] != together[key]} == set()
    assert len(fake.jobs()) == 10
    times = [fake_time(fake, number) for number in ("7", "8", "9")]
    assert times == [17, 17, 34], "a job with a batch has the time of a round after the last one that it may begin"


def fake_time(fake: Cluster, number: str) -> int:
    assert fake.conf is not None
    return int(json.loads((fake.conf.parent / f"job_{number}" / "job.json").read_text())["options"]["time"])


def released(run: Run, cluster: SlurmExecutor, blocked: int, begun: int) -> SlurmExecutor:
    """Block a round until another one has begun, however long that takes."""
    block, deadline = batch_worker.blocker(run.layout.root, blocked), time.monotonic() + PATIENCE_S
    block.touch()

    def act() -> None:
        assert time.monotonic() < deadline, f"round {begun} waits for round {blocked}"
        if job.claiming_job_id(run.layout.round(begun)) is not None:
            block.unlink(missing_ok=True)

    return when_waiting(cluster, act)


@pytest.mark.parametrize("further", [3, 4])
def test_slots_have_further_rounds_while_the_oldest_one_is_measured(
    tmp_path: Path, fake: Cluster, further: int
) -> None:
    """Round 3 was proposed with rounds 1 and 2; round 4 may be proposed once one of these is complete."""
    fake.change(cpus=2)
    with new_run(tmp_path) as run:
        run_rounds(run, further, executor=released(run, executor(run, 0.0, slots=2), 1, further))
        assert statuses(run.memory.history.rows()) == [(number, "ok") for number in range(1, further + 1)]


def test_free_slot_gets_a_round_without_waiting_for_the_next_query_of_slurm(tmp_path: Path, fake: Cluster) -> None:
    fake.change(cpus=2)
    with new_run(tmp_path) as run:
        cluster = executor(run, 0.0, slots=2, poll_slurm_s=24 * 3600.0)
        run_rounds(run, 3, executor=released(run, cluster, 1, 3))
        assert statuses(run.memory.history.rows()) == [(1, "ok"), (2, "ok"), (3, "ok")]


@pytest.mark.parametrize(
    ("busy", "ready", "is_last", "sizes"),
    [
        (0, 4, False, [1, 1, 1, 1]),  # a batch has five rounds, and an empty slot costs more than a job
        (0, 6, False, [2, 2, 1, 1]),
        (2, 6, False, [3, 3]),
        (3, 4, False, [4]),
        (3, 12, False, [5]),
        (3, 12, True, [3]),  # the other slots will have as many
        (0, 12, True, [3, 3, 3, 3]),
        (4, 12, True, []),
    ],
)
def test_rounds_that_are_ready_share_the_free_slots(busy: int, ready: int, is_last: bool, sizes: list[int]) -> None:
    cluster = SlurmExecutor(4, batch_below_s=50.0, predict_s=lambda: 10.0)

    def future(number: int) -> Any:
        return Stub(job_key=number, complete=False, order=SimpleNamespace(options={}))

    cluster.ready = [future(-number) for number in range(1, ready + 1)]
    cluster.active = [*map(future, range(busy)), *cluster.ready]
    elements = cluster._next_elements(True, None, is_last)
    assert [len(element) for element in elements] == sizes
    assert not elements or [element[0] for element in elements] == cluster.ready[: len(elements)]


def test_rounds_wait_for_others_of_their_batch_a_part_of_its_duration(
    tmp_path: Path, fake: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "ARRAY_WAIT_S", 0.0)
    monkeypatch.setattr(slurm, "BATCH_WAIT", 0.0)
    fake.change(cpus=3)
    with new_run(tmp_path) as run:
        run_rounds(run, 3, executor=executor(run, 500.0, slots=3, predict_s=lambda: 200.0))
        assert len(set(jobs_of(run, run.memory.history.rows()))) == 3, "each is submitted before the next proposal"


def test_only_the_first_unfinished_round_of_a_job_is_looked_at() -> None:
    looked_at = list[int]()

    def future(number: int, job_key: str, complete: bool) -> Any:
        def look() -> bool:
            looked_at.append(number)
            return number == 2

        return Stub(job_key=job_key, complete=complete, look=look)

    cluster = SlurmExecutor(2)
    keys = ["a", "a", "a", "b", "b", "not submitted"]
    cluster.active = [future(number, key, number == 1) for number, key in enumerate(keys, start=1)]
    cluster.ready = cluster.active[-1:]
    cluster._look_at_jobs()
    assert looked_at == [2, 3, 4], "1 was complete, 2 is now, and 5 cannot begin before 4 ends"


@pytest.mark.parametrize(
    ("slots", "complete", "capacity"),
    [
        (1, [False], 1),
        (8, [], 8),
        (8, [False] * 8, 9),
        (8, [False, True, False, True], 9 + 2),
        (8, [True] * 8, 8),
        (8, [False] + [True] * 20, 16),
    ],  # fmt: skip
)
def test_capacity_has_rounds_in_place_of_completed_ones_unless_the_oldest_is_to_be_recorded(
    slots: int, complete: list[bool], capacity: int
) -> None:
    cluster = SlurmExecutor(slots)
    cluster.active = [SimpleNamespace(is_complete=lambda done=done: done, complete=done) for done in complete]  # type: ignore[misc]
    assert cluster.capacity == capacity


def test_batches_are_elements_of_an_array_whose_first_rounds_are_the_oldest(tmp_path: Path, fake: Cluster) -> None:
    with new_run(tmp_path) as run:
        run_rounds(run, 6, executor=executor(run, 500.0, slots=2, predict_s=lambda: 200.0))
        assert jobs_of(run, run.memory.history.rows()) == ["1_0", "1_1", "1_0", "1_1", "1_0", "1_1"]


def blocked_batch(run: Run, blocked: int, action: Callable[[str], None], below_s: float = 500.0) -> SlurmExecutor:
    """Return an executor of batches of three; call `action(job)` once, when the blocked round began in its job."""
    block = batch_worker.blocker(run.layout.root, blocked)
    block.touch()

    def act() -> None:
        number = job.claiming_job_id(run.layout.round(blocked))
        if number is not None and block.exists():
            action(number)
            block.unlink()

    return when_waiting(executor(run, below_s, predict_s=lambda: 200.0), act)


def test_cancelled_job_fails_only_the_rounds_that_did_not_finish(tmp_path: Path, fake: Cluster) -> None:
    with new_run(tmp_path) as run:
        run_rounds(run, 4, executor=blocked_batch(run, 2, lambda number: fake.ask("scancel", number) and None))
        rows = run.memory.history.rows()
    assert statuses(rows) == [(1, "ok"), (2, "train_error"), (3, "train_error"), (4, "ok")]
    assert all("SLURM job 1 ended CANCELLED" in str(row.status_reason) for row in rows[1:3])
    assert "left no result; the log of its batch ends: " in str(rows[1].status_reason)
    assert str(rows[2].status_reason).endswith("before it began this round of its batch"), "its log is of other rounds"
    assert fake.jobs() == {"1": "CANCELLED", "2": "COMPLETED"}


def test_rounds_that_a_lost_job_did_not_begin_are_submitted_again(tmp_path: Path, fake: Cluster) -> None:
    with new_run(tmp_path) as run:
        run_rounds(run, 3, executor=blocked_batch(run, 2, lambda number: fake.lose(number, "NODE_FAIL")))
        rows = run.memory.history.rows()
    assert statuses(rows) == [(1, "ok"), (2, "train_error"), (3, "ok")]
    assert "SLURM job 1 ended NODE_FAIL" in str(rows[1].status_reason)
    assert jobs_of(run, rows) == ["1", "1", "2"]


@pytest.mark.parametrize(("below_s", "limit"), [(500.0, "34 minutes for a batch of rounds"), (0.0, "--slurm time=17")])
def test_job_over_its_time_limit_is_named_with_that_limit(
    tmp_path: Path, fake: Cluster, below_s: float, limit: str
) -> None:
    with new_run(tmp_path) as run:
        run_rounds(run, 2, executor=blocked_batch(run, 1, lambda number: fake.lose(number, "TIMEOUT"), below_s))
        row, after = run.memory.history.rows()
    assert after.status == "ok"
    assert (row.status, row.failure_cause) == ("killed_by_safety", "time limit")
    assert f"SLURM job 1 ended TIMEOUT, {limit} (" in str(row.status_reason)


def submitted_twice(
    run: Run, fake: Cluster, monkeypatch: pytest.MonkeyPatch, action: Callable[[], object] = lambda: None
) -> SlurmExecutor:
    """Return an executor whose first sbatch times out before SLURM accepts the job, so that it submits round 1 again.

    The first job claims the round and is blocked in it; the second one, whose id is returned, finds the claim and ends.
    `action` is called once the order names the first job, and the round is no longer blocked then.
    """
    fake.change(busy=1, late=True, unlisted=1)
    layout, block = run.layout.round(1), batch_worker.blocker(run.layout.root, 1)
    block.touch()

    def wait_for_claim(seconds: float) -> None:
        if seconds:
            until(lambda: job.claiming_job_id(layout) == "1")

    def act() -> None:
        order = job.read_order(layout)
        if block.exists() and order is not None and order.job_id == "1":
            action()
            block.unlink()

    monkeypatch.setattr(slurm_commands, "time", SimpleNamespace(sleep=wait_for_claim))
    return when_waiting(executor(run, 0.0), act)


def test_round_is_awaited_from_the_job_that_began_it(
    tmp_path: Path, fake: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_run(tmp_path) as run:
        run_rounds(run, 1, executor=submitted_twice(run, fake, monkeypatch))
        rows = run.memory.history.rows()
    assert statuses(rows) == [(1, "ok")] and jobs_of(run, rows) == ["1"]
    assert len(fake.jobs()) == 2, "the other one ended without a measurement"


@pytest.mark.parametrize(("forgets", "reason"), [(False, "job 1 ended NODE_FAIL"), (True, "no longer knows job 1")])
def test_round_fails_if_the_job_that_began_it_is_lost(
    tmp_path: Path, fake: Cluster, monkeypatch: pytest.MonkeyPatch, forgets: bool, reason: str
) -> None:
    def lose() -> None:
        fake.lose("1", "NODE_FAIL")
        fake.change(forgets=forgets)

    with new_run(tmp_path) as run:
        run_rounds(run, 1, executor=submitted_twice(run, fake, monkeypatch, lose))
        (row,) = run.memory.history.rows()
    assert row.status == "train_error" and reason in str(row.status_reason)


def test_job_that_could_not_begin_any_round_fails_them(
    tmp_path: Path, fake: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "work_batch", exit)
    with new_run(tmp_path) as run:
        run_rounds(run, 2, executor=executor(run, 500.0, predict_s=lambda: 200.0))
        rows = run.memory.history.rows()
    assert statuses(rows) == [(1, "train_error"), (2, "train_error")] and len(fake.jobs()) == 2


def killed(run: Run, cluster: SlurmExecutor, rounds: int) -> None:
    with pytest.raises(OrchestratorKilled), run:
        run_rounds(run, rounds, executor=cluster)


def resumed(run: Run, rounds: int) -> list[HistoryRow]:
    with resume_run(run.info.run_id, run.layout.root.parents[1], roles=roles()) as again:
        run_rounds(again, rounds, executor=executor(again, 500.0, predict_s=lambda: 200.0))
        return again.memory.history.rows()


def test_batch_survives_the_process_that_submitted_it(tmp_path: Path, fake: Cluster) -> None:
    """Killed while round 2 of the batch 1 to 3 runs, and round 4 waits for a batch of its own."""
    run = new_run(tmp_path)

    def kill(number: str) -> None:
        if run.layout.round(4).job.exists():
            batch_worker.blocker(run.layout.root, 2).unlink()
            raise OrchestratorKilled

    block = batch_worker.blocker(run.layout.root, 2)
    block.touch()
    killed(run, when_waiting(executor(run, 500.0, predict_s=lambda: 200.0), lambda: kill("")), 6)
    assert job.claiming_job_id(run.layout.round(4)) is None
    rows = resumed(run, 6)
    assert statuses(rows) == [(number, "ok") for number in range(1, 7)]
    assert jobs_of(run, rows) == ["1", "1", "1", "2", "2", "2"], "nothing ran twice, and waiting rounds are a batch"


@pytest.mark.parametrize(("point", "jobs"), [("job_queued", ["1", "1", "1"]), ("job_ordered", ["1", "1", "1"])])
def test_kill_between_order_and_submission_of_a_batch_makes_one_job(
    tmp_path: Path, fake: Cluster, monkeypatch: pytest.MonkeyPatch, point: str, jobs: list[str]
) -> None:
    def kill(name: str) -> None:
        if name == point:
            raise OrchestratorKilled

    run = new_run(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(slurm_round, "failpoint", kill)
        patched.setattr(slurm, "failpoint", kill)
        killed(run, executor(run, 500.0, predict_s=lambda: 200.0), 3)
    rows = resumed(run, 3)
    assert statuses(rows) == [(1, "ok"), (2, "ok"), (3, "ok")] and jobs_of(run, rows) == jobs


def test_second_interrupt_cancels_the_batch_and_all_of_its_rounds(tmp_path: Path, fake: Cluster) -> None:
    def interrupt(number: str) -> None:
        raise KeyboardInterrupt

    run = new_run(tmp_path)
    with pytest.raises(KeyboardInterrupt), run:
        run_rounds(run, 4, executor=blocked_batch(run, 2, interrupt))
    assert fake.jobs() == {"1": "CANCELLED"}
    assert not any(run.layout.round(number).job.exists() for number in (2, 3, 4))


def test_second_interrupt_asks_a_silent_slurm_once_and_the_run_can_be_resumed(
    tmp_path: Path, fake: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs end by themselves, since their orders are withdrawn."""
    fake.change(cpus=3)
    run, asked, run_command = new_run(tmp_path), list[str](), slurm_commands.run_command
    blocks = [batch_worker.blocker(run.layout.root, number) for number in (1, 2, 3)]
    for block in blocks:
        block.touch()

    def interrupt() -> None:
        if all(job.claiming_job_id(run.layout.round(number)) is not None for number in (1, 2, 3)):
            fake.change(down=True)
            monkeypatch.setattr(
                slurm_commands, "run_command", lambda *argv: (asked.append(argv[0]), run_command(*argv))[1]
            )
            raise KeyboardInterrupt

    events = list[Any]()
    with pytest.raises(KeyboardInterrupt), run:
        run_rounds(run, 3, events.append, executor=when_waiting(executor(run, 0.0, slots=3), interrupt))
    assert asked == ["scancel"]
    assert [event.why for event in events if getattr(event, "state", "") == "unreachable"] == [
        "jobs end by themselves, their orders are withdrawn"
    ]
    fake.change(down=False)
    until(lambda: set(fake.jobs().values()) == {"COMPLETED"})
    for block in blocks:
        block.unlink()
    assert statuses(resumed(run, 3))[3:] == [(4, "ok"), (5, "ok"), (6, "ok")]


def test_stop_request_rejects_the_rounds_that_wait_for_a_batch(tmp_path: Path, fake: Cluster) -> None:
    with new_run(tmp_path) as run:
        cluster = blocked_batch(run, 2, lambda number: run_control.request_stop(run.layout))
        cluster.stop_reason = partial(stop_of_waiting, run, Budget(), Clock(), InterruptHandler())
        outcome = run_rounds(run, 9, executor=cluster)
        rows = run.memory.history.rows()
    assert statuses(rows) == [(1, "ok"), (2, "ok"), (3, "ok"), (4, "orphaned_branch")]
    assert run_control.STOPPED in str(rows[-1].status_reason) and outcome.stop_reason == run_control.STOPPED
    assert list(fake.jobs()) == ["1"]
