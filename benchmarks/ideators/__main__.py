"""Compares ideators on QECBench-Tab, or on real rounds: `python -m benchmarks.ideators --help`."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import click

from autoqec import locate
from autoqec.cli.common import Output, is_given, options, run_cli
from autoqec.cli.workspace import make_workspace
from autoqec.contracts.profiles import profile_of
from autoqec.errors import UsageError
from autoqec.orchestrator.budget import parse_limits
from autoqec.reporting.terminal import LiveView, console
from autoqec.store import atomic
from benchmarks.ideators.compare import CONTROLS, Score, compare, score
from benchmarks.ideators.models import BenchIdeators
from benchmarks.ideators.real_rounds import RealRounds, run_all, uses_model
from benchmarks.ideators.simulation import SimulationSettings, verifiable_entries
from benchmarks.ideators.table import DEFAULT, Table

TITLE = (
    "# QECBench-Tab: ideators compared\n\nWritten by `python -m benchmarks.ideators --write`; do not edit by hand.\n"
)
NAMES = "random,evolve,tpe,policy,hybrid:none,hybrid:0,hybrid:0.5,hybrid:1"
MODEL_NAMES = "llm,hybrid:llm,tpe"
TRAINED_NAMES = "random,evolve,tpe,policy"
TRAINED_ENV = "surface_d3_depol"
TRAINED_ONLY = ("profile", "scale", "test_shots")


@click.command("ideators")
@click.option(
    "--table",
    type=click.Path(path_type=Path),
    help="Table of measured configs (JSON lines); default: qecbench_tab.jsonl beside this program.",
)
@click.option(
    "--train",
    "directory",
    type=click.Path(path_type=Path),
    help="Train the proposals instead, in one workspace per strategy and seed below this directory; the same command "
    "continues an interrupted comparison.",
)
@click.option(
    "--profile", type=click.Choice(["smoke", "dev", "prod"]), default="dev", help="With --train: training effort."
)
@click.option("--scale", type=click.FloatRange(0.01, 1000), default=1.0, help="With --train: factor on the effort.")
@click.option(
    "--test-shots",
    type=click.IntRange(1),
    default=100_000,
    help="With --train: fresh shots on which the best round so far is measured.",
)
@click.option(
    "--env", help=f"Env of the table; default: its first one. With --train: env or env file; default: {TRAINED_ENV}."
)
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
    strategies: str | None,
    reference: str | None,
    model: str | None,
    seeds: int,
    rounds: int,
    write: Path | None,
    note: str,
    out: Output,
    **chosen: Any,
) -> None:
    """Compare strategies on a table of measured configs, or with --train on real rounds.

    On a table the score is the hypervolume of the verified Pareto front, as a share of the best that the table allows.
    On real rounds it is the share of failures that the best round so far removes on fresh shots. Differences from the
    reference are paired by seed and have a 95% bootstrap interval. With --model the table compares that model with TPE,
    unless --strategies or --reference say otherwise; scripted:expert and scripted:novice cost nothing.
    """
    trained = chosen["directory"] is not None
    _check_options(trained)
    reference = reference or ("tpe" if model and strategies is None else "random")
    if strategies is None:
        strategies = MODEL_NAMES if model else TRAINED_NAMES if trained else NAMES
    names, references = _split(strategies), _split(reference)
    compared = Comparison(names, references, model, seeds, rounds)
    lines, footer = (_on_real_rounds if trained else _on_table)(compared, chosen, out)
    text = "\n".join([*lines, "", f"{footer} {note}".rstrip()])
    out.say(text)
    if write is not None:
        atomic.write_text(write, f"{TITLE}\n{text}\n")


@dataclass(frozen=True)
class Comparison:
    """What is compared: strategies with references, the model of those that call one, and how many runs and rounds."""

    names: list[str]
    references: list[str]
    model: str | None
    seeds: int
    rounds: int


def _split(text: str) -> list[str]:
    return list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))


def _check_options(trained: bool) -> None:
    """Raise UsageError for an option that has no effect on a table, or on real rounds."""
    for name in ("table", "checkpoint", "control", "slots", "val_shots", "min_gain") if trained else TRAINED_ONLY:
        if is_given(name):
            message = f"has no effect {'with' if trained else 'without'} --train"
            option = {"checkpoint": "ideator-memory"}.get(name, name.replace("_", "-"))
            raise UsageError(message, location=f"--{option}", hint="remove it" if trained else "add --train DIR")


def _on_table(compared: Comparison, chosen: dict[str, Any], out: Output) -> tuple[list[str], str]:
    """Return the lines of the comparison on a table, and the description of its data."""
    table, control = Table.read(chosen["table"] or DEFAULT, env=chosen["env"]), chosen["control"]
    settings = SimulationSettings(
        rounds=compared.rounds, val_shots=chosen["val_shots"], min_gain=chosen["min_gain"], slots=chosen["slots"]
    )
    contestants = BenchIdeators(table.env, compared.model, chosen["checkpoint"], *_llm_limits(chosen["budget"]))
    extra_strategies = contestants.by_name([*compared.names, *compared.references])
    lines = [_header(compared.references)]
    for one in CONTROLS if control == "all" else (control,):
        scores = compare(
            table,
            compared.names,
            seeds=compared.seeds,
            settings=settings,
            control=one,
            extra_strategies=extra_strategies,
            spent_usd=contestants.spent_usd,
            references=compared.references,
        )
        lines += _lines(scores, out)
    return lines, _table_footer(table, compared.seeds, settings, contestants.fallback_rounds)


def _on_real_rounds(compared: Comparison, chosen: dict[str, Any], out: Output) -> tuple[list[str], str]:
    """Return the lines of the comparison on real rounds, and the description of its data."""
    names = [*(name for name in compared.references if name not in compared.names), *compared.names]
    limits = dict(zip(("usd", "tokens"), _llm_limits(chosen["budget"]), strict=True))
    n_runs = compared.seeds * sum(map(uses_model, names))
    plan = RealRounds(
        directory=chosen["directory"].absolute(),
        env=locate.env_file(chosen["env"] or TRAINED_ENV).absolute(),
        profile=chosen["profile"],
        scale=chosen["scale"],
        rounds=compared.rounds,
        seeds=compared.seeds,
        test_shots=chosen["test_shots"],
        model=compared.model,
        budget=",".join(f"{key}={limit / n_runs}" for key, limit in limits.items() if limit is not None and n_runs),
    )
    with LiveView(console(err=True), quiet=out.quiet) as view:
        runs = run_all(plan, names, make_workspace, view)
    scores = [score(name, one, runs, rounds=plan.rounds) for name in names for one in compared.references]
    footer = (
        f"Env {plan.env.stem}, profile {plan.profile} at scale {plan.scale:g}, {plan.seeds} seeds of {plan.rounds} "
        "rounds, trained and verified. final, mean: share of the inner decoder's failures that the round with the "
        f"largest gain on {profile_of(plan.profile, plan.scale).val_shots:,} validation shots removes on "
        f"{plan.test_shots:,} fresh shots, the same for all runs; 0 before the first gain. seconds: CPU seconds per "
        "run of proposals, screens, training and validation. The interval is a paired bootstrap over seeds."
    )
    return [_header(compared.references), *_lines(scores, out)], footer


def _llm_limits(budget: str) -> tuple[float | None, int | None]:
    """Return the limits in US dollars and tokens. Raises UsageError if the budget names others."""
    limits = parse_limits(budget, ("usd", "tokens"))
    return limits.get("usd"), int(limits["tokens"]) if "tokens" in limits else None


def _table_footer(table: Table, seeds: int, settings: SimulationSettings, fallback_rounds: int) -> str:
    """Describe the data and settings behind the scores on a table."""
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


def _lines(scores: list[Score], out: Output) -> list[str]:
    """Return the row of every strategy; with --json, also print the scores."""
    for one in scores:
        out.emit(one.dump())
    return [_line(list(group)) for _, group in groupby(scores, key=lambda one: one.strategy)]


def _line(strategy_scores: list[Score]) -> str:
    """Format the row of one strategy, with its difference from each reference."""
    first = strategy_scores[0]
    gaps = " | ".join(
        f"{one.gap:+.3f} [{one.gap_low:+.3f}, {one.gap_high:+.3f}] "
        f"| {one.regret:+.3f} [{one.regret_low:+.3f}, {one.regret_high:+.3f}]"
        for one in strategy_scores
    )
    dollars = "unknown" if math.isnan(first.dollars) else f"{first.dollars:.2f}"
    return (
        f"| {first.strategy} | {first.control} | {first.final:.3f} | {first.mean:.3f} | {first.at_equal_seconds:.3f} "
        f"| {gaps} | {first.built:.0%} | {first.verified:.1f} | {first.seconds:.0f} | {dollars} |"
    )


def main(argv: Sequence[str]) -> int:
    """Run one command line without the name of the program, and return its exit status."""
    return run_cli(click.Group(commands={"ideators": command}), ["ideators", *argv])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
