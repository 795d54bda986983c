"""The end of a run, and `autoqec show RUN`: rounds, verified front, what the best decoder gains, where to look."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from autoqec.contracts.history import HistoryRow
from autoqec.contracts.timing import seconds_between
from autoqec.reporting import run_view
from autoqec.reporting.run_data import validation
from autoqec.reporting.run_view import RunView
from autoqec.reporting.text import count, duration, effect_line, interval, percent, plain, pluralize

MAX_FRONT_ROWS = 20  # of the front, in a table
VERDICT_STYLE = {"VERIFIED": "bold green", "SUSPICIOUS": "yellow", "FAILED": "red"}


def print_summary(console: Console, view: RunView) -> None:
    for part in parts(view):
        console.print(part, soft_wrap=not isinstance(part, Table))


def parts(view: RunView) -> Iterator[RenderableType]:
    info, rounds = view.info, view.latest_rows
    verified = sum(row.verify_verdict == "VERIFIED" for row in rounds)
    head = f"Run {info.run_id} · {plain(info.env_name)} · profile {info.profile} · seed {info.seed}"
    yield Text(f"{head} · {pluralize(len(rounds), 'round')}, {verified} verified", style="bold")
    if rounds:
        yield rounds_table(rounds)
    else:
        yield Text("No round has finished yet.")
    if view.front:
        yield front_table(view)
        yield from _best(view)
    else:
        yield Text("No decoder is verified yet: nothing here is a result.")
    yield Text(f"Log: {_display_path(view.layout.log)}")


def rounds_table(rows: Sequence[HistoryRow]) -> Table:
    """One entry a round, as its last row has it."""
    table = Table(title="Rounds", title_justify="left")
    table.add_column("#", justify="right")
    table.add_column("tried", overflow="fold", min_width=10)
    for name in ("val Δ, errors", "params", "FLOPs"):
        table.add_column(name, justify="right", overflow="fold")
    table.add_column("outcome", no_wrap=True)
    table.add_column("fewer failures\nthan plain,\nfresh shots", justify="right", overflow="fold")
    for row in rows:
        table.add_row(
            str(row.round),
            _hypothesis_cell(row),
            _val_cell(row),
            count(row.n_params),
            count(row.flops_per_syndrome),
            _outcome(row),
            Text(_test_gain(row)),
        )
    return table


def last_rounds(rows: Sequence[HistoryRow]) -> Table:
    """The same for a screen: a line or two each, of those that failed why instead of what."""
    table = Table(title="Last rounds: fewer failures than plain, with 95% intervals", title_justify="left")
    table.add_column("#", justify="right")
    table.add_column("tried, or why it failed", overflow="fold", min_width=16)
    table.add_column("validation", justify="right", no_wrap=True)
    table.add_column("outcome", no_wrap=True)
    table.add_column("fresh shots", justify="right", no_wrap=True)
    for row in rows:
        val = validation(row)
        val_gain = _gain_cell(val.relative, val.relative_low, val.relative_high, val.counts.shots) if val else "–"
        description = plain(row.hypothesis, 72) if row.status == "ok" else plain(str(row.status_reason), 160)
        table.add_row(
            str(row.round),
            Text(description).append(_ended(row), style="dim"),
            Text(val_gain),
            _outcome(row),
            Text(_test_gain(row)),
        )
    return table


def _when(row: HistoryRow) -> str:
    """Start of a round, how long it took, and how long each phase of it."""
    if row.started_at is None:
        return ""
    total = seconds_between(row.started_at, row.finished_at)
    took = f" ({duration(total)})" if total is not None else ""
    phases = ", ".join(f"{name} {duration(seconds)}" for name, seconds in row.timing.phases)
    return f"\n{row.started_at:%Y-%m-%d %H:%M:%S} UTC{took}{': ' if phases else ''}{phases}"


def _ended(row: HistoryRow) -> str:
    """End of a round and how long it took."""
    total = seconds_between(row.started_at, row.finished_at)
    if row.finished_at is None or total is None:
        return ""
    return f"\n{row.finished_at:%H:%M:%S} UTC, took {duration(total)}"


def _test_gain(row: HistoryRow) -> str:
    """The judge's figure."""
    return _gain_cell(row.relative_holdout, row.relative_holdout_low, row.relative_holdout_high, row.holdout_shots)


def _gain_cell(gain: float | None, low: float | None, high: float | None, shots: int | None) -> str:
    """`+4.6% of 20k`, and its interval below."""
    if gain is None:
        return "–"
    of = f" of {count(shots)}" if shots else ""
    return f"{percent(gain)}{of}\n{interval(low, high)}".rstrip()


def _hypothesis_cell(row: HistoryRow) -> Text:
    """The hypothesis; below it why it ended without a result, and when it ran."""
    text = Text(plain(row.hypothesis, 160))
    if row.status != "ok":
        text.append(f"\n{plain(str(row.status_reason), 160)}", style="dim")
    return text.append(_when(row), style="dim")


def _outcome(row: HistoryRow) -> Text:
    """The judge's word, else why there is none."""
    unjudged = "not judged" if row.verdict == "candidate" else "not nominated"
    word = row.verify_verdict or (unjudged if row.status == "ok" else row.status)
    return Text(plain(word), style=VERDICT_STYLE.get(word, "dim" if row.status == "ok" else "red"))


def _val_cell(row: HistoryRow) -> Text:
    """Δ on val shots and, below it, the errors it comes from: plain backend → decoder."""
    if row.delta_ler is None:
        return Text("–")
    has_counts = row.val_errors_plain is not None and row.val_errors_predecoder is not None
    errors = f"\n{row.val_errors_plain} → {row.val_errors_predecoder} of {count(row.val_shots)}" if has_counts else ""
    return Text(f"{row.delta_ler:+.2e}{errors}")


def front_table(view: RunView) -> Table:
    """The front with the judge's gains, and the errors they come from where the report can be read."""
    table = Table(title="Verified front (fresh shots, 95% intervals; best first)", title_justify="left")
    for name in (
        "#",
        "Δ_LER a shot",
        "fewer failures than plain",
        "errors",
        "beats",
        "params",
        "FLOPs a shot",
        "branch",
    ):
        table.add_column(name, overflow="fold")
    for entry in view.front[:MAX_FRONT_ROWS]:
        row = view.state.rounds[entry.round_attempt_id].row
        beaten = ", ".join(name for name, beats in (row.beats_panel or {}).items() if beats)
        table.add_row(
            str(row.round),
            f"{entry.delta_vs_baseline_holdout:+.2e}",
            Text(_gain(row)),
            Text(_errors(view, row)),
            Text(plain(beaten) or "–"),
            count(entry.n_params),
            count(entry.flops_per_syndrome),
            Text("…/" + plain(entry.branch).rpartition("/")[2]),  # exp/RUN/ is the same in all of them
        )
    if len(view.front) > MAX_FRONT_ROWS:
        table.caption = f"{MAX_FRONT_ROWS} of {len(view.front)}; all of them: {_display_path(view.layout.pareto)}"
    return table


def _errors(view: RunView, row: HistoryRow) -> str:
    """The judge's counts: plain backend → decoder, of how many shots."""
    report = run_view.report(view.layout.round(row.round))
    if report is None or report.effect is None:
        return f"of {count(row.holdout_shots)}" if row.holdout_shots else "–"
    counts = report.effect.counts
    return f"{counts.errors_reference} → {counts.errors_candidate} of {count(counts.shots)}"


def _best(view: RunView) -> Iterator[RenderableType]:
    entry = view.front[0]
    number = view.round_of(entry)
    yield Text(f"Best decoder: round {number}, {count(entry.n_params)} parameters", style="bold")
    if view.best is not None:
        for member in view.best.panel:
            yield Text("  " + effect_line(plain(member.name), member.against))
    else:
        yield Text(f"  its report cannot be read: {_display_path(view.layout.round(number).report_json)}")
    yield Text(f"  git checkout {plain(entry.branch)}")
    yield Text(f"  report: {_display_path(view.layout.round(number).report_md)}")


def _gain(row: HistoryRow) -> str:
    return f"{percent(row.relative_holdout)} {interval(row.relative_holdout_low, row.relative_holdout_high)}".strip()


def _display_path(path: Path) -> str:
    """Relative to where one stands, if it lies below."""
    here = Path.cwd()
    return plain(os.path.relpath(path, here) if path.is_relative_to(here) else str(path))
