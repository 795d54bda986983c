"""Two rounds at once on two cores against one after another: real runs, the same proposals, in one call.

Wall-clock, so the machine has to be idle: the load is said beside the figures, and the CPU seconds of both runs, for
where the serial run burns more of them, the machine was slower then. A judgement works on two cores by itself, so a run
with judgements is no serial one to begin with; hence a row without, and what this machine makes of two measurements
side by side that share nothing but it.
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
from autoqec.orchestrator.executors.local import run_round
from autoqec.orchestrator.run import search
from benchmarks.table import Row, record

# A rate: with few rounds, the last one that runs alone weighs more than all else.
ROUNDS, SEED = 20, 1
ENV = locate.BUILTIN / "smoke.yaml"
MLP = {"type": "mlp", "mlp": {"hidden": 32}}


def nominate_nothing(view: AnalystView) -> AnalystResponse:
    """The analyst, who nominates nothing."""
    return analyst.analyse(view).model_copy(update={"verdict": "ignore"})


def cpu_seconds() -> float:
    """CPU seconds of this process and of every process that it waited for."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


def time_run(place: Path, parallel: int, *, judged: bool) -> tuple[float, float]:
    """Seconds by the clock, and of CPU, of ROUNDS rounds of a search at random."""
    make_workspace(place, ENV)
    roles = loop.Roles(search("random"), analyst=analyst.analyse if judged else nominate_nothing)
    with loop.start_run(place / "env.yaml", place, "smoke", SEED, "random", roles=roles) as run:
        start, spent = time.perf_counter(), cpu_seconds()
        loop.run_rounds(run, ROUNDS, parallel=parallel)
        return time.perf_counter() - start, cpu_seconds() - spent


def side_by_side(place: Path, count: int) -> float:
    """Seconds of that many measurements of one config at once, without a run."""

    def measure(number: int) -> None:
        directory = str(place / f"round_{number}")
        config = RunnerConfig(
            env_yaml=ENV.read_text(encoding="utf-8"), predecoder_config=MLP, profile="smoke", seed=SEED,
            round_dir=directory, run_id="alone", round_idx=number,
        )  # fmt: skip
        status = run_round(config, ignore).status
        assert status == "ok", status

    start = time.perf_counter()
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(measure, range(1, count + 1)))
    return time.perf_counter() - start


def rows() -> list[Row]:
    load, cores = os.getloadavg()[0], os.cpu_count()
    with tempfile.TemporaryDirectory() as place:
        side_by_side(Path(place, "warm"), 1)  # caches, bytecode
        turns = [(side_by_side(Path(place, f"one-{i}"), 1), side_by_side(Path(place, f"two-{i}"), 2)) for i in range(3)]
        alone, both = (min(took) for took in zip(*turns, strict=True))
        took = {
            (judged, count): time_run(Path(place, f"{judged}-{count}"), count, judged=judged)
            for judged in (False, True)
            for count in (1, 2)
        }

    def row(name: str, against: str, judged: bool) -> Row:
        (one, one_cpu), (two, two_cpu) = took[judged, 1], took[judged, 2]
        seconds = f"{one:.0f} and {two:.0f} s by the clock, {one_cpu:.0f} and {two_cpu:.0f} s of CPU"
        runs = f"{ROUNDS} smoke rounds each: {seconds}; {cores} cores, load before: {load:.1f}"
        return Row(f"2 rounds at once on 2 cores, {name}", f"{one / two:.2f} x the rounds an hour", against, runs)

    return [
        row("none of them judged", "one after another; aim: >= 1.7 x", False),
        row("with their judgements", "one after another, a judgement on two cores there too; aim: >= 1.7 x", True),
        Row(
            "2 measurements side by side",
            f"{2 * alone / both:.2f} x one",
            "what the machine itself makes of two: no run, no git, no judge",
            f"one config, best of {len(turns)}, {cores} cores",
        ),
    ]


def main() -> None:
    found = rows()
    record("rounds at once", found)
    for row in found:
        print(f"{row.name}: {row.figure} (against {row.against}; {row.runs})")


if __name__ == "__main__":
    main()
