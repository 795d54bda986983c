"""Measure searches that propose with rounds pending: regret at 8 and 64 slots against the serial search.

Runs are simulated on QECBench-Tab, with the seeds of both searches paired. The hybrid's model is an oracle.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from dataclasses import replace

from benchmarks.ideators import simulation
from benchmarks.ideators.compare import strategy
from benchmarks.ideators.simulation import SimulatedRun, SimulationSettings
from benchmarks.ideators.table import DEFAULT, Table
from benchmarks.table import Row, record

SEEDS = 16
SETTINGS = SimulationSettings(rounds=128)
EARLY_ROUND = 40  # a second, shorter search, at which the serial one is not saturated
STRATEGIES = ("evolve", "tpe", "hybrid:0.5")
SLOTS = (8, 64)


def rows_of(table: Table, name: str, slots: int, serial: list[SimulatedRun], runs: list[SimulatedRun]) -> Iterator[Row]:
    """Yield the regret of a search beyond that of the serial one, at equal rounds and at equal elapsed time."""
    best = simulation.max_hypervolume(table, SETTINGS.min_gain)
    for rounds in (EARLY_ROUND, SETTINGS.rounds):
        volumes = [[run.hypervolume[rounds - 1] / best for run in group] for group in (serial, runs)]
        gap, low, high = simulation.paired_bootstrap(*volumes)
        regrets = [1 - statistics.mean(group) for group in volumes]
        yield Row(
            f"{name}, {slots} slots, {rounds} rounds: regret beyond the serial search",
            f"{gap:+.3f} [{low:+.3f}, {high:+.3f}]",
            f"the serial search on the same seeds at equal rounds; regrets {regrets[0]:.3f} and {regrets[1]:.3f} of "
            "the best hypervolume; aim at 8 slots: interval includes 0",
            f"{SEEDS} seeds",
        )
    ends = [run.elapsed[-1] for run in runs]
    volumes = [
        [run.hypervolume_at(end) / best for run, end in zip(group, ends, strict=True)] for group in (serial, runs)
    ]
    gap, low, high = simulation.paired_bootstrap(*volumes)
    shares = [sum(at <= end for at in run.elapsed) for run, end in zip(serial, ends, strict=True)]
    yield Row(
        f"{name}, {slots} slots: regret beyond the serial search at equal elapsed time",
        f"{gap:+.3f} [{low:+.3f}, {high:+.3f}]",
        f"{statistics.mean(shares):.1f} serial rounds in the time of {SETTINGS.rounds} parallel ones",
        f"{SEEDS} seeds",
    )


def main() -> None:
    table, rows = Table.read(DEFAULT), list[Row]()
    for name in STRATEGIES:
        runs = {
            slots: [
                simulation.simulate(strategy(name, table, settings), table, seed=seed, settings=settings)
                for seed in range(SEEDS)
            ]
            for slots in (1, *SLOTS)
            for settings in (replace(SETTINGS, slots=slots),)
        }
        for slots in SLOTS:
            rows += rows_of(table, name, slots, runs[1], runs[slots])
            for row in rows[-3:]:
                print(f"{row.name}: {row.figure} ({row.against}; {row.runs})", flush=True)
    record("parallel proposals", rows)


if __name__ == "__main__":
    main()
