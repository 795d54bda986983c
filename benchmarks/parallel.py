"""Measure two concurrent rounds on two cores against serial rounds: real runs with the same proposals.

The figures are wall-clock ratios, so that the machine must be idle; load and CPU seconds of both runs are recorded
with them (more CPU seconds in the serial run mean that the machine was slower then). A verification uses two cores
itself, so that a run with verifications is never fully serial; hence a row without them, and one with two
measurements that share nothing but the machine.
"""

from __future__ import annotations

import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from autoqec import locate
from autoqec.cli.workspace import make_workspace
from autoqec.contracts.events import ignore
from autoqec.contracts.messages import AnalystResponse
from autoqec.contracts.round import RunnerConfig
from autoqec.contracts.views import AnalystView
from autoqec.ideators import analyst
from autoqec.orchestrator import loop
from autoqec.orchestrator.executors import run_round
from autoqec.orchestrator.roles import search
from autoqec.orchestrator.run import Roles
from benchmarks.table import Row, record
from tests.support.starts import start_run

# Enough rounds that the last one, which runs alone, does not dominate the rate.
ROUNDS, SEED = 20, 1
ENV = locate.BUILTIN / "smoke.yaml"
MLP = {"type": "mlp", "mlp": {"hidden": 32}}


def nominate_nothing(view: AnalystView) -> AnalystResponse:
    """Return the analyst's response without a nomination."""
    return analyst.analyse(view).model_copy(update={"verdict": "ignore"})


def cpu_seconds() -> float:
    """Return CPU seconds of this process and of all processes that it waited for."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def time_run(directory: Path, parallel: int, *, verify: bool) -> tuple[float, float]:
    """Return wall-clock and CPU seconds of ROUNDS rounds of a random search."""
    make_workspace(directory, ENV)
    roles = Roles(search("random"), analyst=analyst.analyse if verify else nominate_nothing)
    with start_run(directory / "env.yaml", directory, "smoke", SEED, "random", roles=roles, parallel=parallel) as run:
        start, spent = time.perf_counter(), cpu_seconds()
        loop.run_rounds(run, ROUNDS)
        return time.perf_counter() - start, cpu_seconds() - spent


def measure_concurrently(directory: Path, count: int) -> float:
    """Return wall-clock seconds of `count` concurrent measurements of one config, without a run."""

    def measure(number: int) -> None:
        config = RunnerConfig(
            env_yaml=ENV.read_text(encoding="utf-8"), predecoder_config=MLP, profile="smoke", seed=SEED,
            round_dir=str(directory / f"round_{number}"), run_id="measurement", round_idx=number,
        )  # fmt: skip
        status = run_round(config, ignore).status
        assert status == "ok", status

    start = time.perf_counter()
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(measure, range(1, count + 1)))
    return time.perf_counter() - start


def rows() -> list[Row]:
    load, cores = os.getloadavg()[0], os.cpu_count()
    with tempfile.TemporaryDirectory() as directory:
        measure_concurrently(Path(directory, "warm"), 1)  # caches, bytecode
        turns = [
            (measure_concurrently(Path(directory, f"one-{i}"), 1), measure_concurrently(Path(directory, f"two-{i}"), 2))
            for i in range(3)
        ]
        alone, both = (min(took) for took in zip(*turns, strict=True))
        took = {
            (verify, count): time_run(Path(directory, f"{verify}-{count}"), count, verify=verify)
            for verify in (False, True)
            for count in (1, 2)
        }

    def row(name: str, against: str, verify: bool) -> Row:
        (serial_s, serial_cpu_s), (parallel_s, parallel_cpu_s) = took[verify, 1], took[verify, 2]
        seconds = (
            f"{serial_s:.0f} and {parallel_s:.0f} s wall-clock, {serial_cpu_s:.0f} and {parallel_cpu_s:.0f} s of CPU"
        )
        runs = f"{ROUNDS} smoke rounds each: {seconds}; {cores} cores, load before: {load:.1f}"
        return Row(
            f"2 concurrent rounds on 2 cores, {name}",
            f"{serial_s / parallel_s:.2f} x the rounds per hour",
            against,
            runs,
        )

    return [
        row("without verification", "serial rounds; aim: >= 1.7 x", False),
        row("with verification", "serial rounds, whose verification also uses two cores; aim: >= 1.7 x", True),
        Row(
            "2 concurrent measurements",
            f"{2 * alone / both:.2f} x one",
            "limit of the machine: no run, no git, no verification",
            f"one config, best of {len(turns)}, {cores} cores",
        ),
    ]


def main() -> None:
    found = rows()
    record("concurrent rounds", found)
    for row in found:
        print(f"{row.name}: {row.figure} (against {row.against}; {row.runs})")


if __name__ == "__main__":
    main()
