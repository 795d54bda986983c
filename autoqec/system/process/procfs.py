"""The tree of a process and what it uses; what psutil does not tell is read from /proc."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TypeVar

import psutil

Answer = TypeVar("Answer")
PROC = Path("/proc")


def process_tree(root: int) -> list[int]:
    """Return `root` and all of its descendants."""
    with suppress(psutil.Error):
        return [root, *(process.pid for process in psutil.Process(root).children(recursive=True))]
    return [root]


def cpu_seconds(processes: list[int]) -> float:
    """Return the CPU time of the processes and of their children that have ended."""
    return sum(_ask(processes, lambda process: sum(process.cpu_times()[:4])))


def is_active(processes: list[int]) -> bool:
    """Return whether any of the processes runs, or waits for a disk."""
    states = _ask(processes, lambda process: process.status())
    return psutil.STATUS_RUNNING in states or psutil.STATUS_DISK_SLEEP in states


def _ask(processes: list[int], question: Callable[[psutil.Process], Answer]) -> list[Answer]:
    """Return the answers of the processes that still exist."""
    answers = []
    for pid in processes:
        with suppress(psutil.Error):
            answers.append(question(psutil.Process(pid)))
    return answers


def rss_bytes(processes: list[int]) -> int:
    """Return the memory of the processes in bytes, swapped and huge pages included; shared pages count for each."""
    return _status_bytes(processes, ("VmRSS:", "VmSwap:", "HugetlbPages:"))


def anonymous_bytes(processes: list[int]) -> int:
    """Return the memory of the processes that no file backs, swapped and huge pages included, in bytes."""
    return _status_bytes(processes, ("RssAnon:", "RssShmem:", "VmSwap:", "HugetlbPages:"))


def _status_bytes(processes: list[int], fields: tuple[str, ...]) -> int:
    """Return the sum of fields of /proc/<pid>/status, which are given in kB, in bytes."""
    total = 0
    for pid in processes:
        try:
            lines = (PROC / str(pid) / "status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith(fields))
    return total * 1024


def removed_bytes(processes: list[int], directory: Path) -> int:
    """Return the bytes of removed files on the file system of `directory` that the processes still hold.

    A file is held by a descriptor, or by a mapping of a path below `directory`; each file counts once.
    """
    try:
        device, below = os.stat(directory).st_dev, f"{directory.resolve()}/"
    except OSError:
        return 0
    found: dict[tuple[int, int], int] = {}
    for pid in processes:
        for descriptor in _entries(PROC / str(pid) / "fd"):
            with suppress(OSError):
                info = os.stat(descriptor)
                if stat.S_ISREG(info.st_mode) and info.st_nlink == 0 and info.st_dev == device:
                    found[info.st_dev, info.st_ino] = info.st_blocks * 512
        for inode, size in _removed_mappings(pid, below).items():
            found.setdefault((device, inode), size)
    return sum(found.values())


def _entries(directory: Path) -> list[Path]:
    try:
        return [directory / name for name in os.listdir(directory)]
    except OSError:
        return []


def _removed_mappings(pid: int, below: str) -> dict[int, int]:
    """Return inode -> mapped bytes of the removed files below a path that a process maps."""
    found: dict[int, int] = {}
    try:
        lines = (PROC / str(pid) / "maps").read_text(errors="replace").splitlines()
    except OSError:
        return found
    for line in lines:
        if not line.endswith(" (deleted)"):
            continue
        span, _, _, _, inode, path = line.split(maxsplit=5)
        if path.startswith(below):
            start, end = (int(address, 16) for address in span.split("-"))
            found[int(inode)] = found.get(int(inode), 0) + end - start
    return found
