"""Memory that this process can still use: what the machine has available, and what its control groups allow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from autoqec.errors import UsageError

GB = 1e9
# Files of a control group, in versions 2 and 1: limit, usage, and the key of reclaimable page cache in memory.stat.
_V2 = ("memory.max", "memory.current", "inactive_file")
_V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def available_bytes(proc: Path = Path("/proc"), cgroups: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the memory that can still be allocated without swapping, in bytes; None where it cannot be found.

    Args:
        proc: Where procfs is mounted.
        cgroups: Where the file systems of control groups are mounted.
    """
    found = [size for size in (_machine_bytes(proc), *_group_bytes(proc, cgroups)) if size is not None]
    return min(found, default=None)


def require_bytes(needed: Mapping[str, float], location: str, hint: str) -> None:
    """Raise UsageError if more memory is needed than available; nothing is checked where that is not known.

    Args:
        needed: Bytes by what needs them.
        location: What is too large.
        hint: How to need less.
    """
    available = available_bytes()
    if available is not None:
        require_at_most(needed, available, "available", location, hint)


def require_at_most(needed: Mapping[str, float], limit: float, limit_name: str, location: str, hint: str) -> None:
    """Raise UsageError if more than `limit` bytes are needed, see `require_bytes`; name the limit in the message."""
    total = sum(needed.values())
    if total > limit:
        parts = ", ".join(f"{name} {size / GB:.3g} GB" for name, size in needed.items())
        message = (
            f"needs about {total / GB:.3g} GB of memory ({parts}), {(total - limit) / GB:.3g} GB more than the "
            f"{limit / GB:.3g} GB {limit_name}"
        )
        raise UsageError(message, location=location, hint=hint)


def _machine_bytes(proc: Path) -> int | None:
    return _key(proc / "meminfo", "MemAvailable:", 1024)


def _group_bytes(proc: Path, cgroups: Path) -> Iterator[int | None]:
    """Yield what is left in each control group of this process; a container may show the upper ones only."""
    for line in _lines(proc / "self" / "cgroup"):
        number, controllers, path = (line.split(":", 2) + ["", ""])[:3]
        if number == "0" and not controllers:
            root, names = cgroups, _V2
        elif "memory" in controllers.split(","):
            root, names = cgroups / "memory", _V1
        else:
            continue
        group = Path(path.lstrip("/"))
        for each in (group, *group.parents):
            yield _left(root / each, *names)


def _left(group: Path, limit_file: str, usage_file: str, cache_key: str) -> int | None:
    limit, usage = (_number(" ".join(_lines(group / name))) for name in (limit_file, usage_file))
    if limit is None or usage is None:
        return None
    return max(0, limit - usage + (_key(group / "memory.stat", cache_key, 1) or 0))


def _key(path: Path, key: str, unit: int) -> int | None:
    fields = (line.split() for line in _lines(path))
    value = next((_number(parts[1]) for parts in fields if len(parts) > 1 and parts[0] == key), None)
    return None if value is None else value * unit


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None  # a group without limit has `max`


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []
