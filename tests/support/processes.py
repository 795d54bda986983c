"""Descendant processes of the test, selected by their command lines."""

from __future__ import annotations

import os
from pathlib import Path

from autoqec.system.process import procfs


def below(*words: str) -> list[int]:
    """Return descendants whose command line contains all `words`, oldest first."""
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
    """Return workers of training loops in the order of their start."""
    return below("spawn_main", "--multiprocessing-fork")


def leader() -> int:
    """Return the main process of the current round: the innermost of its sandbox processes."""
    return below("autoqec.runner.child")[-1]
