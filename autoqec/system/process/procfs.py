"""Information about processes from /proc; empty results on systems without it."""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from functools import cache
from pathlib import Path

PROC = Path("/proc")


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
