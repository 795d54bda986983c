"""Options of jobs, their submission, and what SLURM answers to it."""

from __future__ import annotations

import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autoqec.errors import UsageError
from autoqec.extensions.slurm import commands, jobs
from autoqec.extensions.slurm import submission as slurm
from tests.support.clusters import Cluster


def test_several_arguments_become_one_array(cluster: Cluster, tmp_path: Path) -> None:
    cluster.change(hold=True)
    numbers = slurm.submit(print, [("a",), ("b",)], folder=tmp_path / "job", name="two", options={"time": "5"})
    assert numbers == ["1_0", "1_1"] and cluster.jobs() == {"1_0": "PENDING", "1_1": "PENDING"}
    jobs.cancel("1_0")
    assert cluster.jobs() == {"1_0": "CANCELLED", "1_1": "PENDING"}


def test_job_sees_the_listed_variables_and_no_login_shell(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SLURM starts a login shell for a list in `--export`."""
    monkeypatch.setenv("CUDA_HOME", "/opt/a b,c")
    monkeypatch.setenv("A_KEY", "secret")
    call, folder = "import os; print(os.environ.get('CUDA_HOME'), os.environ.get('A_KEY'))", tmp_path / "job"
    (number,) = slurm.submit(exec, [(call,)], folder=folder, name="a", options={"time": "5"})
    cluster.await_state(number, "COMPLETED", "FAILED")
    assert "\n/opt/a b,c None\n" in (folder / f"{number}_0_log.out").read_text()
    assert "--export=" not in next(folder.glob("*.sh")).read_text()


@pytest.mark.parametrize(("variable", "expected"), [("", "/tmp"), ("SLURM_TMPDIR=/node", "/node"), ("TMPDIR=/t", "/t")])
def test_temporary_files_of_a_job_are_on_the_disk_of_its_node(variable: str, expected: str) -> None:
    command = f"unset TMPDIR SLURM_TMPDIR; {variable}\n{commands.NODE_SCRATCH}; echo $TMPDIR"
    assert subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True).stdout.strip() == expected


def test_options_are_parsed_as_keys_and_values() -> None:
    assert slurm.parse_options(["time=01:30:00", "mem=8G", "partition=gpu,cpu"]) == {
        "time": "01:30:00",
        "mem": "8G",
        "partition": "gpu,cpu",
    }


@pytest.mark.parametrize("text", ["time", "speed=9", "time=soon", "time=0", "time=30:00", "cpus=-1", "mem=8", "qos="])
def test_invalid_option_is_refused_with_its_position(text: str) -> None:
    with pytest.raises(UsageError) as found:
        slurm.parse_options([text])
    assert found.value.location is not None and found.value.location.startswith("--slurm") and found.value.hint


@pytest.mark.parametrize(("text", "whole"), [("90", 90), ("01:30:00", 90), ("1-00:00:30", 1441), ("00:00:01", 1)])
def test_time_is_whole_minutes(text: str, whole: int) -> None:
    assert slurm.minutes(text) == whole


def test_check_submits_nothing(cluster: Cluster) -> None:
    slurm.check({"time": "5", "mem": "1G", "cpus": "1"})
    assert cluster.jobs() == {}
    for options, message in (({"partition": "nope"}, "partition"), ({"cpus": "900"}, "configuration")):
        with pytest.raises(UsageError, match=message):
            slurm.check(options)
    cluster.change(down=True)
    with pytest.raises(UsageError, match="contact"):
        slurm.check({})


def test_without_slurm_the_missing_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(UsageError, match="`sbatch` is not on the PATH"):
        slurm.check({})


def queued(cluster: Cluster, place: Path, **options: str) -> str:
    """Submit a job that does nothing and return its number."""
    cluster.change(hold=True)
    folder = place / "job"
    (number,) = slurm.submit(print, [()], folder=folder, name="a-round", options={"time": "5", **options})
    return number


def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the waiting times that the module requests, instead of waiting; submitit's own pauses stay."""
    waited: list[float] = []
    monkeypatch.setattr(slurm, "time", SimpleNamespace(sleep=waited.append))
    return waited


def test_restarting_controller_is_retried(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = waits(monkeypatch)
    cluster.change(busy=2)
    assert queued(cluster, tmp_path) == "1" and cluster.jobs() == {"1": "PENDING"}
    assert waited == [0.0, *slurm.RETRY_DELAYS_S[:2]]


def test_job_accepted_without_a_reply_is_not_submitted_twice(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits(monkeypatch)
    cluster.change(busy=1, late=True)
    assert queued(cluster, tmp_path) == "1" and len(cluster.jobs()) == 1


@pytest.mark.parametrize("arguments", [[("alone",)], [("first",), ("second",)]])
def test_jobs_accepted_without_a_reply_find_their_calls(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[tuple[str]]
) -> None:
    waits(monkeypatch)
    cluster.change(busy=1, late=True)
    folder = tmp_path / "a folder"
    numbers = slurm.submit(print, arguments, folder=folder, name="late", options={"time": "5"})
    for number, (word,) in zip(numbers, arguments, strict=True):
        cluster.await_state(number, "COMPLETED", "FAILED")
        assert f"\n{word}\n" in (folder / f"{number}_0_log.out").read_text()


def test_job_does_not_find_the_call_of_a_submission_that_was_cut_off(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits(monkeypatch)
    where: dict[str, Any] = {"folder": tmp_path / "job", "options": {"time": "5"}}
    cluster.change(refuses="error: no")
    with pytest.raises(UsageError):
        slurm.submit(print, [("stale",)], name="first", **where)
    (call,) = where["folder"].glob("*.pkl")
    call.rename(call.with_name(f"{'0' * 32}.pkl"))  # names are random, and the job takes the first one
    cluster.change(refuses=None, busy=1, late=True)
    (number,) = slurm.submit(print, [("fresh",)], name="second", **where)
    cluster.await_state(number, "COMPLETED", "FAILED")
    assert "\nfresh\n" in (where["folder"] / f"{number}_0_log.out").read_text()


def test_retries_end_with_one_error_if_the_controller_stays_unreachable(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited = waits(monkeypatch)
    cluster.change(down=True)
    with pytest.raises(UsageError, match="no job in 5 tries in 52 s: .*Unable to contact slurm controller.*--resume"):
        queued(cluster, tmp_path)
    assert waited == [0.0, *slurm.RETRY_DELAYS_S]


def test_refused_submission_is_not_retried(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = waits(monkeypatch)
    with pytest.raises(UsageError, match="refuses the job.*partition"):
        queued(cluster, tmp_path, partition="nowhere")
    assert waited == [0.0]


REFUSALS = (
    ("Invalid account or account/partition combination specified", "sacctmgr show associations"),
    ("Invalid qos specification", "sacctmgr show associations"),
    ("User's group not permitted to use this partition", "scontrol show partition"),
    ("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", "squeue --me"),
    ("Requested time limit is invalid (missing or exceeds some limit)", "sinfo"),
)


@pytest.mark.parametrize(("message", "advice"), REFUSALS)
def test_refusal_is_quoted_with_what_helps(cluster: Cluster, tmp_path: Path, message: str, advice: str) -> None:
    """At the start, and later if it applies only to jobs that are queued, as a limit on their number does."""
    cluster.change(refuses=message)
    with pytest.raises(UsageError) as at_start:
        slurm.check({"account": "theirs", "time": "5"})
    cluster.change(accepts_tests=True)
    slurm.check({"account": "theirs", "time": "5"})
    with pytest.raises(UsageError) as later:
        queued(cluster, tmp_path, account="theirs")
    for found in (at_start.value, later.value):
        assert message in found.message and advice in str(found.hint) and "--slurm account=theirs" in str(found.hint)
    assert cluster.jobs() == {}
