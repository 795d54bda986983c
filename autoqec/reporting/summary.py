"""Summary of a run for the terminal: rounds, verified front, gain of the best decoder, and where to look next."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from autoqec.contracts.history import HistoryRow
from autoqec.contracts.round import seconds_between
from autoqec.contracts.verdict import comparison_terms
from autoqec.qec.stats import validation_effect
from autoqec.reporting.proposals import describe_all_trials, describe_usage, proposed_by_model
from autoqec.reporting.run_report import RoundEntry, RunReport, outcome
from autoqec.reporting.text import count, duration, effect_line, interval, member_line, percent, plain, pluralize

MAX_FRONT_ROWS = 20
MAX_ROUND_ROWS = 200  # rich lays out every cell: of thousands of rows that would take seconds
VERDICT_STYLE = {"VERIFIED": "bold green", "INCONCLUSIVE": "cyan", "SUSPICIOUS": "yellow", "FAILED": "red"}


def print_summary(console: Console, run: RunReport) -> None:
    """Print the rounds, the front and the best decoder of a run."""
    for part in parts(run):
        console.print(part, soft_wrap=not isinstance(part, Table))


def parts(run: RunReport) -> Iterator[RenderableType]:
    """Yield the parts of the summary, from top to bottom."""
    rows = run.latest_rows
    yield Text(f"{run_title(run)} · {pluralize(len(rows), 'round')}, {run.n_verified} verified", style="bold")
    if rows:
        yield rounds_table(rows[-MAX_ROUND_ROWS:], total=len(rows), sealed=run.on_sealed_shots)
    else:
        yield Text("No round has finished yet.")
    yield from _trials_and_calls(run)
    if run.front:
        yield front_table(run)
        yield from _best(run)
    else:
        yield Text("No decoder is verified yet: nothing here is a result.")
    yield Text(f"Log: {_display_path(run.layout.log)}")


def _trials_and_calls(run: RunReport) -> Iterator[RenderableType]:
    """Yield the trials and the calls of language models, by round and in all."""
    if run.trials is None:
        yield Text(f"Trials cannot be read: {_display_path(run.layout.trials)}")
    rounds = [(entry, run.trials_and_calls(entry.key)) for entry in run.rounds[-MAX_ROUND_ROWS:]]
    if any(lines for _, lines in rounds):
        table = Table(title="Trials and language models by round (guide the search; no evidence)", title_justify="left")
        table.add_column("#", justify="right")
        table.add_column("trials and calls of language models", overflow="fold")
        for entry, lines in rounds:
            if lines:
                table.add_row(str(entry.row.round), Text("\n".join(lines)))
        yield table
    if run.trials:
        yield Text(f"Trials: {describe_all_trials(run.trials)}")
    if run.llm_usage is not None:
        rows = run.finished_rows
        yield Text(
            f"Language models: {describe_usage(run.llm_usage)}; "
            f"{proposed_by_model(rows)} of {pluralize(len(rows), 'round')} proposed by a model"
        )
        for role, usage in run.llm_usage["by_role"].items():
            yield Text(f"  {plain(role)}: {describe_usage(usage)}")


def run_title(run: RunReport) -> str:
    """Run id, env, profile and seed."""
    info = run.info
    scale = "" if info.scale == 1 else f" × {info.scale:g}"
    return f"Run {info.run_id} · {plain(info.env_name)} · profile {info.profile}{scale} · seed {info.seed}"


def rounds_table(rows: Sequence[HistoryRow], *, total: int = 0, sealed: bool = False) -> Table:
    """Format rounds as a table.

    Args:
        rows: The rounds.
        total: Number of rounds of the run, of which `rows` are the last.
        sealed: They are verified on sealed blocks of recorded shots.

    Costs are those counted by the verifier, if it has counted them.
    """
    table = Table(title="Rounds", title_justify="left")
    table.add_column("#", justify="right")
    table.add_column("hypothesis", overflow="fold", min_width=10)
    for name in ("val Δ, errors", "params", "FLOPs"):
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("outcome", no_wrap=True)
    terms = comparison_terms(sealed=sealed)
    compared = f"fewer failures\nthan {terms.reference.removesuffix(' decoder')},\n{terms.shots}"
    table.add_column(compared, justify="right", overflow="fold")
    for row in rows:
        bound = "≥ " * (row.cost_counted_by == "candidate sandbox")  # as in the front
        table.add_row(
            str(row.round),
            _hypothesis_cell(row),
            _validation_cell(row),
            bound + count(row.judge_n_params or row.n_params),
            bound + count(row.judge_flops_per_syndrome or row.flops_per_syndrome),
            _outcome_cell(row),
            Text(_test_gain(row)),
        )
    if len(rows) < total:
        table.caption = f"the last {len(rows)} of {total} rounds; all of them: autoqec export RUN --format csv"
    return table


def last_rounds(rows: Sequence[HistoryRow], *, sealed: bool = False) -> Table:
    """Format rounds for a live screen: one or two lines each; failed rounds show the reason.

    Args:
        rows: The rounds.
        sealed: They are verified on sealed blocks of recorded shots, against the strongest baseline.
    """
    terms = comparison_terms(sealed=sealed)
    compared = "the baseline decoder" + f", on {terms.shots} than the {terms.reference}" * sealed
    table = Table(title=f"Last rounds: fewer failures than {compared}, 95% intervals", title_justify="left")
    table.add_column("#", justify="right")
    table.add_column("hypothesis, or reason of failure", overflow="fold", min_width=16)
    table.add_column("validation", justify="right", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    table.add_column(terms.shots, justify="right", no_wrap=True)
    for row in rows:
        val = validation_effect(row)
        val_gain = _gain_cell(val.relative, val.relative_low, val.relative_high, val.counts.shots) if val else "–"
        description = plain(row.hypothesis, 72) if row.status == "ok" else plain(str(row.status_reason), 160)
        table.add_row(
            str(row.round),
            Text(description).append(_end_time(row), style="dim"),
            Text(val_gain),
            _outcome_cell(row),
            Text(_test_gain(row)),
        )
    return table


def _times(row: HistoryRow) -> str:
    """Start and duration of a round, and the duration of each phase."""
    if row.started_at is None:
        return ""
    total = seconds_between(row.started_at, row.finished_at)
    took = f" ({duration(total)})" if total is not None else ""
    phases = ", ".join(f"{name} {duration(seconds)}" for name, seconds in row.timing.phases)
    return f"\n{row.started_at:%Y-%m-%d %H:%M:%S} UTC{took}{': ' if phases else ''}{phases}"


def _end_time(row: HistoryRow) -> str:
    """End of a round and how long it took."""
    total = seconds_between(row.started_at, row.finished_at)
    if row.finished_at is None or total is None:
        return ""
    return f"\n{row.finished_at:%H:%M:%S} UTC, took {duration(total)}"


def _test_gain(row: HistoryRow) -> str:
    """Relative gain that the verification measured."""
    found = row.verification
    if found is None or found.relative_gain is None:
        return "–"
    return _gain_cell(found.relative_gain.value, found.relative_gain.low, found.relative_gain.high, found.shots)


def _gain_cell(gain: float | None, low: float | None, high: float | None, shots: int | None) -> str:
    """`+4.6% of 20k`, and its interval below."""
    if gain is None:
        return "–"
    of = f" of {count(shots)}" if shots else ""
    return f"{percent(gain)}{of}\n{interval(low, high)}".rstrip()


def _hypothesis_cell(row: HistoryRow) -> Text:
    """Hypothesis; below it the reason of a failure, and when the round ran."""
    text = Text(plain(row.hypothesis, 160))
    if row.status != "ok":
        text.append(f"\n{plain(str(row.status_reason), 160)}", style="dim")
    return text.append(_times(row), style="dim")


def _outcome_cell(row: HistoryRow) -> Text:
    label = outcome(row)
    return Text(plain(label), style=VERDICT_STYLE.get(label, "dim" if row.status == "ok" else "red"))


def _validation_cell(row: HistoryRow) -> Text:
    """Δ on val shots; below it the errors of baseline decoder → decoder."""
    if row.delta_ler is None:
        return Text("–")
    has_counts = row.val_errors_plain is not None and row.val_errors_predecoder is not None
    errors = f"\n{row.val_errors_plain} → {row.val_errors_predecoder} of {count(row.val_shots)}" if has_counts else ""
    return Text(f"{row.delta_ler:+.2e}{errors}")


def front_table(run: RunReport) -> Table:
    """Format the front with the verified gains, and error counts if the report can be read."""
    table = Table(title=f"Verified front ({run.terms.shots}, 95% intervals; best first)", title_justify="left")
    sizes = ("params", "FLOPs per shot")
    compared = f"fewer failures than {run.terms.reference.removesuffix(' decoder')}"
    for name in ("#", "Δ_LER per shot", compared, "errors", "beats", *sizes, "branch"):
        table.add_column(name, overflow="fold")
    for entry in run.front[:MAX_FRONT_ROWS]:
        row, pareto = entry.row, run.state.verified[entry.key]
        beaten = ", ".join(name for name, beats in (row.beats_panel or {}).items() if beats)
        bound = "≥ " * (pareto.cost_counted_by == "candidate sandbox")  # branch code took part in the count
        gain = f"{percent(row.relative_holdout)} {interval(row.relative_holdout_low, row.relative_holdout_high)}"
        table.add_row(
            str(row.round),
            f"{pareto.delta_vs_baseline_holdout:+.2e}",
            Text(gain.strip()),
            Text(_errors(run, entry)),
            Text(plain(beaten) or "–"),
            bound + count(pareto.n_params),
            bound + count(pareto.flops_per_syndrome),
            Text("…/" + plain(pareto.branch).rpartition("/")[2]),  # exp/RUN/ is the same in all of them
        )
    if len(run.front) > MAX_FRONT_ROWS:
        table.caption = f"{MAX_FRONT_ROWS} of {len(run.front)}; all of them: {_display_path(run.layout.pareto)}"
    return table


def _errors(run: RunReport, entry: RoundEntry) -> str:
    """Error counts of the verification: baseline decoder → decoder, of how many shots."""
    report = run.verification(entry)
    if report is None or report.effect is None:
        return f"of {count(entry.row.holdout_shots)}" if entry.row.holdout_shots else "–"
    counts = report.effect.counts
    return f"{counts.errors_reference} → {counts.errors_candidate} of {count(counts.shots)}"


def _best(run: RunReport) -> Iterator[RenderableType]:
    assert run.best is not None
    pareto, files = run.state.front[0], run.layout.round(run.best.row.round)
    yield Text(f"Best decoder: round {run.best.row.round}, {count(pareto.n_params)} parameters", style="bold")
    if run.best_verification is not None:
        for member in run.best_verification.panel:
            yield Text("  " + effect_line(plain(member.name), member.against))
        if run.best_verification.members:
            yield Text("  circuits of the family, all intervals of the run together 95%:")
        for result in run.best_verification.members:
            yield Text("    " + member_line(result))
    else:
        yield Text(f"  verification report cannot be read: {_display_path(files.report_json)}")
    yield Text(f"  git checkout {plain(pareto.branch)}")
    yield Text(f"  report: {_display_path(files.report_md)}")


def _display_path(path: Path) -> str:
    """Return the path relative to the current directory if it is below it."""
    current = Path.cwd()
    return plain(os.path.relpath(path, current) if path.is_relative_to(current) else str(path))
