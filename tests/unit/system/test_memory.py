"""Available memory: of the machine, and of control groups of both versions."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoqec.errors import UsageError
from autoqec.system import memory

MIB = 2**20


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")


def available(root: Path, group: str, files: dict[str, str]) -> int | None:
    """Return what is available on a machine with 800 MiB, in a control group with these files."""
    meminfo = "MemTotal: 1024000 kB\nMemAvailable: 819200 kB\n"
    write(root, {"proc/meminfo": meminfo, "proc/self/cgroup": group})
    write(root / "groups", files)
    return memory.available_bytes(root / "proc", root / "groups")


def test_machine_without_limits(tmp_path: Path) -> None:
    assert available(tmp_path, "0::/\n", {}) == 800 * MIB


@pytest.mark.parametrize(
    ("group", "prefix", "names"),
    [
        ("0::/a/b\n", "", ("memory.max", "memory.current", "inactive_file")),
        (
            "5:cpu:/\n4:memory,hugetlb:/a/b\n0::/\n",
            "memory/",
            ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
        ),
    ],
)
def test_the_tightest_group_counts_without_reclaimable_cache(
    tmp_path: Path, group: str, prefix: str, names: tuple[str, str, str]
) -> None:
    limit, usage, cache = names
    files = {f"a/b/{limit}": f"{600 * MIB}\n", f"a/b/{usage}": f"{100 * MIB}\n"}
    files |= {f"a/{limit}": f"{500 * MIB}\n", f"a/{usage}": f"{300 * MIB}\n"}
    files["a/memory.stat"] = f"anon 7\n{cache} {50 * MIB}\n"
    files |= {limit: "max\n", usage: "1\n"}
    found = available(tmp_path, group, {prefix + name: text for name, text in files.items()})
    assert found == 250 * MIB


def test_a_container_that_hides_its_own_group(tmp_path: Path) -> None:
    files = {"memory.max": f"{64 * MIB}", "memory.current": f"{63 * MIB}"}
    assert available(tmp_path, "0::/docker/0123\n", files) == MIB


def test_unknown_memory_is_not_checked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert memory.available_bytes(tmp_path, tmp_path) is None
    monkeypatch.setattr(memory, "available_bytes", lambda: None)
    memory.require_bytes({"graph": 1e15}, "env `x`", "choose fewer rounds")


def test_error_names_parts_total_and_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "available_bytes", lambda: int(2e9))
    memory.require_bytes({"graph": 1e9, "batches": 1e9}, "env `x`", "choose fewer rounds")
    with pytest.raises(UsageError) as caught:
        memory.require_bytes({"graph": 3e9, "batches": 0.5e9}, "env `x`", "choose fewer rounds")
    error = caught.value
    assert error.message == (
        "needs about 3.5 GB of memory (graph 3 GB, batches 0.5 GB), 1.5 GB more than the 2 GB available"
    )
    assert (error.location, error.hint) == ("env `x`", "choose fewer rounds")
