"""Starts that are killed, or get a disk error, at the N-th call that changes a file; uses shim.c and zygote.py."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.crash.starts import ROOT

MODES = {"kill": 0, "power": 0, "torn": 1, "enospc": errno.ENOSPC, "eio": errno.EIO, "eperm": errno.EPERM}
SHIM = Path(__file__).with_name("shim.c")


@dataclass(frozen=True)
class ExitReport:
    """Exit of a start. count: changing calls it made; last: the call that failed. unsynced: files that were
    written and not synced afterwards: path, inode, first unsynced byte. others: exit statuses of further copies."""

    returncode: int
    count: int
    last: str
    unsynced: list[tuple[str, int, int]]
    others: list[int]

    def lose(self, *, zeros: bool) -> None:
        """Simulate a power cut: unsynced bytes are lost, or replaced by NULs."""
        for path, inode, cut in self.unsynced:
            # A git process that was still ending may have removed it.
            with suppress(FileNotFoundError, IsADirectoryError), open(path, "r+b") as stream:
                status = os.fstat(stream.fileno())
                if status.st_ino != inode:
                    continue  # replaced
                stream.truncate(min(cut, status.st_size))
                if zeros:
                    stream.truncate(status.st_size)


class Zygote:
    """Runs hundreds of starts, all of them in `workspace`."""

    def __init__(self, process: subprocess.Popen[str], workspace: Path) -> None:
        self._process, self.workspace = process, workspace

    def stderr(self) -> str:
        """Return the error output of all starts so far."""
        return (self.workspace.parent / "stderr").read_text(encoding="utf-8")

    def start(
        self,
        rounds: int,
        run_id: str = "",
        cases: tuple[str, ...] = (),
        *,
        at: int = 0,
        mode: str = "kill",
        sticky: bool = False,
        recover: bool = False,
        verify: int = 0,
        die_at: str = "",
        copies: int = 1,
    ) -> ExitReport:
        """Run one start. cases: those of the driver, and `quiet` (nothing is nominated). recover: only recovery;
        verify: only verify the recorded round of that number. die_at: a failpoint. copies: concurrent starts."""
        order: dict[str, Any] = {
            "workspace": str(self.workspace),
            "rounds": rounds,
            "run_id": run_id,
            "cases": list(cases),
        }
        order |= {
            "recover": recover,
            "verify": verify,
            "die_at": die_at,
            "copies": copies,
            "control": {"at": at, "mode": MODES[mode], "sticky": int(sticky)},
        }
        assert self._process.stdin and self._process.stdout
        self._process.stdin.write(json.dumps(order) + "\n")
        self._process.stdin.flush()
        ended = ExitReport(**json.loads(self._process.stdout.readline()))
        if mode == "power":
            ended.lose(zeros=at % 2 == 1)
        return ended

    def restore(self, saved: Path) -> None:
        """Restore the workspace at the same path: git records worktrees by absolute paths."""
        shutil.rmtree(self.workspace, ignore_errors=True)
        shutil.copytree(saved, self.workspace, symlinks=True)


def has_compiler() -> bool:
    return sys.platform == "linux" and shutil.which("cc") is not None


@contextmanager
def zygote(directory: Path) -> Iterator[Zygote]:
    """Build the shim in `directory` and start the zygote with it."""
    control, library = directory / "control", directory / "shim.so"
    control.write_bytes(bytes(2**18))
    flags = ["-shared", "-fPIC", "-O1", f'-DCONTROL="{control}"', "-o", str(library), str(SHIM), "-ldl"]
    subprocess.run(["cc", *flags], check=True)
    env = os.environ | {"LD_PRELOAD": str(library), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.crash.zygote", str(control)]
    with (directory / "stderr").open("w") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        yield Zygote(process, directory / "workspace")
    finally:
        process.kill()
        process.wait()
