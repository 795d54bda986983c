"""Process groups whose workers end together. Workers in these tests load no torch."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autoqec.errors import RoundError
from autoqec.extensions.training_loops.process_group import WorkerGroup
from autoqec.extensions.training_loops.shared_memory import Mutex, SharedArray, TokenPipe

ROOT = Path(__file__).parents[4]
LEADER = """
import sys, time
from tests.unit.extensions.training_loops.test_process_group import start_sleepers
if __name__ == "__main__":
    team = start_sleepers()
    print(*team.pids.values(), flush=True)
    time.sleep(60)
"""


def sleeper(worker: Any, trouble: str = "") -> None:
    worker.ready()
    if trouble == "raise":
        raise RoundError("killed_by_safety", "the loss is not finite at step 3")
    if trouble == "leave":
        os._exit(0)
    time.sleep(60)


def start_sleepers(*troubles: str) -> WorkerGroup:
    team = WorkerGroup()
    for number, trouble in enumerate(troubles or ("", "")):
        team.start(f"sampler {number}", sleeper, trouble)
    return team


def add_up(worker: Any, numbers: SharedArray, lock: Mutex, go: TokenPipe, done: TokenPipe) -> None:
    worker.ready()
    go.get()
    for _ in range(200):
        with lock:
            held = numbers.array[1]
            time.sleep(0)
            numbers.array[1] = held + 1
    done.put(7)


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def wait_until_ended(pids: list[int]) -> bool:
    deadline = time.monotonic() + 30
    while any(map(alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(alive, pids))


def test_arrays_tokens_and_mutexes_are_shared_and_leave_no_file() -> None:
    before = set(os.listdir("/dev/shm"))
    numbers, lock, go, done = SharedArray((3,), np.int64), Mutex(), TokenPipe(), TokenPipe()
    team = WorkerGroup()
    for number in range(2):
        team.start(f"adder {number}", add_up, numbers, lock, go, done)
    team.await_ready()
    go.put()
    go.put()
    team.join()
    assert (done.get(), done.get(), done.get(timeout=0.01)) == (7, 7, None)
    assert list(numbers.array) == [0, 400, 0], "no sum was lost"
    team.close()
    assert set(os.listdir("/dev/shm")) <= before


def test_failed_worker_reports_its_reason_and_the_others_end() -> None:
    team = start_sleepers("", "raise")
    with pytest.raises(RoundError, match="sampler 1: the loss is not finite at step 3") as failure:
        team.join()
    assert failure.value.status == "killed_by_safety"
    team.close()
    assert not any(map(alive, team.pids.values()))


def test_killed_worker_is_named_with_its_signal() -> None:
    team = start_sleepers()
    team.await_ready()
    victim = team.pids["sampler 0"]
    os.kill(victim, signal.SIGKILL)
    cause = team.find_cause(RuntimeError("connection closed by peer"))
    assert str(cause) == f"sampler 0 (process {victim}) was ended by signal 9"
    team.close()
    assert not any(map(alive, team.pids.values()))
    own = RoundError("train_error", "mine")
    assert team.find_cause(own) is own


def test_worker_that_exits_early_with_status_0_is_named() -> None:
    team = start_sleepers("", "leave")
    with pytest.raises(RoundError, match=r"sampler 1 \(process \d+\) was ended by status 0"):
        team.join()
    team.close()
    assert not any(map(alive, team.pids.values()))


def test_workers_exit_when_their_parent_is_killed() -> None:
    leader = subprocess.Popen([sys.executable, "-c", LEADER], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    assert leader.stdout is not None
    pids = [int(pid) for pid in leader.stdout.readline().split()]
    assert len(pids) == 2 and all(map(alive, pids))
    leader.kill()
    leader.wait()
    leader.stdout.close()
    assert wait_until_ended(pids)


def test_failed_allocation_of_shared_memory_has_a_hint() -> None:
    message = r"cannot allocate .* MB of shared memory.*hint: lower `training.replay.shots`"
    with pytest.raises(RoundError, match=message):
        SharedArray((2**60,), np.uint8)
