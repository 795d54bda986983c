"""Records of measurements: benchmarks/results.json, and its table in benchmarks/README.md.

A row has suite, name, figure (with its unit), against (the reference of a ratio, or the aim), runs (number of shots or
runs), machine and date. New rows of a suite replace the earlier rows of that suite.

    from benchmarks.table import Row, record
    record("verification", [Row("false VERIFIED", "0.1%", "aim <= 5%", "2,000 streams of 20")])
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autoqec.qec.stats import clopper_pearson
from autoqec.store import atomic
from autoqec.system import machine

HERE = Path(__file__).resolve().parent
RESULTS, README = HERE / "results.json", HERE / "README.md"
COLUMNS = ("name", "figure", "against", "runs", "machine", "date")
HEAD = """# Benchmarks

Written by `make bench` and `make prove-verifier` from `results.json`; do not edit by hand. Every figure has its
reference, the number of shots or runs, machine and date. None is extrapolated.
Comparison of ideators, searches and models: [QECBench-Tab](qecbench_tab.md).
"""


@dataclass(frozen=True)
class Row:
    """One measured figure. against: the reference of a ratio, or the aim. runs: number of shots or runs."""

    name: str
    figure: str
    against: str
    runs: str


def record(
    suite: str, rows: Sequence[Row], *, replace_suite: bool = True, results: Path = RESULTS, readme: Path = README
) -> None:
    """Replace the rows of a suite (or only those of the same names) and write results and table atomically."""
    stamp = {"machine": machine_name(), "date": datetime.datetime.now(datetime.UTC).date().isoformat()}
    names = {row.name for row in rows}
    kept = [row for row in load(results) if row["suite"] != suite or not (replace_suite or row["name"] in names)]
    fresh = [{"suite": suite, **asdict(row), **stamp} for row in rows]
    everything = sorted([*kept, *fresh], key=lambda row: str(row["suite"]))
    atomic.write_json(results, {"rows": everything})
    atomic.write_text(readme, render(everything))


def load(results: Path = RESULTS) -> list[dict[str, Any]]:
    if not results.exists():
        return []
    rows: list[dict[str, Any]] = json.loads(results.read_text())["rows"]
    return rows


def render(rows: Sequence[dict[str, Any]]) -> str:
    out = [HEAD]
    for suite in dict.fromkeys(row["suite"] for row in rows):
        out += [f"## {suite}\n", "| measurement | result | against | shots or runs | machine | date |"]
        out += ["|---|---|---|---|---|---|"]
        out += ["| " + " | ".join(_cell(row[name]) for name in COLUMNS) + " |" for row in rows if row["suite"] == suite]
        out.append("")
    return "\n".join(out)


def _cell(value: Any) -> str:
    return str(value).replace("|", "/").replace("\n", " ")


def format_share(hits: int, n: int) -> str:
    """Return a share in per cent with its 95% interval."""
    low, high = clopper_pearson(hits, n)
    return f"{100 * hits / n:.2f}% [{100 * low:.2f}, {100 * high:.2f}]"


def machine_name() -> str:
    """Return processor, cores and accelerator as text, without a host name."""
    snapshot = machine.snapshot()
    gpu = snapshot["gpu"].get("name")
    return f"{snapshot['cpu']['model']}, {snapshot['cpu']['cores']} cores" + (f", {gpu}" if gpu else "")
