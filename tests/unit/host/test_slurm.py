"""What SLURM is asked, and what its answers are taken for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autoqec.errors import InputError
from autoqec.host import slurm
from tests.support.clusters import Cluster, stand_in


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cluster:
    found = stand_in(tmp_path)
    for name, value in found.env.items():
        monkeypatch.setenv(name, value)
    return found


def put(cluster: Cluster, number: str, state: str, name: str = "a-round", why: str = "None") -> None:
    """A job that never ran."""
    assert cluster.conf is not None
    place = cluster.conf.parent / f"job_{number}"
    place.mkdir(exist_ok=True)
    job = {"id": number, "name": name, "state": state, "why": why, "code": "1:0", "options": {"time": "7"}}
    (place / "job.json").write_text(json.dumps(job))


def test_options_are_keys_and_values() -> None:
    assert slurm.parse(["time=01:30:00", "mem=8G", "partition=gpu,cpu"]) == {
        "time": "01:30:00",
        "mem": "8G",
        "partition": "gpu,cpu",
    }


@pytest.mark.parametrize("text", ["time", "speed=9", "time=soon", "time=0", "time=30:00", "cpus=-1", "mem=8", "qos="])
def test_what_is_no_option_is_refused_with_its_place(text: str) -> None:
    with pytest.raises(InputError) as found:
        slurm.parse([text])
    assert found.value.where is not None and found.value.where.startswith("--slurm") and found.value.mend


@pytest.mark.parametrize(("text", "whole"), [("90", 90), ("01:30:00", 90), ("1-00:00:30", 1441), ("00:00:01", 1)])
def test_time_is_whole_minutes(text: str, whole: int) -> None:
    assert slurm.minutes(text) == whole


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
def test_the_queue_says_whether_a_job_lives(cluster: Cluster, state: str, life: str) -> None:
    put(cluster, "3", state, why="Resources")
    found = slurm.look("3")
    assert (found.life, found.state) == (life, state) and "Resources" in found.why
    assert life == "alive" or "exit code 1:0" in found.why


def test_a_job_out_of_the_queue_is_looked_up_in_the_accounting(cluster: Cluster) -> None:
    put(cluster, "3", "CANCELLED")
    cluster.change(forgets=True, accounting=True)
    assert slurm.look("3") == ("ended", "CANCELLED", "exit code 1:0, 00:00:01 long")
    cluster.change(accounting=False)
    assert slurm.look("3") == ("gone", "", "Slurm accounting storage is disabled")


def test_accounting_that_believes_a_job_alive_is_behind(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    def ask(*argv: str) -> tuple[int, str]:
        return (1, "slurm_load_jobs error: Invalid job id specified") if argv[0] == "squeue" else (0, "RUNNING|0:0|1")

    monkeypatch.setattr(slurm, "_ask", ask)
    assert slurm.look("3").life == "gone"


def test_silence_says_nothing_of_a_job(cluster: Cluster) -> None:
    put(cluster, "3", "RUNNING")
    cluster.change(down=True)
    assert slurm.look("3").life == "unreachable"
    with pytest.raises(ConnectionError):
        slurm.find("a-round")


def test_a_job_is_found_by_its_name(cluster: Cluster) -> None:
    put(cluster, "3", "RUNNING", "another")
    assert slurm.find("a-round") is None
    put(cluster, "12", "PENDING")
    put(cluster, "9", "COMPLETED")
    assert slurm.find("a-round") == "9", "the first that was asked for"


def test_a_check_queues_nothing(cluster: Cluster) -> None:
    slurm.check({"time": "5", "mem": "1G", "cpus": "1"})
    assert cluster.jobs() == {}
    for options, says in (({"partition": "nope"}, "partition"), ({"cpus": "900"}, "configuration")):
        with pytest.raises(InputError, match=says):
            slurm.check(options)
    cluster.change(down=True)
    with pytest.raises(InputError, match="contact"):
        slurm.check({})


def test_without_slurm_the_missing_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(InputError, match="`sbatch` is not on the PATH"):
        slurm.check({})
