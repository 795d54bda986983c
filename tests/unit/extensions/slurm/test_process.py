"""The process of a job does what submitit's own process does: each test runs both."""

from __future__ import annotations

import operator
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autoqec.installation import IMPORT_DIR

OWN = ("-m", "autoqec.extensions.slurm.process", "-u", "-m", "submitit.core._submit")
SUBMITIT = ("-m", "submitit.core._submit")
both = pytest.mark.parametrize("words", [OWN, SUBMITIT], ids=["own", "submitit"])


def environment(folder: Path) -> dict[str, str]:
    """Return the environment of an element of an array; its `scontrol` lists its arguments in a file."""
    scontrol = folder / "bin" / "scontrol"
    scontrol.parent.mkdir(parents=True)
    scontrol.write_text(f"#!/bin/sh\necho $* > '{folder}'/requeued\n")
    scontrol.chmod(0o755)
    ids = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "1"}
    path = f"{scontrol.parent}:{os.environ['PATH']}"
    return {"PATH": path, "PYTHONPATH": str(IMPORT_DIR), "SUBMITIT_EXECUTOR": "slurm", **ids}


def started(words: tuple[str, ...], folder: Path) -> subprocess.Popen[str]:
    """Start the process of a job in the folder."""
    return subprocess.Popen(
        [sys.executable, "-P", "-s", "-u", *words, str(folder)],
        env=environment(folder), cwd="/", text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def put_call(folder: Path, function: Callable[..., Any], *arguments: Any, minutes: int = 5) -> None:
    """Write the call as submitit does; the file has its name at once."""
    from submitit.core.utils import DelayedSubmission

    call = DelayedSubmission(function, *arguments)
    call.set_timeout(minutes, 3)
    call.dump(folder / "call")
    (folder / "call").rename(folder / "7_1_submitted.pkl")


def ended(
    words: tuple[str, ...], folder: Path, *call: Any, minutes: int = 5
) -> tuple[int, str, tuple[str, Any] | None]:
    """Return exit status, output and result of a call."""
    folder.mkdir()
    put_call(folder, *call, minutes=minutes)
    process = started(words, folder)
    output, _ = process.communicate(timeout=60)
    result = folder / "7_1_0_result.pkl"
    return process.returncode, output, pickle.loads(result.read_bytes()) if result.exists() else None


@both
def test_value_is_the_result(words: tuple[str, ...], tmp_path: Path) -> None:
    status, _, result = ended(words, tmp_path / "a job", operator.add, "a", "b")
    assert (status, result) == (0, ("success", "ab"))


def test_job_whose_directory_was_removed_ends_without_an_error(tmp_path: Path) -> None:
    """The process that submitted it has the files that it waited for."""
    assert ended(OWN, tmp_path / "job", shutil.rmtree, str(tmp_path / "job"))[::2] == (0, None)


@both
def test_error_is_the_result_and_the_end_of_the_log(words: tuple[str, ...], tmp_path: Path) -> None:
    status, output, result = ended(words, tmp_path / "job", operator.truediv, 1, 0)
    assert status == 1 and output.rstrip().endswith("ZeroDivisionError: division by zero")
    assert result is not None and result[0] == "error" and "ZeroDivisionError" in result[1]


@both
@pytest.mark.parametrize(("minutes", "is_requeued"), [(5, False), (60, True)])
def test_warning_of_slurm_ends_or_requeues_the_job(
    words: tuple[str, ...], tmp_path: Path, minutes: int, is_requeued: bool
) -> None:
    """The limit of 5 minutes could be near; long before the limit of an hour the job can only be preempted."""
    folder = tmp_path / "job"
    status, output, result = ended(words, folder, signal.raise_signal, signal.SIGUSR2, minutes=minutes)
    if is_requeued:
        assert (status, result) == (255, None) and (folder / "requeued").read_text() == "requeue 7_1\n"
    else:
        assert status == 1 and not (folder / "requeued").exists()
        assert result is not None and result[0] == "error"
        assert ("JobEndingError" if words == OWN else "UncompletedJobError") in output


@both
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGCONT])
def test_signals_that_the_function_may_handle_do_not_end_the_job(
    words: tuple[str, ...], tmp_path: Path, number: signal.Signals
) -> None:
    assert ended(words, tmp_path / "job", signal.raise_signal, number)[::2] == (0, ("success", None))


@both
def test_call_that_submitit_has_not_renamed_yet_is_awaited(words: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "job"
    folder.mkdir()
    process = started(words, folder)
    assert process.stdout is not None and process.stdout.readline(), "a line of the log, before the call is there"
    time.sleep(0.5)  # it would have failed by now
    put_call(folder, time.sleep, 0)
    process.communicate(timeout=60)
    assert process.returncode == 0 and (folder / "7_1_0_result.pkl").exists()
