"""Processes below the test's own, by the words of their command lines."""

from __future__ import annotations

import os
from pathlib import Path

from autoqec.system.process import procfs


def below(*words: str) -> list[int]:
    """Those whose command line holds every one of `words`, oldest first."""
    found = []
    for process in procfs.process_tree(os.getpid()):
        try:
            command = Path(f"/proc/{process}/cmdline").read_bytes().decode(errors="replace")
        except OSError:
            continue
        if process != os.getpid() and all(word in command for word in words):
            found.append(process)
    return sorted(found)


def spawned() -> list[int]:
    """Members of training loops, in the order in which they were started."""
    return below("spawn_main", "--multiprocessing-fork")


def leader() -> int:
    """The body of the round under way, which leads them: the innermost of the processes that its walls are made of."""
    return below("autoqec.runner.child")[-1]
