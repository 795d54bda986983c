"""Measure the time of `autoqec report` and the size of its page; part of `make bench`."""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from autoqec.store.layout import RunLayout
from benchmarks.table import Row
from tests.support import runs

REPEATS = 5
ROUNDS = (50, 10_000)


def rows() -> list[Row]:
    with tempfile.TemporaryDirectory(prefix="autoqec-bench-") as directory:
        return [row for rounds in ROUNDS for row in report_timing_rows(Path(directory) / str(rounds), rounds)]


def report_timing_rows(root: Path, rounds: int) -> list[Row]:
    layout = runs.make_run(root, rounds, artifacts=rounds <= 50)
    seconds = statistics.median(report_cpu_s(layout) for _ in range(REPEATS))
    aim = "; aim: <= 3 s" if rounds == 50 else ""
    size = f"{layout.html.stat().st_size / 1000:.0f} kB"
    return [
        Row(
            f"autoqec report, {rounds:,} rounds",
            f"{seconds:.2f} s of CPU",
            f"the complete command, including its start and git{aim}",
            f"median of {REPEATS}",
        ),
        Row(f"report.html, {rounds:,} rounds", size, "aim: < 1 MB for 50 rounds", "1 page"),
    ]


def report_cpu_s(layout: RunLayout) -> float:
    """Return CPU seconds of one `autoqec report RUN`, including its child processes."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    argv = [sys.executable, "-m", "autoqec.cli", "report", str(layout.root), "--out", str(layout.html)]
    subprocess.run(argv, cwd=Path(__file__).parents[1], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)
