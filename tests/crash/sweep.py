"""Starts that die, or meet a broken disk, at the N-th call that changes a file: built on shim.c and zygote.py."""

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
    """How a start ended. count: changing calls it made; last: the one that was made to fail. unsynced: files that were
    written and not synced since: path, inode, the first byte of it. others: exit statuses of further copies."""

    returncode: int
    count: int
    last: str
    unsynced: list[tuple[str, int, int]]
    others: list[int]

    def lose(self, *, zeros: bool) -> None:
        """What a power cut does to what was not synced: the bytes are gone, or their places hold NULs."""
        for path, inode, cut in self.unsynced:
            # A git that was still ending may have removed it just now.
            with suppress(FileNotFoundError, IsADirectoryError), open(path, "r+b") as stream:
                found = os.fstat(stream.fileno())
                if found.st_ino != inode:
                    continue  # replaced
                stream.truncate(min(cut, found.st_size))
                if zeros:
                    stream.truncate(found.st_size)


class Zygote:
    """Starts by the hundred. `lab` is where every one of them happens."""

    def __init__(self, process: subprocess.Popen[str], workspace: Path) -> None:
        self._process, self.workspace = process, workspace

    def stderr(self) -> str:
        """What every start so far said."""
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
        judge: int = 0,
        die_at: str = "",
        copies: int = 1,
    ) -> ExitReport:
        """cases: of the driver, and `quiet` (nothing is nominated). recover: no round, recovery alone; judge: no round,
        but the recorded round of that number goes before the judge. die_at: a failpoint. copies: started at once."""
        order: dict[str, Any] = {"lab": str(self.workspace), "rounds": rounds, "run_id": run_id, "cases": list(cases)}
        order |= {
            "recover": recover,
            "judge": judge,
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

    def restore(self, kept: Path) -> None:
        """The lab as it was, at the same path: git records worktrees by absolute paths."""
        shutil.rmtree(self.workspace, ignore_errors=True)
        shutil.copytree(kept, self.workspace, symlinks=True)


def has_compiler() -> bool:
    return sys.platform == "linux" and shutil.which("cc") is not None


@contextmanager
def zygote(place: Path) -> Iterator[Zygote]:
    """Build the shim in `place` and start the zygote with it."""
    control, library = place / "control", place / "shim.so"
    control.write_bytes(bytes(2**18))
    flags = ["-shared", "-fPIC", "-O1", f'-DCONTROL="{control}"', "-o", str(library), str(SHIM), "-ldl"]
    subprocess.run(["cc", *flags], check=True)
    env = os.environ | {"LD_PRELOAD": str(library), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.crash.zygote", str(control)]
    with (place / "stderr").open("w") as log:
        process = subprocess.Popen(
            command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True
        )
    try:
        yield Zygote(process, place / "lab")
    finally:
        process.kill()
        process.wait()
