"""`autoqec bench-ideators`: compare ideators on QECBench-Tab."""

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
MODEL_NAMES = "llm,hybrid:llm,tpe"


@click.command("bench-ideators")
@click.option(
    "--table",
    type=click.Path(path_type=Path),
    help="Table of measured configs (JSON lines); default: the packaged one.",
)
@click.option("--env", help="Env of the table; default: its first one.")
@click.option(
    "--strategies",
    help="Comma-separated list; hybrid:Q uses an oracle of quality Q instead of a model. "
    f"Default: {NAMES}; with --model: {MODEL_NAMES}.",
)
@click.option(
    "--reference",
    help="Strategies that the others are compared with, comma-separated. Default: random; tpe if --model is given "
    "without --strategies.",
)
@click.option("--model", help="Language model of llm, hybrid:llm, memory and memoryless.")
@click.option(
    "--ideator-memory",
    "checkpoint",
    type=click.Path(path_type=Path),
    help="Checkpoint of `autoqec evaluate` for `memory`; `memoryless` is the same agent with an empty memory.",
)
@click.option(
    "--budget",
    metavar="KEY=NUMBER,…",
    default="",
    help="Limits of all model calls: usd, tokens. No call is made that could exceed them.",
)
@click.option(
    "--control",
    type=click.Choice(["none", "renamed", "shuffled", "noop", "all"]),
    default="none",
    show_default=True,
    help="Control: mirror the values of config keys, shuffle the results, or make every result that of the baseline.",
)
@click.option("--seeds", type=click.IntRange(2), default=20, show_default=True, help="Repetitions per strategy.")
@click.option("--rounds", type=click.IntRange(1), default=20, show_default=True, help="Rounds per repetition.")
@click.option(
    "--slots",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Rounds measured at once: a proposal does not see the results of the SLOTS - 1 rounds before it.",
)
@click.option(
    "--val-shots", type=click.IntRange(1), default=20_000, show_default=True, help="Validation shots per round."
)
@click.option(
    "--min-gain",
    type=click.FloatRange(0, 1),
    default=0.02,
    show_default=True,
    help="Smallest lower bound of the relative gain on the verification shots that counts as verified.",
)
@click.option("--write", type=click.Path(path_type=Path), help="Also write the scores to this Markdown file.")
@click.option("--note", default="", help="Text to add below the scores.")
@options
def command(
    table: Path | None,
    env: str | None,
    strategies: str | None,
    reference: str | None,
    model: str | None,
    checkpoint: Path | None,
    budget: str,
    control: str,
    seeds: int,
    rounds: int,
    slots: int,
    val_shots: int,
    min_gain: float,
    write: Path | None,
    note: str,
    out: Output,
) -> None:
    """Simulate searches on a table of measured configs and compare their strategies.

    The score is the hypervolume of the verified Pareto front, as a share of the best that the table allows. Differences
    from the reference are paired by seed and have a 95% bootstrap interval. With --model the table compares that model
    with TPE, unless --strategies or --reference say otherwise; scripted:expert and scripted:novice cost nothing.
    """
    from autoqec.cli.bench_entries import BenchIdeators
    from autoqec.ideators.bench import SimulationSettings
    from autoqec.ideators.bench_run import CONTROLS, compare
    from autoqec.ideators.bench_table import DEFAULT, Table
    from autoqec.store import atomic

    measured_table = Table.read(table or DEFAULT, env=env)
    settings = SimulationSettings(rounds=rounds, val_shots=val_shots, min_gain=min_gain, slots=slots)
    reference = reference or ("tpe" if model and strategies is None else "random")
    if strategies is None:
        strategies = MODEL_NAMES if model else NAMES
    names = [name.strip() for name in strategies.split(",") if name.strip()]
    usd, tokens = _llm_limits(budget)
    contestants = BenchIdeators(measured_table.env, model, checkpoint, usd, tokens)
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
        lines += [_line(list(group)) for _, group in groupby(scores, key=lambda score: score.strategy)]
    footer = _footer(measured_table, seeds, settings, contestants.fallback_rounds)
    text = "\n".join([*lines, "", f"{footer} {note}".rstrip()])
    out.say(text)
    if write is not None:
        atomic.write_text(write, f"{TITLE}\n{text}\n")


def _llm_limits(budget: str) -> tuple[float | None, int | None]:
    """Return the limits in US dollars and tokens. Raises UsageError if the budget names others."""
    from autoqec.errors import UsageError
    from autoqec.launch.role_options import split_budget
    from autoqec.orchestrator.budget import Budget

    limits, llm_limits = split_budget(budget)
    if limits != Budget():
        message = f"{budget!r} limits runs; this command starts none"
        raise UsageError(message, location="--budget", hint="--budget usd=DOLLARS,tokens=COUNT; --rounds N")
    return llm_limits.get("usd"), int(llm_limits["tokens"]) if "tokens" in llm_limits else None


def _footer(table: Table, seeds: int, settings: SimulationSettings, fallback_rounds: int) -> str:
    """Describe the data and settings behind the scores."""
    from autoqec.ideators.bench import verifiable_entries

    statuses = Counter(entry.status for entry in table.entries)
    shots, n_verifiable = table.baseline.size, len(verifiable_entries(table, settings.min_gain))
    footer = (
        f"Env {table.env}, {len(table.entries)} configs "
        f"({', '.join(f'{n} {how}' for how, n in statuses.most_common())}; "
        f"{n_verifiable} verifiable at a gain of at least {100 * settings.min_gain:g}%), {shots:,} shots each, half of "
        f"them for verification; {seeds} seeds of {settings.rounds} rounds, {settings.slots} at once, "
        f"{settings.val_shots:,} validation shots. "
        "Hypervolumes are shares of what the table allows; the interval is a paired bootstrap over seeds."
    )
    return footer + (
        f" TPE proposed {fallback_rounds} rounds because a model gave no usable answer." if fallback_rounds else ""
    )


def _header(references: list[str]) -> str:
    names = ["strategy", "control", "final", "mean over rounds", f"at half {references[0]}'s seconds"]
    for one in references:
        names += [f"minus {one} [95%]", f"regret against {one} at equal time [95%]"]
    names += ["built", "verified", "seconds", "dollars"]
    return f"| {' | '.join(names)} |\n{'|---' * len(names)}|"


def _line(strategy_scores: list[Score]) -> str:
    """Format the row of one strategy, with its difference from each reference."""
    score = strategy_scores[0]
    gaps = " | ".join(
        f"{one.gap:+.3f} [{one.gap_low:+.3f}, {one.gap_high:+.3f}] "
        f"| {one.regret:+.3f} [{one.regret_low:+.3f}, {one.regret_high:+.3f}]"
        for one in strategy_scores
    )
    dollars = "unknown" if math.isnan(score.dollars) else f"{score.dollars:.2f}"
    return (
        f"| {score.strategy} | {score.control} | {score.final:.3f} | {score.mean:.3f} | {score.at_equal_seconds:.3f} "
        f"| {gaps} | {score.built:.0%} | {score.verified:.1f} | {score.seconds:.0f} | {dollars} |"
    )
