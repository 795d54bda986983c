"""What the commands that read a whole run cost at 2,000 rounds: part of `make bench`.

`python -m benchmarks.commands`, or for some of them `--only COMMAND`. Each command runs in a process of its own; the
figures are CPU seconds of that process and of the git processes that it starts, which a loaded machine reports, too.
The bytecode of the package is compiled before, as by an installation.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from autoqec.contracts.dsl import parse_dsl
from autoqec.contracts.round import RoundMetrics
from autoqec.orchestrator.recovery.apply import reconcile
from autoqec.store import files, train_log
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from autoqec.system.git import Repo
from benchmarks.rounds import append_rounds, load_note, make_two_round_run
from benchmarks.table import Row, record
from tests.crash import canned, driver

SUITE = "commands at 2,000 rounds"
REPEATS = 5
ROUNDS = 2_000
STEPS = 500  # lines of a train.log
AIMS = {"show": 1.0, "report": 3.0, "reconcile": 1.0, "review-log": None}


def rows(commands: Sequence[str]) -> list[Row]:
    """One row per command."""
    with tempfile.TemporaryDirectory(prefix="autoqec-bench-") as directory:
        small, large = (make_run(Path(directory) / str(size), size) for size in (ROUNDS // 10, ROUNDS))
        return [_row(command, AIMS[command], small, large) for command in commands]


def make_run(place: Path, size: int) -> RunLayout:
    """A run of `size` rounds with the files that each of them leaves, one in ten verified, all views up to date."""
    layout = make_two_round_run(place)
    append_rounds(layout, size - 2, measured=_measured)
    losses = [15 * math.exp(-step / 100) + 0.1 for step in range(STEPS)]
    for row in History(layout).rows():
        files_of_round = layout.round(row.round)
        files_of_round.train_log.unlink(missing_ok=True)
        train_log.append(files_of_round.train_log, 0, losses)
        files_of_round.config.write_text(files.dump_config(row.dsl_config or {}), encoding="utf-8")
        metrics = RoundMetrics.model_validate({name: getattr(row, name) for name in RoundMetrics.model_fields})
        files_of_round.metrics.write_text(json.dumps(metrics.dump()), encoding="utf-8")
    reconcile(layout, Repo.discover(layout.repo_root))
    return layout


def _measured(number: int) -> dict[str, Any]:
    """A config of its own for each round, a gain on val shots, and now and then a failure."""
    config = driver.changed(mlp__hidden=4 + number, training__batch_size=256 + number % 3)
    fields: dict[str, Any] = {"dsl_config": config, "dsl_config_sha256": parse_dsl(config).sha256()}
    if number % 7 == 3 and number % 10:
        reason = f"the loss is not finite at step {number}"
        return fields | {"delta_ler": None, "status": "train_error", "status_reason": reason}
    fixed, broken, plain = 40 + number % 17, 40 + number % 13, 280
    counts = {"val_shots": 20_000, "val_errors_plain": plain, "val_errors_predecoder": plain - fixed + broken}
    return fields | counts | {"val_fixed": fixed, "val_broken": broken, "delta_ler": (fixed - broken) / 20_000}


def _row(command: str, aim: float | None, small: RunLayout, large: RunLayout) -> Row:
    cpu_s(command, small)  # compiles
    seconds, fewer = (statistics.median(cpu_s(command, layout) for _ in range(REPEATS)) for layout in (large, small))
    target = f"; aim: <= {aim:g} s" if aim is not None else "; aim: at most linear"
    return Row(
        f"autoqec {command}, {ROUNDS:,} rounds",
        f"{seconds:.2f} s of CPU",
        f"{fewer:.2f} s at {ROUNDS // 10} rounds; the whole command, its start and git included{target}",
        f"median of {REPEATS}{load_note()}",
    )


def cpu_s(command: str, layout: RunLayout) -> float:
    """CPU seconds of one `autoqec COMMAND RUN`, in a process of its own with those that it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    argv = [sys.executable, "-m", "autoqec.cli", command, layout.run_id]
    env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(layout.repo_root.parent / "bytecode")
    subprocess.run(argv, cwd=layout.repo_root, check=True, capture_output=True, env=env)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return (after.ru_utime + after.ru_stime) - (before.ru_utime + before.ru_stime)


def main() -> None:
    canned.install()
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=[*AIMS], help="measure only this command; repeatable")
    found = rows(parser.parse_args().only or [*AIMS])
    record(SUITE, found, replace_suite=False)
    for row in found:
        print(f"{row.name}: {row.figure} (against {row.against}; {row.runs})")


if __name__ == "__main__":
    main()
