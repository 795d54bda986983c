"""Short rounds that share SLURM jobs, with fake SLURM commands and a Runner that returns at once."""

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
from autoqec.contracts.events import ignore
from autoqec.contracts.history import HistoryRow
from autoqec.contracts.job import FurtherRound, JobOrder
from autoqec.contracts.profiles import profile_of
from autoqec.extensions.slurm import executor as slurm
from autoqec.extensions.slurm import rounds as slurm_round
from autoqec.extensions.slurm import shared_jobs
from autoqec.extensions.slurm import submission as slurm_commands
from autoqec.extensions.slurm.executor import SlurmExecutor
from autoqec.extensions.slurm.shared_jobs import RoundDuration, idle_s, shared_options
from autoqec.orchestrator.budget import Budget, Clock, InterruptHandler
from autoqec.orchestrator.loop import Roles, Run, resume_run, run_rounds, start_run, stop_of_waiting
from autoqec.runner import job
from autoqec.store import run_control
from autoqec.store.further_rounds import END, FurtherRounds
from autoqec.verification import verifier
from tests.crash import canned, driver
from tests.crash.starts import ENV
from tests.support import job_worker
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
    monkeypatch.setattr(job, "work_rounds", job_worker.work_rounds)
    # However slow the machine is, rounds are ready together and wait for the jobs that run.
    monkeypatch.setattr(slurm, "ARRAY_WAIT_S", 600.0)
    monkeypatch.setattr(slurm, "AWAITED_S", 600.0)
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

    def acting() -> None:
        action()
        while_waiting()

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


def test_shared_job_has_the_time_of_a_round_after_the_last_one_that_it_may_begin() -> None:
    assert shared_options({"time": "01:00:00", "mem": "1G"}, 90.0) == {"time": "63", "mem": "1G"}
    assert shared_options({"time": "01:00:00"}, 0.0) == {"time": "01:00:00"}
    assert [idle_s(below_s) for below_s in (15.0, 600.0)] == [5.0, 60.0]


@pytest.mark.parametrize(("predicted_s", "shares"), [(None, False), (60.0, False), (59.0, True)])
def test_rounds_that_are_predicted_to_be_shorter_share_jobs(predicted_s: float | None, shares: bool) -> None:
    assert SlurmExecutor(2, batch_below_s=60.0, predict_s=lambda: predicted_s)._shares_jobs() is shares
    assert not SlurmExecutor(2, predict_s=lambda: predicted_s)._shares_jobs()


def test_short_rounds_share_a_job_and_give_the_rows_of_single_jobs(tmp_path: Path, fake: Cluster) -> None:
    """The first round is measured alone; its 200 s predict that further ones are shorter than 500."""
    found: dict[float, list[dict[str, Any]]] = {}
    for below_s, jobs in ((0.0, ["1", "2", "3", "4", "5", "6", "7"]), (500.0, ["8"] + ["9"] * 6)):
        with new_run(tmp_path / f"{below_s:g}") as run:
            run_rounds(run, 7, executor=executor(run, below_s))
            rows = run.memory.history.rows()
        assert statuses(rows) == [(number, "ok") for number in range(1, 8)]
        assert jobs_of(run, rows) == jobs
        assert len({row.round_attempt_id for row in rows}) == 7
        found[below_s] = [{key: value for key, value in row.dump().items() if key not in LOOSE} for row in rows]
    for alone, together in zip(found[0.0], found[500.0], strict=True):
        # With a further round in progress, proposals know one result less.
        assert {key for key in alone if alone[key] != together[key]} == set()
    assert len(fake.jobs()) == 9
    assert [fake_time(fake, number) for number in ("7", "8", "9")] == [17, 17, 34]


def fake_time(fake: Cluster, number: str) -> int:
    assert fake.conf is not None
    return int(json.loads((fake.conf.parent / f"job_{number}" / "job.json").read_text())["options"]["time"])


def released(run: Run, cluster: SlurmExecutor, blocked: int, begun: int) -> SlurmExecutor:
    """Block a round until another one has begun, however long that takes."""
    block, deadline = job_worker.blocker(run.layout.root, blocked), time.monotonic() + PATIENCE_S
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


def test_rounds_beyond_the_free_slots_wait_for_no_others(
    tmp_path: Path, fake: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_run(tmp_path) as run:
        cluster = executor(run, 500.0, slots=2, predict_s=lambda: 200.0)
        sizes, real = list[int](), slurm.enqueue
        monkeypatch.setattr(slurm, "enqueue", lambda rounds, *more: (sizes.append(len(rounds)), real(rounds, *more)))
        submitted, submit = list[int](), cluster.submit

        def counting(*arguments: Any) -> Any:
            future = submit(*arguments)
            submitted.append(sum(sizes))
            return future

        cluster.submit = counting  # type: ignore[method-assign]
        run_rounds(run, 3, executor=cluster)
    assert submitted[:2] == [0, 2], "the second one completes the array, although ARRAY_WAIT_S has not passed"


def test_single_job_per_round_is_submitted_after_the_wait(
    tmp_path: Path, fake: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "ARRAY_WAIT_S", 0.0)
    fake.change(cpus=3)
    with new_run(tmp_path) as run:
        run_rounds(run, 3, executor=executor(run, 0.0, slots=3))
        assert jobs_of(run, run.memory.history.rows()) == ["1", "2", "3"], "each before the next proposal"


def test_only_the_first_unfinished_round_of_a_job_is_looked_at() -> None:
    looked_at = list[int]()

    def future(number: int, job_key: str, complete: bool) -> Any:
        def look() -> bool:
            looked_at.append(number)
            stub.complete = number == 2
            return stub.complete

        stub = Stub(job_key=job_key, complete=complete, look=look, order=SimpleNamespace(position=number))
        return stub

    cluster = SlurmExecutor(2)
    keys = ["a", "a", "a", "b", "b", "not submitted"]
    cluster.active = [future(number, key, number == 1) for number, key in enumerate(keys, start=1)]
    cluster.ready = cluster.active[-1:]
    cluster._look_at_jobs()
    assert looked_at == [2, 3, 4], "1 was complete, 2 is now, and 5 cannot begin before 4 ends"
    cluster._look_at_jobs()
    assert looked_at == [2, 3, 4], "not twice within a quarter of a second"


@pytest.mark.parametrize(
    ("slots", "below_s", "complete", "capacity"),
    [
        (1, 0.0, [False], 1),
        (8, 0.0, [], 8),
        (8, 0.0, [False] * 8, 9),
        (8, 0.0, [False, True, False, True], 9 + 2),
        (8, 0.0, [True] * 8, 8),
        (8, 0.0, [False] + [True] * 20, 16),
        (1, 60.0, [False], 2),
        (8, 60.0, [], 16),
        (8, 60.0, [False] * 8, 17),
        (8, 60.0, [False, True, False, True], 17 + 2),
        (8, 60.0, [True] * 8, 16),
        (8, 60.0, [False] + [True] * 20, 24),
    ],  # fmt: skip
)
def test_capacity_has_rounds_in_place_of_completed_ones_unless_the_oldest_is_to_be_recorded(
    slots: int, below_s: float, complete: list[bool], capacity: int
) -> None:
    cluster = SlurmExecutor(slots, batch_below_s=below_s, predict_s=lambda: 10.0)
    cluster.active = [SimpleNamespace(is_complete=lambda done=done: done, complete=done) for done in complete]  # type: ignore[misc]
    assert cluster.capacity == capacity


def test_jobs_of_an_array_take_further_rounds(tmp_path: Path, fake: Cluster) -> None:
    with new_run(tmp_path) as run:
        run_rounds(run, 6, executor=executor(run, 500.0, slots=2, predict_s=lambda: 200.0))
        jobs = jobs_of(run, run.memory.history.rows())
    assert jobs[:2] == ["1_0", "1_1"] and set(jobs) == {"1_0", "1_1"}
    assert set(fake.jobs()) == {"1_0", "1_1"}


def blocked_job(
    run: Run,
    blocked: int,
    action: Callable[[str], object],
    below_s: float = 500.0,
    given: int | None = None,
    **more: Any,
) -> SlurmExecutor:
    """Return an executor of shared jobs that calls `action(job)` once, when the blocked round began in its job.

    given: Round that has to be the next one of that job before.
    """
    block = job_worker.blocker(run.layout.root, blocked)
    block.touch()

    def act() -> None:
        number = job.claiming_job_id(run.layout.round(blocked))
        if number is not None and block.exists() and (given is None or is_next(run, given)):
            action(number)
            block.unlink()

    return when_waiting(executor(run, below_s, predict_s=lambda: 200.0, **more), act)


def is_next(run: Run, number: int) -> bool:
    """Return whether a round is in the list of a job."""
    order = job.read_order(run.layout.round(number))
    return order is not None and order.position > 0 and shared_jobs.is_listed(order)


def test_cancelled_job_fails_only_the_rounds_that_it_did_not_finish(tmp_path: Path, fake: Cluster) -> None:
    with new_run(tmp_path) as run:
        run_rounds(run, 4, executor=blocked_job(run, 2, lambda number: fake.ask("scancel", number), given=3))
        rows = run.memory.history.rows()
    assert statuses(rows) == [(1, "ok"), (2, "train_error"), (3, "train_error"), (4, "ok")]
    assert all("SLURM job 1 ended CANCELLED" in str(row.status_reason) for row in rows[1:3])
    assert "left no result; the log of this job of several rounds ends: " in str(rows[1].status_reason)
    assert str(rows[2].status_reason).endswith("before it began this round"), "its log is of other rounds"
    assert fake.jobs()["1"] == "CANCELLED" and set(fake.jobs()) == {"1", "2"}


def test_rounds_that_a_lost_job_did_not_begin_are_measured_by_another(tmp_path: Path, fake: Cluster) -> None:
    with new_run(tmp_path) as run:
        run_rounds(run, 3, executor=blocked_job(run, 2, lambda number: fake.lose(number, "NODE_FAIL"), given=3))
        rows = run.memory.history.rows()
    assert statuses(rows) == [(1, "ok"), (2, "train_error"), (3, "ok")]
    assert "SLURM job 1 ended NODE_FAIL" in str(rows[1].status_reason)
    assert jobs_of(run, rows) == ["1", "1", "2"]


def test_round_that_is_given_to_a_lost_job_is_measured_by_another(tmp_path: Path, fake: Cluster) -> None:
    with new_run(tmp_path) as run:
        cluster = executor(run, 500.0, predict_s=lambda: 200.0)
        run_rounds(run, 2, executor=cluster)
        fake.lose("1", "NODE_FAIL")  # while it waits for a round
        run_rounds(run, 4, executor=cluster)
        rows = run.memory.history.rows()
    assert statuses(rows) == [(number, "ok") for number in range(1, 5)]
    assert jobs_of(run, rows)[:3] == ["1", "1", "2"]


def test_requeued_job_leaves_finished_rounds_as_they_are(tmp_path: Path, fake: Cluster) -> None:
    """The list of further rounds begins again; round 1 is recorded and has no worktree any more."""
    with new_run(tmp_path) as run:
        run_rounds(run, 4, executor=blocked_job(run, 3, lambda number: fake.lose(number, "PENDING"), given=4))
        rows = run.memory.history.rows()
        order = job.read_order(run.layout.round(4))
    assert statuses(rows) == [(number, "ok") for number in range(1, 5)] and set(jobs_of(run, rows)) == {"1"}
    assert order is not None and FurtherRounds(Path(str(order.further_rounds))).add(order.position + 1, END) == END
    until(lambda: fake.jobs() == {"1": "COMPLETED"})
    assert not any((tmp_path / "workspace" / ".worktrees").iterdir()), "that of round 1 was not made again"


def test_job_begins_no_round_after_its_time_and_others_get_those(
    tmp_path: Path, fake: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "begin_within_s", lambda below_s: -1.0)
    with new_run(tmp_path) as run:
        # SLURM is not asked: the list of the job tells that it will not begin the round.
        cluster = blocked_job(run, 1, lambda number: None, given=2, poll_slurm_s=24 * 3600.0)
        run_rounds(run, 4, executor=cluster)
        rows = run.memory.history.rows()
    assert statuses(rows) == [(number, "ok") for number in range(1, 5)]
    assert jobs_of(run, rows) == ["1", "2", "3", "4"]


def test_no_round_is_lost_to_jobs_that_end_at_once_when_idle(
    tmp_path: Path, fake: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each round finds its job about to end, so that sometimes the job and sometimes the run is first."""
    monkeypatch.setattr(shared_jobs, "IDLE_MIN_S", 0.0)
    monkeypatch.setattr(shared_jobs, "IDLE_SHARE", 0.0)
    with new_run(tmp_path) as run:
        run_rounds(run, 8, executor=executor(run, 500.0, slots=2, predict_s=lambda: 200.0))
        assert statuses(run.memory.history.rows()) == [(number, "ok") for number in range(1, 9)]


def listed(run: Run, order: JobOrder, index: int) -> FurtherRound | None:
    return FurtherRounds(Path(str(order.further_rounds))).read(index)


def test_round_that_comes_too_late_for_a_job_has_another(tmp_path: Path, fake: Cluster) -> None:
    """The job ended its list between the look and the new entry."""
    with new_run(tmp_path) as run:

        def end_list(number: str) -> None:
            order = job.read_order(run.layout.round(1))
            assert order is not None and order.further_rounds is not None
            FurtherRounds(Path(order.further_rounds)).add(1, END)

        run_rounds(run, 3, executor=blocked_job(run, 1, end_list, slots=1))
        rows = run.memory.history.rows()
        second = job.read_order(run.layout.round(2))
    assert statuses(rows) == [(1, "ok"), (2, "ok"), (3, "ok")] and jobs_of(run, rows)[:2] == ["1", "2"]
    assert second is not None and (second.position, second.job_id) == (0, "2")


def test_jobs_without_a_round_end_for_rounds_with_other_options(tmp_path: Path, fake: Cluster) -> None:
    with new_run(tmp_path) as run:
        cluster = executor(run, 500.0, predict_s=lambda: 200.0)
        run_rounds(run, 2, executor=cluster)
        cluster.options = {"mem": "2G"}
        run_rounds(run, 4, executor=cluster)
        rows = run.memory.history.rows()
        order = job.read_order(run.layout.round(1))
    assert jobs_of(run, rows) == ["1", "1", "2", "2"]
    assert order is not None and listed(run, order, 2) == END
    until(lambda: fake.jobs()["1"] == "COMPLETED")


def test_job_takes_rounds_with_its_options_code_and_container_only(tmp_path: Path, fake: Cluster) -> None:
    with new_run(tmp_path) as run:
        run_rounds(run, 1, executor=executor(run, 500.0, predict_s=lambda: 200.0))
        order = job.read_order(run.layout.round(1))
    assert order is not None
    shared = shared_jobs.SharedJob(order)
    assert shared.fits(order)
    other_config = order.config.model_copy(update={"container": "0" * 64})
    for change in ({"options": {"time": "5"}}, {"code_sha256": "0" * 64}, {"config": other_config}):
        assert not shared.fits(order.model_copy(update=change))


def test_job_that_ended_its_list_takes_no_round(tmp_path: Path, fake: Cluster) -> None:
    with new_run(tmp_path) as run:
        run_rounds(run, 1, executor=executor(run, 500.0, predict_s=lambda: 200.0))
        order = job.read_order(run.layout.round(1))
        assert order is not None
        shared, too_late = shared_jobs.SharedJob(order), Stub(layout=run.layout.round(2), place=lambda **placed: None)
        FurtherRounds(Path(str(order.further_rounds))).add(1, END)
        assert shared.is_open and not shared.give(too_late) and not shared.is_open


def test_list_of_an_idle_job_that_does_not_end_it_is_ended(
    tmp_path: Path, fake: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The job may be lost; its slot is free then."""
    monkeypatch.setattr(shared_jobs, "IDLE_LAG_S", -3600.0)
    with new_run(tmp_path) as run:
        cluster = executor(run, 500.0, predict_s=lambda: 200.0)
        monkeypatch.setattr(cluster, "release", lambda: None)
        run_rounds(run, 1, executor=cluster)
        order = job.read_order(run.layout.round(1))
        assert order is not None and listed(run, order, 1) is None and cluster._free_slots() == 0
        for _ in range(2):
            cluster.shared.look({})
    assert listed(run, order, 1) == END and cluster._free_slots() == 1


def test_jobs_without_a_round_end_with_the_run(tmp_path: Path, fake: Cluster) -> None:
    """They would keep their slots for a tenth of `--batch-below`."""
    with new_run(tmp_path) as run:
        run_rounds(run, 3, executor=executor(run, 500.0, slots=2, predict_s=lambda: 200.0))
        firsts = [order for number in (1, 2, 3) if (order := job.read_order(run.layout.round(number))) is not None]
        lists = {str(order.further_rounds): order for order in firsts}
        ends = [FurtherRounds(Path(place)) for place in lists]
    assert [any(each.read(index) == END for index in (1, 2, 3)) for each in ends] == [True] * len(ends) and ends


def test_verification_does_not_wait_for_a_job_without_a_round(
    tmp_path: Path, fake: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLURM may have no place for its job beside one that waits for a tenth of `--batch-below`."""
    lists: list[FurtherRound | None] = []
    with new_run(tmp_path) as run:
        cluster = executor(run, 500.0, predict_s=lambda: 200.0)
        with monkeypatch.context() as unreleased:
            unreleased.setattr(cluster, "release", lambda: None)
            run_rounds(run, 1, executor=cluster)
        order = job.read_order(run.layout.round(1))
        assert order is not None and listed(run, order, 1) is None
        monkeypatch.setattr(verifier, "verify", lambda *_, **__: lists.append(listed(run, order, 1)))
        candidate = SimpleNamespace(profile=profile_of("smoke"), round=SimpleNamespace(dir=run.layout.round(1).dir))
        cluster.verify(candidate, ignore)  # type: ignore[arg-type]
    assert lists == [END]


@pytest.mark.parametrize(
    ("below_s", "limit"), [(500.0, "34 minutes for a job with several rounds"), (0.0, "--slurm time=17")]
)
def test_job_over_its_time_limit_is_named_with_that_limit(
    tmp_path: Path, fake: Cluster, below_s: float, limit: str
) -> None:
    with new_run(tmp_path) as run:
        run_rounds(run, 2, executor=blocked_job(run, 1, lambda number: fake.lose(number, "TIMEOUT"), below_s))
        row, after = run.memory.history.rows()
    assert after.status == "ok"
    assert (row.status, row.failure_cause) == ("killed_by_safety", "time limit")
    assert f"SLURM job 1 ended TIMEOUT, {limit} (" in str(row.status_reason)


def submitted_twice(
    run: Run,
    fake: Cluster,
    monkeypatch: pytest.MonkeyPatch,
    action: Callable[[], object] = lambda: None,
    below_s: float = 0.0,
) -> SlurmExecutor:
    """Return an executor whose first sbatch times out before SLURM accepts the job, so that it submits round 1 again.

    The first job claims the round and is blocked in it; the second one, whose id is returned, finds the claim and ends.
    `action` is called once the order names the first job, and the round is no longer blocked then.
    """
    fake.change(busy=1, late=True, unlisted=1)
    layout, block = run.layout.round(1), job_worker.blocker(run.layout.root, 1)
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
    return when_waiting(executor(run, below_s, predict_s=lambda: 200.0), act)


def test_list_of_further_rounds_belongs_to_the_job_that_began_the_first_one(
    tmp_path: Path, fake: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    with new_run(tmp_path) as run:
        run_rounds(run, 3, executor=submitted_twice(run, fake, monkeypatch, below_s=500.0))
        rows = run.memory.history.rows()
    assert statuses(rows) == [(1, "ok"), (2, "ok"), (3, "ok")] and jobs_of(run, rows) == ["1", "1", "1"]
    assert fake.jobs()["2"] == "COMPLETED", "the other one ended without a measurement"


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
    monkeypatch.setattr(job, "work_rounds", exit)
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


def test_shared_job_survives_the_process_that_submitted_it(tmp_path: Path, fake: Cluster) -> None:
    """Killed while round 2 runs, round 3 is the next one of its job, and round 4 waits for a job."""
    run = new_run(tmp_path)

    def kill(number: str) -> None:
        assert not is_next(run, 4)
        job_worker.blocker(run.layout.root, 2).unlink()
        raise OrchestratorKilled

    cluster = blocked_job(run, 2, kill, given=3)
    capacity = type(cluster).capacity
    cluster.__class__ = type("OneAhead", (SlurmExecutor,), {"capacity": property(lambda self: capacity.fget(self) + 1)})
    killed(run, cluster, 6)
    rows = resumed(run, 6)
    assert statuses(rows) == [(number, "ok") for number in range(1, 7)]
    assert set(jobs_of(run, rows)) == {"1"} and len(fake.jobs()) == 1, "nothing ran twice"


POINTS = ("job_ordered", "job_queued", "job_numbered", "job_entry_ordered", "job_entry_added")


@pytest.mark.parametrize("point", POINTS)
def test_kill_between_order_and_job_loses_no_round(
    tmp_path: Path, fake: Cluster, monkeypatch: pytest.MonkeyPatch, point: str
) -> None:
    def kill(name: str) -> None:
        if name == point:
            raise OrchestratorKilled

    run = new_run(tmp_path)
    with monkeypatch.context() as patched:
        for module in (slurm_round, slurm, shared_jobs):
            patched.setattr(module, "failpoint", kill)
        killed(run, executor(run, 500.0, predict_s=lambda: 200.0), 3)
    rows = resumed(run, 3)
    assert statuses(rows) == [(1, "ok"), (2, "ok"), (3, "ok")]
    # A round that is awaited for longer than the interval of queries of SLURM has a further job.
    assert set(jobs_of(run, rows)) <= {"1", "2"} and jobs_of(run, rows)[0] == "1"
    assert len(fake.jobs()) == len(set(jobs_of(run, rows))), "each job measured a round"


def test_kill_while_an_earlier_round_is_given_keeps_the_new_one(
    tmp_path: Path, fake: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Round 2 is ready until round 3 is proposed, when the job has begun."""

    def kill(name: str) -> None:
        if name == "job_entry_added":
            raise OrchestratorKilled

    run = new_run(tmp_path)
    cluster = executor(run, 500.0, predict_s=lambda: 200.0)
    give, given = cluster.shared.give, list[int]()

    def give_later(ready: Any, unfinished: Any) -> Any:
        given.append(len(ready))
        if len(ready) < 2:
            return []
        until(lambda: job.claiming_job_id(run.layout.round(1)) is not None)
        cluster.shared.look(unfinished)
        return give(ready, unfinished)

    monkeypatch.setattr(cluster.shared, "give", give_later)
    monkeypatch.setattr(type(cluster), "capacity", property(lambda self: 3))
    with monkeypatch.context() as patched:
        patched.setattr(shared_jobs, "failpoint", kill)
        killed(run, cluster, 3)
    assert max(given) == 2
    rows = resumed(run, 3)
    assert statuses(rows) == [(1, "ok"), (2, "ok"), (3, "ok")]


def test_round_of_a_list_that_was_ended_meanwhile_has_another_job(
    tmp_path: Path, fake: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed after the order was written and before the entry; then the job ended its list."""

    def kill(name: str) -> None:
        if name == "job_entry_ordered":
            raise OrchestratorKilled

    run = new_run(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(shared_jobs, "failpoint", kill)
        killed(run, executor(run, 500.0, predict_s=lambda: 200.0), 2)
    order = job.read_order(run.layout.round(2))
    assert order is not None and (order.position, order.job_id) == (1, "1")
    FurtherRounds(Path(str(order.further_rounds))).add(1, END)
    rows = resumed(run, 3)
    assert statuses(rows) == [(1, "ok"), (2, "ok"), (3, "ok")] and jobs_of(run, rows)[:2] == ["1", "2"]


def test_order_of_a_batch_of_an_earlier_version_is_continued(
    tmp_path: Path, fake: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such a job has all of its rounds from the start. This one was forgotten before it began its second round."""

    def kill(name: str) -> None:
        if name == "job_ordered":
            raise OrchestratorKilled

    run = new_run(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(slurm, "failpoint", kill)
        killed(run, executor(run, 500.0), 1)
    path = run.layout.round(1).job
    stored = json.loads(path.read_text())
    del stored["further_rounds"]
    path.write_text(json.dumps({**stored, "name": "autoqec-0-x", "position": 1, "job_id": "77", "batch_time": "34"}))
    rows = resumed(run, 1)
    assert statuses(rows) == [(1, "ok")] and jobs_of(run, rows) == ["1"]


def test_detached_run_leaves_shared_jobs_to_the_next_process(tmp_path: Path, fake: Cluster) -> None:
    run, left = new_run(tmp_path), list[str]()
    with run:
        cluster = blocked_job(run, 2, left.append, given=3, leave=lambda: bool(left))
        outcome = run_rounds(run, 5, executor=cluster)
    assert "the next start continues the rounds in jobs" in outcome.stop_reason and fake.jobs() == {"1": "RUNNING"}
    rows = resumed(run, 5)
    assert statuses(rows) == [(number, "ok") for number in range(1, 6)] and set(jobs_of(run, rows)) == {"1"}


def test_second_interrupt_cancels_the_job_and_all_of_its_rounds(tmp_path: Path, fake: Cluster) -> None:
    def interrupt(number: str) -> None:
        raise KeyboardInterrupt

    run = new_run(tmp_path)
    with pytest.raises(KeyboardInterrupt), run:
        run_rounds(run, 4, executor=blocked_job(run, 2, interrupt, given=3))
    assert fake.jobs() == {"1": "CANCELLED"}
    assert not any(run.layout.round(number).job.exists() for number in (2, 3))


def test_second_interrupt_asks_a_silent_slurm_once_and_the_run_can_be_resumed(
    tmp_path: Path, fake: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The jobs end by themselves, since their orders are withdrawn."""
    fake.change(cpus=3)
    run, asked, run_command = new_run(tmp_path), list[str](), slurm_commands.run_command
    blocks = [job_worker.blocker(run.layout.root, number) for number in (1, 2, 3)]
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


def test_stop_request_rejects_the_rounds_that_wait_for_a_job(tmp_path: Path, fake: Cluster) -> None:
    """Rounds that a job has or is given are completed; two jobs have four, and one further round waits."""
    with new_run(tmp_path) as run:
        cluster = executor(run, 500.0, slots=2, predict_s=lambda: 200.0)
        cluster.stop_reason = partial(stop_of_waiting, run, Budget(), Clock(), InterruptHandler())
        blocks = [job_worker.blocker(run.layout.root, number) for number in (1, 2)]
        for block in blocks:
            block.touch()

        def act() -> None:
            if blocks[0].exists() and is_next(run, 3) and is_next(run, 4) and cluster.ready:
                run_control.request_stop(run.layout)
                for block in blocks:
                    block.unlink()

        outcome = run_rounds(run, 9, executor=when_waiting(cluster, act))
        rows = run.memory.history.rows()
    assert statuses(rows) == [(1, "ok"), (2, "ok"), (3, "ok"), (4, "ok"), (5, "orphaned_branch")]
    assert run_control.STOPPED in str(rows[-1].status_reason) and outcome.stop_reason == run_control.STOPPED
