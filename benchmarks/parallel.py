"""Two rounds at once on two cores against one after another: real runs, the same proposals, in one call.

Wall-clock, so the machine has to be idle: the load is said beside the figure. What does not depend on it is said, too:
the CPU seconds of the process that holds the run, which all rounds share, against those of the Runner's children.
"""

from __future__ import annotations

import os
import resource
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from autoqec.orchestration import loop
from benchmarks.table import Row, record
from cli import places
from cli.lab import make_lab

ROUNDS, SEED = 6, 1
ENV = places.BUILTIN / "smoke.yaml"


@dataclass(frozen=True)
class Took:
    """Seconds of one run's rounds: by the clock, of this process, of its children."""

    wall: float
    own: float
    children: float


def timed(place: Path, parallel: int) -> Took:
    """A run of ROUNDS rounds of the default search. Without a judge's candidate: judgement is one process's work."""
    make_lab(place, ENV)
    with loop.start_run(place / "env.yaml", place, "smoke", SEED, "random") as run:
        began, own, children = time.perf_counter(), time.process_time(), _children()
        loop.run_rounds(run, ROUNDS, parallel=parallel)
        return Took(time.perf_counter() - began, time.process_time() - own, _children() - children)


def _children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def rows() -> list[Row]:
    load = os.getloadavg()[0]
    with tempfile.TemporaryDirectory() as place:
        timed(Path(place, "warm"), 1)  # caches, bytecode
        serial, together = (timed(Path(place, f"at-{count}"), count) for count in (1, 2))
    return [
        Row(
            "2 rounds at once on 2 cores",
            f"{serial.wall / together.wall:.2f} x the rounds an hour",
            "one after another; aim: >= 1.7 x",
            f"{ROUNDS} smoke rounds each, {os.cpu_count()} cores, load before: {load:.1f}",
        ),
        Row(
            "work that rounds at once cannot share",
            f"{100 * serial.own / (serial.own + serial.children):.0f}% of the CPU seconds",
            "of a serial run; the rest is children's",
            f"{ROUNDS} smoke rounds",
        ),
    ]


def main() -> None:
    found = rows()
    record("rounds at once", found)
    for row in found:
        print(f"{row.name}: {row.figure} (against {row.against}; {row.runs})")


if __name__ == "__main__":
    main()
