"""`autoqec bench-ideators`: ideators compared on QECBench-Tab."""

from __future__ import annotations

import math
from collections import Counter
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autoqec.cli.common import Output, options

if TYPE_CHECKING:
    from autoqec.ideators.bench import SimulationSettings
    from autoqec.ideators.bench_run import Score
    from autoqec.ideators.bench_table import Table

TITLE = "# QECBench-Tab: ideators compared\n\nWritten by `autoqec bench-ideators --write`; do not edit by hand.\n"
NAMES = "random,evolve,tpe,policy,hybrid:none,hybrid:0,hybrid:0.5,hybrid:1"


@click.command("bench-ideators")
@click.option("--table", type=click.Path(path_type=Path), help="Table to use instead of the one of autoqec.")
@click.option("--env", help="Env of the table; the first one where it is left out.")
@click.option("--strategies", default=NAMES, show_default=True, help="hybrid:Q asks an oracle of quality Q.")
@click.option(
    "--reference",
    default="random",
    show_default=True,
    help="What all others are held against: one or more, comma between.",
)
@click.option("--model", help="Language model of the strategies llm, hybrid:llm, memory and memoryless.")
@click.option(
    "--ideator-memory",
    "checkpoint",
    type=click.Path(path_type=Path),
    help="Trained agent of `memory`; `memoryless` is the same one with nothing learned.",
)
@click.option("--budget", metavar="KEY=NUMBER,…", default="", help="usd, tokens: no call is made that could break it.")
@click.option("--control", type=click.Choice(["none", "renamed", "shuffled", "noop", "all"]), default="none")
@click.option("--seeds", type=click.IntRange(2), default=20, show_default=True)
@click.option("--rounds", type=click.IntRange(1), default=20, show_default=True)
@click.option("--val-shots", type=click.IntRange(1), default=20_000, show_default=True)
@click.option(
    "--min-gain",
    type=click.FloatRange(0, 1),
    default=0.02,
    show_default=True,
    help="What the lower bound of the relative gain on the judge's shots must reach.",
)
@click.option("--write", type=click.Path(path_type=Path), help="Write the table of scores to this Markdown file.")
@click.option("--note", default="", help="A sentence to stand below the figures, in the file too.")
@options
def command(
    table: Path | None,
    env: str | None,
    strategies: str,
    reference: str,
    model: str | None,
    checkpoint: Path | None,
    budget: str,
    control: str,
    seeds: int,
    rounds: int,
    val_shots: int,
    min_gain: float,
    write: Path | None,
    note: str,
    out: Output,
) -> None:
    """Score strategies by verified hypervolume against rounds, seconds and dollars, paired by seed."""
    from autoqec.cli.bench_entries import BenchIdeators
    from autoqec.errors import UsageError
    from autoqec.ideators.bench import SimulationSettings
    from autoqec.ideators.bench_run import CONTROLS, compare
    from autoqec.ideators.bench_table import DEFAULT, Table
    from autoqec.launch.role_options import split_budget
    from autoqec.orchestrator.budget import Budget
    from autoqec.store import atomic

    measured_table, settings = (
        Table.read(table or DEFAULT, env=env),
        SimulationSettings(rounds=rounds, val_shots=val_shots, min_gain=min_gain),
    )
    names = [name.strip() for name in strategies.split(",") if name.strip()]
    limits, llm_limits = split_budget(budget)
    if limits != Budget():
        message = f"{budget!r} limits a run, and no run is made here"
        raise UsageError(message, location="--budget", hint="usd=DOLLARS, tokens=COUNT; --rounds says how many rounds")
    tokens = int(llm_limits["tokens"]) if "tokens" in llm_limits else None
    contestants = BenchIdeators(measured_table.env, model, checkpoint, llm_limits.get("usd"), tokens)
    references = list(dict.fromkeys(name.strip() for name in reference.split(",")))
    extra_strategies, lines = contestants.by_name([*names, *references]), [_header(references)]
    for one in CONTROLS if control == "all" else (control,):
        scores = compare(
            measured_table,
            names,
            seeds=seeds,
            settings=settings,
            control=one,
            extra_strategies=extra_strategies,
            spent_usd=contestants.spent_usd,
            references=references,
        )
        for score in scores:
            out.emit(score.dump())
        lines += [
            _line(list(strategy_scores)) for _, strategy_scores in groupby(scores, key=lambda score: score.strategy)
        ]
    footer = _footer(measured_table, seeds, settings, contestants.fallback_rounds)
    text = "\n".join([*lines, "", f"{footer} {note}".rstrip()])
    out.say(text)
    if write is not None:
        atomic.write_text(write, f"{TITLE}\n{text}\n")


def _footer(table: Table, seeds: int, settings: SimulationSettings, fallback_rounds: int) -> str:
    """What the figures rest on."""
    from autoqec.ideators.bench import verifiable_entries

    statuses = Counter(entry.status for entry in table.entries)
    shots, n_verifiable = table.baseline.size, len(verifiable_entries(table, settings.min_gain))
    footer = (
        f"Env {table.env}, {len(table.entries)} configs "
        f"({', '.join(f'{n} {how}' for how, n in statuses.most_common())}; "
        f"{n_verifiable} that the judge would verify, at a gain of {100 * settings.min_gain:g}% at "
        f"least), {shots:,} shots each, "
        f"half of them for the judge; {seeds} seeds of {settings.rounds} rounds, {settings.val_shots:,} val shots. "
        "Hypervolumes are shares of what the table allows; the interval is a paired bootstrap over seeds."
    )
    return footer + (f" {fallback_rounds} rounds were left to the search by a model." if fallback_rounds else "")


def _header(references: list[str]) -> str:
    names = ["strategy", "control", "final", "mean over rounds", f"at half {references[0]}'s seconds"]
    names += [*(f"minus {one} [95%]" for one in references), "verified", "seconds", "dollars"]
    return f"| {' | '.join(names)} |\n{'|---' * len(names)}|"


def _line(strategy_scores: list[Score]) -> str:
    """One strategy, held against every reference."""
    score = strategy_scores[0]
    gaps = " | ".join(f"{one.gap:+.3f} [{one.gap_low:+.3f}, {one.gap_high:+.3f}]" for one in strategy_scores)
    dollars = "unknown" if math.isnan(score.dollars) else f"{score.dollars:.2f}"
    return (
        f"| {score.strategy} | {score.control} | {score.final:.3f} | {score.mean:.3f} | {score.at_equal_seconds:.3f} "
        f"| {gaps} | {score.verified:.1f} | {score.seconds:.0f} | {dollars} |"
    )
