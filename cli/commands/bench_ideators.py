"""`autoqec bench-ideators`: ideators compared on QECBench-Tab."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from cli.common import Out, options

if TYPE_CHECKING:
    from autoqec.search.bench_run import Score

TABLE = Path("benchmarks/qecbench_tab.jsonl")
NAMES = "random,evolve,tpe,hybrid:none,hybrid:0,hybrid:0.5,hybrid:1"
HEAD = (
    "| strategy | control | final | mean over rounds | at half the reference's seconds | minus random [95%] | verified "
    "| seconds | dollars |\n|---|---|---|---|---|---|---|---|---|"
)


@click.command("bench-ideators")
@click.option("--table", type=click.Path(path_type=Path), default=TABLE, show_default=True)
@click.option("--env", help="Env of the table; the first one where it is left out.")
@click.option("--strategies", default=NAMES, show_default=True, help="hybrid:Q asks an oracle of quality Q.")
@click.option("--control", type=click.Choice(["none", "renamed", "shuffled", "noop", "all"]), default="none")
@click.option("--seeds", type=click.IntRange(2), default=20, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=20, show_default=True)
@click.option("--val-shots", type=click.IntRange(1), default=4_000, show_default=True)
@click.option("--write", type=click.Path(path_type=Path), help="Write the table of scores to this Markdown file.")
@options
def command(
    table: Path,
    env: str | None,
    strategies: str,
    control: str,
    seeds: int,
    rounds: int,
    val_shots: int,
    write: Path | None,
    out: Out,
) -> None:
    """Score strategies by verified hypervolume against rounds, seconds and dollars, paired by seed."""
    from autoqec.search.bench import Rules
    from autoqec.search.bench_run import CONTROLS, compare
    from autoqec.search.bench_table import Table
    from autoqec.store import atomic

    known, rules = Table.read(table, env=env), Rules(rounds=rounds, val_shots=val_shots)
    names = [name.strip() for name in strategies.split(",") if name.strip()]
    lines = [HEAD]
    for one in CONTROLS if control == "all" else (control,):
        for score in compare(known, names, seeds=seeds, rules=rules, control=one):
            out.emit(score.dump())
            lines.append(_line(score))
    shots = known.plain.size
    foot = (
        f"\nEnv {known.env}, {len(known.cells)} configs, {shots} shots each ({shots // 2} for the judge); "
        f"{seeds} seeds of {rounds} rounds, {val_shots} val shots; shares of the hypervolume that the table allows."
    )
    out.say("\n".join([*lines, foot]))
    if write is not None:
        atomic.write_text(write, "\n".join([*lines, foot]) + "\n")


def _line(score: Score) -> str:
    return (
        f"| {score.strategy} | {score.control} | {score.final:.3f} | {score.mean:.3f} | {score.at_equal_seconds:.3f} "
        f"| {score.gap:+.3f} [{score.gap_low:+.3f}, {score.gap_high:+.3f}] | {score.verified:.1f} "
        f"| {score.seconds:.0f} | {score.dollars:.2f} |"
    )
