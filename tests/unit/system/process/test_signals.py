"""Ctrl-C reaches every process of the terminal's group: the main process handles it and no child dies of it."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autoqec.system.git import Repo
from autoqec.system.process import child
from autoqec.system.process.signals import block_signals

UNDER_FIRE = """
import os, signal, sys, threading, time
from pathlib import Path
from autoqec.system.process import child
from autoqec.system.git import Repo

taken, over = [], threading.Event()
signal.signal(signal.SIGINT, lambda number, frame: taken.append(number))

def shoot():
    while not over.wait(0.002):
        os.killpg(0, signal.SIGINT)

def git():
    repo.refs("refs/heads")

def process():
    ended = child.run(["true"], cwd=place, limits=child.Limits(60), stdout=place / "log")
    assert ended.returncode == 0, ended

place = Path(sys.argv[1])
repo = Repo.discover(place)
shooter = threading.Thread(target=shoot)
shooter.start()
try:
    for _ in range(int(sys.argv[3])):
        {"git": git, "process": process}[sys.argv[2]]()
finally:
    over.set()
    shooter.join()
assert len(taken) > 20, taken
"""


@pytest.mark.parametrize(("what", "times"), [("git", 150), ("process", 25)])
def test_ctrl_c_does_not_kill_a_child_during_its_start(repo: Repo, what: str, times: int) -> None:
    """Until it has its own session, a child is in the terminal's group, where SIGINT would end it."""
    ended = subprocess.run(
        [sys.executable, "-c", UNDER_FIRE, str(repo.root), what, str(times)],
        start_new_session=True,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ended.returncode == 0, ended.stderr


def test_signals_are_unblocked_after_the_start() -> None:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ())
    with pytest.raises(ValueError), block_signals(signal.SIGINT):
        assert signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ())
        raise ValueError
    assert signal.pthread_sigmask(signal.SIG_BLOCK, ()) == before


def test_child_can_be_interrupted(tmp_path: Path) -> None:
    code = "import os, signal; os.kill(os.getpid(), signal.SIGINT); os._exit(3)"
    ended = child.run(
        [sys.executable, "-c", code], cwd=tmp_path, limits=child.Limits(wallclock_s=60), stdout=tmp_path / "log"
    )
    assert ended.returncode != 3 and "KeyboardInterrupt" in (tmp_path / "log").read_text()
