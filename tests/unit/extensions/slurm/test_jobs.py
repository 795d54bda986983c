"""State of jobs, as SLURM's commands report it."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from autoqec.extensions.slurm import jobs
from tests.support.clusters import Cluster


def put(cluster: Cluster, number: str, state: str, name: str = "a-round", why: str = "None") -> None:
    """Add a job that never ran."""
    assert cluster.conf is not None
    place = cluster.conf.parent / f"job_{number}"
    place.mkdir(exist_ok=True)
    job = {"id": number, "name": name, "state": state, "why": why, "code": "1:0", "options": {"time": "7"}}
    (place / "job.json").write_text(json.dumps(job))


def test_jobs_are_found_by_name_and_index(cluster: Cluster) -> None:
    for number in ("4_0", "4_1", "9_0"):
        put(cluster, number, "PENDING")
    put(cluster, "3", "RUNNING", name="other")
    assert jobs.find_jobs("a-round") == {0: "4_0", 1: "4_1"}, "the first that was asked for"
    assert jobs.find_jobs("other") == {None: "3"} and jobs.find_jobs("unknown") == {}


@pytest.mark.parametrize(
    ("state", "life"),
    [
        ("PENDING", "alive"),
        ("COMPLETING", "alive"),
        ("COMPLETED", "ended"),
        ("NODE_FAIL", "ended"),
        ("TIMEOUT", "ended"),
    ],
)
def test_queue_state_decides_whether_a_job_is_alive(cluster: Cluster, state: str, life: str) -> None:
    put(cluster, "3", state, why="Resources")
    found = jobs.query_job("3")
    assert (found.life, found.state) == (life, state) and "Resources" in found.why


def test_job_out_of_the_queue_is_looked_up_in_the_accounting(cluster: Cluster) -> None:
    put(cluster, "3", "CANCELLED")
    cluster.change(forgets=True, accounting=True)
    assert jobs.query_job("3") == ("ended", "CANCELLED", "exit code 1:0, 00:00:01 long")
    cluster.change(accounting=False)
    assert jobs.query_job("3") == ("gone", "", "Slurm accounting storage is disabled")


def test_accounting_that_still_lists_a_job_as_running_is_outdated(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def ask(*argv: str) -> tuple[int, str]:
        return (1, "slurm_load_jobs error: Invalid job id specified") if argv[0] == "squeue" else (0, "RUNNING|0:0|1")

    monkeypatch.setattr(jobs, "run_command", ask)
    assert jobs.query_job("3").life == "gone"


def test_unreachable_controller_leaves_the_job_state_unknown(cluster: Cluster) -> None:
    put(cluster, "3", "RUNNING")
    cluster.change(down=True)
    assert jobs.query_job("3").life == "unreachable"
    with pytest.raises(ConnectionError):
        jobs.find_jobs("a-round")


def test_job_has_ended_once_its_files_must_be_visible(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    put(cluster, "3", "RUNNING")
    now, seen = [0.0], list[str]()
    monkeypatch.setattr(jobs, "time", SimpleNamespace(monotonic=lambda: now[0]))
    watched = jobs.WatchedJob("3", jobs.Polling(slurm_s=5, lag_s=10), lambda job: seen.append(job.state))
    assert watched.poll() is None
    put(cluster, "3", "TIMEOUT", why="TimeLimit")
    for now[0], has_ended in ((4.0, False), (6.0, False), (15.0, False), (17.0, True)):
        assert (watched.poll() is not None) == has_ended
    assert seen == ["RUNNING", "TIMEOUT"] and "job 3 ended TIMEOUT (TimeLimit" in watched.describe_end()
