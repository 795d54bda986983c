"""Measure rounds per hour of a run on SLURM, with a Runner that sleeps, so that the orchestrator and SLURM decide.

    python -m benchmarks.slurm_throughput --rounds 80 --slots 8 --record
    python -m benchmarks.slurm_throughput --rounds 80 --slots 8 --kills 20 --sleep 2 5

starts slurmctld and slurmd on this machine (`make setup-slurm`, root). With `--kills` the process of the run is killed
that often, at moments spread over the run, and started again; it is counted which rounds were lost or measured twice.
Each job starts processes of its own, so that a machine with few cores measures their start. Figures are printed;
`--record` writes them to results.json and is for an idle machine.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from autoqec.cli.workspace import make_workspace
from autoqec.contracts.round import RoundMetrics
from autoqec.extensions.slurm import job
from autoqec.extensions.slurm.executor import SlurmExecutor
from autoqec.orchestrator import loop
from autoqec.orchestrator.roles import search
from autoqec.orchestrator.run import Roles, Run
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from autoqec.store.run_state import is_finished
from autoqec.system import run_lock
from benchmarks.parallel import ENV, nominate_nothing
from benchmarks.sleeping_job import measure_round, sleep_of
from benchmarks.table import Row, record
from tests.support.clusters import slurm, slurm_unavailable_reason
from tests.support.starts import resume_run, start_run

SEED, JOB_MB = 1, 100
POLL_S = 0.2


@dataclass(frozen=True)
class Case:
    """What is measured: rounds after the first one, jobs at once, and bounds of a sleep in seconds."""

    rounds: int
    slots: int
    range_s: tuple[float, float]

    @property
    def ideal_s(self) -> float:
        """Seconds if every slot always has a round that sleeps."""
        return sum(sleep_of(number, self.range_s) for number in range(2, self.rounds + 2)) / self.slots


@dataclass(frozen=True)
class Measured:
    """Seconds that rounds took: elapsed, and CPU time of the orchestrator's process and of the commands it called.

    The first round is not among them: it imports torch, submitit and the rest once per process. `busy_share` is the
    share of the slots that sleep, from the time when as many rounds as slots have begun until the last one begins.
    """

    wall_s: float
    process_s: float
    commands_s: float
    first_round_s: float
    busy_share: float


@dataclass(frozen=True)
class Outcome:
    """Rounds of a run whose process was killed."""

    wall_s: float
    kills: int
    finished: int  # with a row `ok`
    not_begun: int  # aborted before a job had them
    lost: int  # that a job began, and which are not finished
    repeated: int  # that were measured more than once


def executor(run: Run, case: Case) -> SlurmExecutor:
    """Return an executor whose jobs sleep."""
    job.measure_round = partial(measure_round, range_s=case.range_s, measured=str(measured_file(run.layout.repo_root)))
    options = {"mem": f"{JOB_MB}M", "time": "10"}
    return SlurmExecutor(case.slots, options)


def measured_file(workspace: Path) -> Path:
    """Return the file to which jobs add a line for each measurement."""
    return workspace.parent / "measured"


def measure(workspace: Path, case: Case) -> Measured:
    """Run one round, then the rounds of the case, in jobs that sleep."""
    make_workspace(workspace, ENV)
    with start_run(workspace / "env.yaml", workspace, "smoke", SEED, "random", roles=roles()) as run:
        cluster, before = executor(run, case), os.times()
        first = loop.run_rounds(run, 1, executor=cluster)
        start, spent = time.perf_counter(), os.times()
        outcome = loop.run_rounds(run, 1 + case.rounds, executor=cluster)
        wall_s, after = time.perf_counter() - start, os.times()
    assert [row.status for row in first.rows + outcome.rows] == ["ok"] * (1 + case.rounds), outcome.stop_reason
    spans = measured_spans(workspace)[1:]
    return Measured(wall_s, *cpu_between(spent, after), sum(cpu_between(before, spent)), busy_share(spans, case.slots))


def measured_spans(workspace: Path) -> list[tuple[float, float]]:
    """Return begin and end of the measurement of each round, in seconds since 1970, by begin."""
    found = [
        RoundMetrics.model_validate_json(path.read_text()) for path in workspace.glob("runs/*/round_*/metrics.json")
    ]
    spans = [(one.measurement_started_at, one.measurement_finished_at) for one in found]
    return sorted((start.timestamp(), end.timestamp()) for start, end in spans if start and end)


def busy_share(spans: Sequence[tuple[float, float]], slots: int) -> float:
    """Return the share of the slots that have a round while all of them could have one."""
    first, last = spans[min(slots, len(spans)) - 1][0], spans[-1][0]
    busy_s = sum(max(0.0, min(end, last) - max(start, first)) for start, end in spans)
    return busy_s / (slots * (last - first)) if last > first else 0.0


def roles() -> Roles:
    """Return a random search that verifies nothing."""
    return Roles(search("random"), analyst=nominate_nothing)


def adopt_orphans() -> None:
    """Make this process the parent of jobs whose own parent has ended, so that their CPU time is counted here."""
    pr_set_child_subreaper = 36
    ctypes.CDLL(None, use_errno=True).prctl(pr_set_child_subreaper, 1, 0, 0, 0)


def children_seconds(*, adopted: bool) -> float:
    """Return CPU seconds of the processes that this one waited for and, if wanted, of those that it adopted."""
    with suppress(ChildProcessError):
        while adopted and os.waitpid(-1, os.WNOHANG)[0]:
            pass
    spent = os.times()
    return spent.children_user + spent.children_system


def cpu_between(start: os.times_result, end: os.times_result) -> tuple[float, float]:
    """Return CPU seconds of this process, and of the processes that it waited for."""
    return (
        end.user + end.system - start.user - start.system,
        end.children_user + end.children_system - start.children_user - start.children_system,
    )


def continue_run(workspace: Path, case: Case) -> None:
    """Start or resume the run, in the process that is killed."""
    if (workspace / "runs").exists() and (found := sorted(path.name for path in (workspace / "runs").glob("2*"))):
        run = resume_run(found[0], workspace, roles=roles())
    else:
        run = start_run(workspace / "env.yaml", workspace, "smoke", SEED, "random", roles=roles())
    with run:
        loop.run_rounds(run, 1 + case.rounds, executor=executor(run, case))


def measure_kills(workspace: Path, case: Case, kills: int, argv: Sequence[str]) -> Outcome:
    """Run the rounds in a process that is killed `kills` times, and count what became of them."""
    make_workspace(workspace, ENV)
    chosen, start, killed = random.Random(SEED), time.perf_counter(), 0
    while True:
        process = subprocess.Popen([sys.executable, "-m", "benchmarks.slurm_throughput", *argv, "--in", str(workspace)])
        while process.poll() is None:
            time.sleep(POLL_S)
            is_due = killed < kills and len(measurements(workspace)) > (killed + 1) * case.rounds // (kills + 1)
            if is_due and any(run_lock.is_locked(path) for path in (workspace / "runs").glob("2*")):
                time.sleep(chosen.uniform(0.0, 5.0))
                process.kill()
                process.wait()
        if process.returncode != -signal.SIGKILL:
            assert process.returncode == 0, f"the run ended with status {process.returncode}"
            break
        killed += 1
    wall_s = time.perf_counter() - start
    (run_dir,) = (workspace / "runs").glob("2*")
    layout, measured = RunLayout(workspace, run_dir.name), measurements(workspace)
    rows = History(layout).rows()
    ok = {row.round_attempt_id for row in rows if row.status == "ok"}
    return Outcome(
        wall_s,
        killed,
        finished=len(ok),
        not_begun=sum(not is_finished(row) for row in rows if row.round_attempt_id not in measured),
        lost=sum(attempt not in ok for attempt in measured),
        repeated=sum(count > 1 for count in measured.values()),
    )


def measurements(workspace: Path) -> Counter[str]:
    """Return how often each attempt at a round was measured."""
    try:
        lines = measured_file(workspace).read_text().splitlines()
    except FileNotFoundError:
        return Counter()
    return Counter(line.split()[1] for line in lines)


def throughput_rows(case: Case, measured: Measured, cluster_s: float, load: float) -> list[Row]:
    """Return the figures of a run without kills. cluster_s: CPU seconds of SLURM and all jobs."""
    low, high = case.range_s
    runs = (
        f"{case.rounds} rounds of {low:g}-{high:g} s in {measured.wall_s:.0f} s; slurmctld, slurmd and all jobs on "
        f"{os.cpu_count()} cores, {cluster_s / (case.rounds + 1):.2f} CPU s per round; load before: {load:.1f}"
    )
    name = f"{case.slots} SLURM slots"
    process_s, commands_s = measured.process_s / case.rounds, measured.commands_s / case.rounds
    parts = (
        f"aim: <= 0.2 s; process {process_s:.3f}, git and SLURM commands {commands_s:.3f}; the first round "
        f"{measured.first_round_s:.2f}"
    )
    share = f"{case.ideal_s / measured.wall_s:.2f} of the ideal"
    busy = f"{measured.busy_share:.2f} of the slots have a round"
    return [
        Row(f"{name}: between the start of the last job and of the last round", busy, "1", runs),
        Row(f"{name}: throughput", share, f"{case.ideal_s:.0f} s; aim: >= 0.9", runs),
        Row(f"{name}: CPU time of the orchestrator", f"{process_s + commands_s:.2f} s per round", parts, runs),
    ]


def kill_row(case: Case, outcome: Outcome) -> Row:
    """Return the figures of a run whose process was killed."""
    return Row(
        f"{case.slots} SLURM slots: orchestrator killed {outcome.kills} times",
        f"{outcome.lost} rounds lost, {outcome.repeated} measured twice",
        "aim: 0 and 0",
        f"{outcome.finished} rounds finished in {outcome.wall_s:.0f} s; {outcome.not_begun} proposals were made again",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=80)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--sleep", type=float, nargs=2, default=(30.0, 60.0), help="bounds of the seconds of a round")
    parser.add_argument("--kills", type=int, default=0, help="how often the process of the run is killed")
    parser.add_argument("--record", action="store_true", help="write the figures to results.json")
    parser.add_argument("--in", type=Path, dest="workspace", help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    case = Case(chosen.rounds, chosen.slots, (chosen.sleep[0], chosen.sleep[1]))
    if chosen.workspace is not None:
        continue_run(chosen.workspace, case)
        return
    if (reason := slurm_unavailable_reason()) is not None:
        parser.error(reason)
    load = os.getloadavg()[0]
    adopt_orphans()
    with tempfile.TemporaryDirectory() as directory:
        cluster_dir, workspace = Path(directory, "cluster"), Path(directory, "workspace")
        cluster_dir.mkdir()
        with slurm(cluster_dir, cores=chosen.slots, memory_mb=chosen.slots * JOB_MB) as cluster:
            os.environ.update(cluster.env)
            if chosen.kills:
                found = [kill_row(case, measure_kills(workspace, case, chosen.kills, sys.argv[1:]))]
            else:
                measured, commands_s = measure(workspace, case), children_seconds(adopted=False)
        if not chosen.kills:
            found = throughput_rows(case, measured, children_seconds(adopted=True) - commands_s, load)
    for row in found:
        print(f"{row.name}: {row.figure} (against {row.against}; {row.runs})")
    if chosen.record:
        record("rounds on SLURM", found, replace_suite=False)


if __name__ == "__main__":
    main()
