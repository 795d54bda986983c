"""Print the time of the orchestrator per round, and how it grows with the run, with rounds that end at once.

    TMPDIR=/dev/shm python -m benchmarks.orchestrator --rounds 512 --step 128

needs no SLURM: the rounds of `benchmarks.sleeping_job` are measured in this process, which adds about 5 ms each. In
memory (`/dev/shm`) the disk does not limit the speed. CPU time is that of this process and of the git commands that it
calls, also of those that go on running. The elapsed time includes the rounds and the waiting for the disk.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from autoqec.cli.workspace import make_workspace
from autoqec.contracts.round import RoundMetrics, RunnerConfig
from autoqec.orchestrator import loop
from autoqec.orchestrator.executors import SerialExecutor
from benchmarks import sleeping_job
from benchmarks.parallel import ENV
from benchmarks.slurm_throughput import SEED, cpu_between, roles
from tests.support.starts import start_run


def measure_round(config: RunnerConfig, *_: Any, measured: str) -> RoundMetrics:
    """Write the files of a round."""
    return sleeping_job._run_round(config, range_s=(0.0, 0.0), measured=measured)


def running_children_seconds() -> float:
    """Return CPU seconds of the children of this process that have not ended."""
    ticks = 0
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = path.read_text().rpartition(")")[2].split()  # from the third field on: state, parent, ...
            if int(fields[1]) == os.getpid():
                ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=512)
    parser.add_argument("--step", type=int, default=128, help="rounds per line")
    chosen = parser.parse_args()
    os.environ["SLURM_JOB_ID"] = "1"  # the rounds are listed with their job
    with tempfile.TemporaryDirectory() as directory:
        workspace = Path(directory, "workspace")
        make_workspace(workspace, ENV)
        executor = SerialExecutor(partial(measure_round, measured=str(Path(directory, "measured"))))
        with start_run(workspace / "env.yaml", workspace, "smoke", SEED, "random", roles=roles()) as run:
            loop.run_rounds(run, 1, executor=executor)  # imports torch and the rest
            for done in range(1 + chosen.step, 2 + chosen.rounds, chosen.step):
                before, running_s, start = os.times(), running_children_seconds(), time.perf_counter()
                loop.run_rounds(run, done, executor=executor)
                wall_s, (process_s, commands_s) = time.perf_counter() - start, cpu_between(before, os.times())
                commands_s += running_children_seconds() - running_s
                per_round = [f"{1e3 * spent / chosen.step:.1f} ms" for spent in (process_s, commands_s, wall_s)]
                print("rounds to {}: process {}, git {}, elapsed {} per round".format(done, *per_round), flush=True)


if __name__ == "__main__":
    main()
