"""Information about processes from /proc; empty results on systems without it."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")


def parents() -> dict[int, int]:
    """Return pid -> parent's pid of every visible process."""
    found = {}
    for pid in pids():
        fields = stat_fields(pid)
        if fields:
            found[pid] = int(fields[1])
    return found


def pids() -> list[int]:
    """Return the ids of the visible processes."""
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/<pid>/stat after the command's name (state first); [] for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].decode().split()
    except (OSError, ValueError):
        return []


def process_tree(root: int) -> list[int]:
    """Return `root` and all of its descendants."""
    children: dict[int, list[int]] = {}
    for pid, parent in parents().items():
        children.setdefault(parent, []).append(pid)
    found, queue = [], [root]
    while queue:
        pid = queue.pop()
        found.append(pid)
        queue += children.get(pid, [])
    return found


def rss_bytes(processes: list[int]) -> int:
    """Return the resident memory of the processes in bytes; shared pages count for each."""
    total = 0
    for pid in processes:
        try:
            total += int(Path(f"/proc/{pid}/statm").read_bytes().split()[1]) * _PAGE
        except (OSError, ValueError, IndexError):
            continue
    return total


def anonymous_bytes(processes: list[int]) -> int:
    """Return the resident memory of the processes that no file backs, in bytes."""
    total = 0
    for pid in processes:
        try:
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith(("RssAnon:", "RssShmem:")))
    return total * 1024


def start_time(pid: int) -> int | None:
    """Return the clock ticks after boot at which the process started; with the pid it identifies the process."""
    fields = stat_fields(pid)
    return int(fields[19]) if len(fields) > 19 and fields[0] != "Z" else None


@cache
def boot_id() -> str:
    """Return the kernel's id of this boot."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def environ(pid: int) -> list[bytes]:
    """Return the NAME=value entries that the process was started with; [] if they cannot be read."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
