"""Measure the orchestrator: overhead of a round, its growth with the run, and recovery at a start.

Run `python -m benchmarks.rounds`. Runner and verifier are fakes (`tests.crash.canned`) and the ideator reads no
history, so that the remaining cost of a round is files with every fsync, and git. Counts of git processes are exact;
seconds are medians, and ratios are within one run.
"""

from __future__ import annotations

import itertools
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from autoqec.cli.workspace import make_workspace
from autoqec.contracts.history import HistoryRow
from autoqec.contracts.messages import IdeatorResponse
from autoqec.contracts.views import IdeatorView
from autoqec.locate import builtin_envs
from autoqec.orchestrator import round_recorder
from autoqec.orchestrator.loop import run_rounds
from autoqec.orchestrator.memory import RunMemory
from autoqec.orchestrator.recovery.apply import reconcile
from autoqec.orchestrator.run import Roles
from autoqec.store import jsonl
from autoqec.store.layout import RunLayout
from autoqec.system import git as host_git
from autoqec.system.git import Repo
from benchmarks.table import Row, record
from tests.crash import canned, driver
from tests.support import rounds
from tests.support.starts import resume_run, start_run

REPEATS = 9
WIDTHS = itertools.count(4)


class GitProcessCounter:
    """Counts the git processes that start inside its block."""

    def __init__(self) -> None:
        self.count = 0
        self._execute = host_git.command.execute

    def __enter__(self) -> GitProcessCounter:
        def counted(*arguments: Any, **more: Any) -> Any:
            self.count += 1
            return self._execute(*arguments, **more)

        host_git.command.execute = counted
        return self

    def __exit__(self, *error: object) -> None:
        host_git.command.execute = self._execute


def make_two_round_run(directory: Path) -> RunLayout:
    """Make a workspace with a run of two rounds."""
    make_workspace(directory, builtin_envs()["smoke"])
    with start_run(directory / "env.yaml", directory, "smoke", 1, roles=roles()) as run:
        run_rounds(run, 2)
        return run.layout


def roles() -> Roles:
    """Return a trivial ideator, a coder that writes the proposal, and an analyst that nominates every round."""

    def ideator(view: IdeatorView) -> IdeatorResponse:
        config = driver.changed(mlp__hidden=next(WIDTHS), training__finetune_share=0.0)
        return IdeatorResponse(hypothesis="one more network", slug="net", fork_from="baseline", proposal=config)

    return Roles(ideator, coder=driver.literal, analyst=driver.nominate)


def append_rounds(
    layout: RunLayout,
    count: int,
    verified: Callable[[int], bool] = lambda number: number % 10 == 0,
    measured: Callable[[int], dict[str, Any]] = lambda number: {},
) -> None:
    """Append history, attempts, branches and pins of `count` rounds, as a run would write them.

    verified: Whether a round, by number, is VERIFIED, with its registered test and report.
    measured: Config and figures of a round, by number; by default those of the previous round.
    """
    memory, verified_fields = RunMemory(layout.root), round_recorder.verification_fields(rounds.report(1))
    first, row, info = memory.next_round(), memory.history.rows()[-1], memory.history.info()
    shas = _commits(layout, first, count, info.baseline_sha, pinned=True)
    indexes = itertools.count(memory.next_test_index())
    lines: dict[Path, list[dict[str, Any]]] = {layout.history: [], layout.attempts: []}
    for number, (code, _) in zip(range(first, first + count), shas, strict=True):
        branch, name = layout.branch(number, "net"), f"attempt-{number}"
        named = {"branch": branch, "commit_sha": code, "round_attempt_id": name}
        layout.round(number).dir.mkdir()
        written = [rounds.begun(number), rounds.planned(number, branch=branch), rounds.nominated(number)]
        fields: dict[str, Any] = dict.fromkeys(verified_fields) | {"verdict": "ignore", "verify_reasons": ()}
        if verified(number):
            report = rounds.report(number, run_id=info.run_id, **named)
            layout.round(number).report_json.write_text(json.dumps(report.dump()), encoding="utf-8")
            test, index = rounds.charged(number), next(indexes)
            written.append(test.model_copy(update={"attempt_index": index}))
            fields = {"verdict": "candidate", **round_recorder.verification_fields(report), "sandbox": report.sandbox}
        lines[layout.attempts] += [line.dump() for line in written]
        fields |= {"round": number, "n_params": number, **named, **measured(number)}
        lines[layout.history].append(HistoryRow.model_validate({**row.dump(), **fields}).dump())
    for path, values in lines.items():
        jsonl.append_all(path, values, chained=True)


def _commits(layout: RunLayout, first: int, count: int, base: str, *, pinned: bool = False) -> list[tuple[str, str]]:
    """Make a code commit and a pointer commit for each round, with branch and pin, in one git process."""
    committer, stream = "committer a <a@example.org> 1735700000 +0000\n", []
    for number in range(first, first + count):
        ref = f"commit refs/heads/{layout.branch(number, 'net')}\n"
        stream.append(f"{ref}mark :{2 * number}\n{committer}data 4\ncode\nfrom {base}\n")
        stream.append(f"{ref}mark :{2 * number + 1}\n{committer}data 7\npointer\n")
        if pinned:
            stream.append(f"reset {layout.pin(f'attempt-{number}')}\nfrom :{2 * number + 1}\n\n")
    marks = layout.repo_root / ".git" / "marks"
    command = ["git", "fast-import", "--quiet", f"--export-marks={marks}"]
    subprocess.run(command, cwd=layout.repo_root, input="".join(stream).encode(), check=True)
    found = dict(line.split() for line in marks.read_text(encoding="utf-8").splitlines())
    return [(found[f":{2 * n}"], found[f":{2 * n + 1}"]) for n in range(first, first + count)]


def append_orphans(layout: RunLayout, count: int) -> None:
    """Append `count` attempts that died after their code commit."""
    memory = RunMemory(layout.root)
    first, base = memory.next_round(), memory.history.info().baseline_sha
    _commits(layout, first, count, base)
    for number in range(first, first + count):
        memory.history.append_attempt(rounds.begun(number))
        branch = layout.branch(number, "net")
        memory.history.append_attempt(rounds.planned(number, branch=branch, base_sha=base))


def append_pareto_rounds(layout: RunLayout, count: int) -> None:
    """Append `count` verified rounds, none of them dominated: each has a larger gain and a larger cost."""
    append_rounds(layout, count, verified=lambda number: True)


def cpu_seconds() -> float:
    """Return CPU seconds of this process and of finished git processes."""
    this_process, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    return this_process.ru_utime + this_process.ru_stime + children.ru_utime + children.ru_stime


@dataclass(frozen=True)
class Cost:
    """seconds: wall-clock, including fsync. cpu_s: CPU seconds, which do not depend on the load of the machine."""

    seconds: float
    cpu_s: float
    git_processes: int

    def __str__(self) -> str:
        return f"{self.seconds:.3f} s wall-clock, {self.cpu_s:.3f} s of CPU, {self.git_processes} git processes"


def cost_of(work: Callable[[], object]) -> Cost:
    with GitProcessCounter() as git:
        clock, cpu_s = time.perf_counter(), cpu_seconds()
        work()
        return Cost(time.perf_counter() - clock, cpu_seconds() - cpu_s, git.count)


def measure_round(layout: RunLayout) -> Cost:
    """Measure one more round: the median of several in one start."""
    with resume_run(layout.run_id, layout.repo_root, roles=roles()) as run:
        done = sum(row.status == "ok" for row in run.memory.history.rows())
        costs = [cost_of(partial(run_rounds, run, done + number)) for number in range(1, REPEATS + 1)]
    middle = statistics.median
    return Cost(
        middle(cost.seconds for cost in costs),
        middle(cost.cpu_s for cost in costs),
        max(cost.git_processes for cost in costs),
    )


def measure_startup(layout: RunLayout) -> Cost:
    return cost_of(lambda: reconcile(layout, Repo.discover(layout.repo_root)))


def time_for_each_ref(layout: RunLayout) -> float:
    durations = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        Repo(layout.repo_root, layout.repo_root / ".git").refs("refs")
        durations.append(time.perf_counter() - start)
    return statistics.median(durations)


def overhead_rows(sizes: tuple[int, ...] = (10, 1000, 10_000)) -> list[Row]:
    found: dict[int, Cost] = {}
    for size in sizes:
        with tempfile.TemporaryDirectory(prefix="autoqec-bench-") as directory:
            layout = make_two_round_run(Path(directory) / "workspace")
            append_rounds(layout, size - 2)
            found[size] = measure_round(layout)
    first = found[sizes[0]]
    aim = "aim: <= 0.3 s; fake Runner and verifier, real fsync"
    rows = [Row(f"overhead of a round at round {sizes[0]}", str(first), aim, _runs())]
    for size in sizes[1:]:
        cost = found[size]
        figure = f"{cost.seconds / first.seconds:.2f} x wall-clock, {cost.cpu_s / first.cpu_s:.2f} x of CPU ({cost})"
        rows.append(Row(f"the same at round {size:,}", figure, f"round {sizes[0]}; aim: <= 1.5 x", _runs()))
    last = found[sizes[-1]]
    against = f"{first.cpu_s:.3f} s at round {sizes[0]}; aim: <= 0.3 s, with the hash chain of history and attempts"
    rows.append(Row(f"CPU time of the overhead at round {sizes[-1]:,}", f"{last.cpu_s:.3f} s of CPU", against, _runs()))
    return rows


def start_rows(sizes: tuple[int, int] = (100, 1000)) -> list[Row]:
    rows = []
    cases: dict[str, Callable[[RunLayout, int], None]] = {
        "consistent branches and rows": append_rounds,
        "orphans": append_orphans,
        "rounds on the Pareto front": append_pareto_rounds,
    }
    for name, prepare in cases.items():
        found = {}
        for size in sizes:
            with tempfile.TemporaryDirectory(prefix="autoqec-bench-") as directory:
                layout = make_two_round_run(Path(directory) / "workspace")
                prepare(layout, size)
                if prepare is not append_orphans:
                    reconcile(layout, Repo.discover(layout.repo_root))  # writes its views
                for_each_ref_s = time_for_each_ref(layout)
                found[size] = (measure_startup(layout), for_each_ref_s)
        (small, _), (large, for_each_ref_s) = (found[size] for size in sizes)
        figure = f"{large}; {large.seconds / for_each_ref_s:.0f} x one `git for-each-ref`"
        against = f"{small} at {sizes[0]}; aim: <= 25 git processes, at most linear"
        rows.append(Row(f"start-up reconcile, {sizes[1]:,} {name}", figure, against, f"one start each{load_note()}"))
    return rows


def load_note() -> str:
    """Return the load average if it exceeds the measurement itself."""
    load = os.getloadavg()[0]
    return f"; load {load:.0f} on {os.cpu_count()} cores" if load > 2 else ""


def _runs() -> str:
    return f"median of {REPEATS} rounds{load_note()}"


def main() -> None:
    canned.install()
    rows = [*overhead_rows(), *start_rows()]
    record("rounds", rows)
    for row in rows:
        print(f"{row.name}: {row.figure} (against {row.against}; {row.runs})")


if __name__ == "__main__":
    sys.exit(main())
