"""Measure rounds per hour of a run on SLURM, with a Runner that sleeps, so that the orchestrator and SLURM decide.

    python -m benchmarks.slurm_throughput --rounds 1000 --slots 64 --sleep 4 --record

starts slurmctld and slurmd on this machine (`make setup-slurm`, root). Each job starts a Python process of its own, so
that a machine with few cores measures the start of Python: `--rounds 100 --slots 16` is a smaller case. The CPU time of
the orchestrator depends little on the load: `--rounds 20 --slots 4` suffices for it. Figures are printed; `--record`
writes them to results.json and is for an idle machine.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from autoqec.cli.workspace import make_workspace
from autoqec.orchestrator import loop
from autoqec.orchestrator.executors.slurm import SlurmExecutor
from autoqec.orchestrator.run import search
from autoqec.runner import job
from autoqec.store.round_layout import RoundLayout
from benchmarks.parallel import ENV, nominate_nothing
from benchmarks.table import Row, record
from tests.crash import canned
from tests.support.clusters import slurm, slurm_unavailable_reason

SEED, JOB_MB = 1, 100


def work(rounds: Sequence[tuple[str, int]], begin_within_s: float, *, sleep_s: float) -> None:
    """Do in a job what `runner.job.work_batch` does, with a sleep instead of training and measurement."""
    for round_dir, number in rounds:
        order = job.read_order(RoundLayout(Path(round_dir), number))
        assert order is not None, "no round is cancelled here"
        time.sleep(sleep_s)
        canned.run_round(order.config)


@dataclass(frozen=True)
class Measured:
    """Seconds that rounds took: elapsed, and CPU time of the orchestrator's process and of the commands it called.

    The first round is not among them: it imports torch, submitit and the rest once per process.
    """

    wall_s: float
    process_s: float
    commands_s: float
    first_round_s: float


def measure(directory: Path, rounds: int, slots: int, sleep_s: float) -> Measured:
    """Run one round, then `rounds` further ones, in jobs that sleep."""
    make_workspace(directory / "workspace", ENV)
    cluster_dir = directory / "cluster"
    cluster_dir.mkdir()
    job.work_batch = partial(work, sleep_s=sleep_s)
    with slurm(cluster_dir, cores=slots, memory_mb=slots * JOB_MB) as cluster:
        os.environ.update(cluster.env)
        executor = SlurmExecutor(slots, {"mem": f"{JOB_MB}M", "time": "10"})
        roles = loop.Roles(search("random"), analyst=nominate_nothing)
        env = directory / "workspace" / "env.yaml"
        with loop.start_run(env, directory / "workspace", "smoke", SEED, "random", roles=roles) as run:
            before = os.times()
            first = loop.run_rounds(run, 1, executor=executor)
            start, spent = time.perf_counter(), os.times()
            outcome = loop.run_rounds(run, 1 + rounds, executor=executor)
            wall_s, after = time.perf_counter() - start, os.times()
        assert [row.status for row in first.rows + outcome.rows] == ["ok"] * (1 + rounds), outcome.stop_reason
    return Measured(wall_s, *cpu_between(spent, after), first_round_s=sum(cpu_between(before, spent)))


def cpu_between(start: os.times_result, end: os.times_result) -> tuple[float, float]:
    """Return CPU seconds of this process, and of the processes that it waited for."""
    return (
        end.user + end.system - start.user - start.system,
        end.children_user + end.children_system - start.children_user - start.children_system,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--sleep", type=float, default=4.0, help="seconds that each round takes in its job")
    parser.add_argument("--record", action="store_true", help="write the figures to results.json")
    chosen = parser.parse_args()
    if (reason := slurm_unavailable_reason()) is not None:
        parser.error(reason)
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as directory:
        measured = measure(Path(directory), chosen.rounds, chosen.slots, chosen.sleep)
    ideal_s = chosen.rounds * chosen.sleep / chosen.slots
    runs = (
        f"{chosen.rounds} rounds of {chosen.sleep:g} s in {measured.wall_s:.0f} s; slurmctld, slurmd and all jobs on "
        f"{os.cpu_count()} cores, load before: {load:.1f}"
    )
    name = f"{chosen.slots} SLURM slots"
    process_s, commands_s = measured.process_s / chosen.rounds, measured.commands_s / chosen.rounds
    parts = (
        f"aim: <= 0.2 s; process {process_s:.3f}, git and SLURM commands {commands_s:.3f}; the first round "
        f"{measured.first_round_s:.2f}"
    )
    found = [
        Row(
            f"{name}: throughput",
            f"{ideal_s / measured.wall_s:.2f} of the ideal",
            f"{ideal_s:.0f} s; aim: >= 0.9",
            runs,
        ),
        Row(f"{name}: CPU time of the orchestrator", f"{process_s + commands_s:.2f} s per round", parts, runs),
    ]
    for row in found:
        print(f"{row.name}: {row.figure} (against {row.against}; {row.runs})")
    if chosen.record:
        record("rounds on SLURM", found)


if __name__ == "__main__":
    main()
