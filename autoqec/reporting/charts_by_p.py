"""Charts over the physical error rate p: LER, and its ratio to correlated matching."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from autoqec.contracts.env import CORRELATED
from autoqec.contracts.round import PairedCounts
from autoqec.contracts.verdict import PairedEffect, VerifyReport
from autoqec.reporting.charts import COLOURS, SERIES, draw_bars, format_ticks, new_figure
from autoqec.reporting.run_report import RoundEntry, RunReport
from autoqec.reporting.text import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def ler_vs_p(runs: Sequence[RunReport]) -> Figure | None:
    """Draw the LER of the baselines and of the best verified rounds at every p, with Clopper-Pearson intervals."""
    curves = [
        (run, entry, report, counts)
        for run, entry, report in _best_verifications(runs)
        if (counts := _counts_by_p(report))
    ]
    if not curves:
        return None
    figure, axes = new_figure()
    drawn_envs: set[str] = set()
    for index, (run, entry, report, by_p) in enumerate(curves):
        if report.env_yaml_sha256 not in drawn_envs:
            drawn_envs.add(report.env_yaml_sha256)
            _baseline_rates(axes, report, index)
        rates = [(p, counts.errors_candidate, counts.shots) for p, counts in by_p]
        colour = COLOURS[SERIES[index % len(SERIES)]]
        _rates(axes, rates, colour, _round_name(run, entry, runs), "s", index + 1)
    _format_p_axis(axes, {p for *_, by_p in curves for p, _ in by_p})
    axes.set_yscale("log")
    format_ticks(axes.yaxis, lambda value: f"{value:g}")
    axes.set_ylabel("logical error rate per shot")
    axes.margins(0.08, 0.12)
    axes.legend(loc="lower right")
    return figure


def ratio_vs_p(runs: Sequence[RunReport]) -> Figure | None:
    """Draw the LER of the best verified rounds divided by that of correlated matching, with 95% intervals.

    Both rates come from the same shots; the interval is that of the paired effect.
    """
    curves = [
        (run, entry, ratios)
        for run, entry, report in _best_verifications(runs)
        if (ratios := _ratios_by_p(report, CORRELATED))
    ]
    if not curves:
        return None
    figure, axes = new_figure()
    axes.axhline(1, color=COLOURS["bad"], linewidth=1.2, label=CORRELATED)
    for index, (run, entry, ratios) in enumerate(curves):
        p, ratio, low, high = (list(column) for column in zip(*ratios, strict=True))
        shifted = [value * (1 + 0.012 * index) for value in p]  # bars of several curves stay apart
        bars = [(x, below, above) for x, below, above in zip(shifted, low, high, strict=True)]
        style: Any = {"color": COLOURS[SERIES[index % len(SERIES)]], "marker": "s", "markersize": 4, "linewidth": 1.2}
        axes.plot(shifted, ratio, label=plain(_round_name(run, entry, runs), 60), **style)
        draw_bars(axes, bars, style["color"])
    _format_p_axis(axes, {p for *_, ratios in curves for p, *_ in ratios})
    axes.set_ylabel("LER relative to correlated matching")
    axes.margins(0.08, 0.12)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=2, handletextpad=0.4, columnspacing=1)
    return figure


def _best_verifications(runs: Sequence[RunReport]) -> list[tuple[RunReport, RoundEntry, VerifyReport]]:
    """Return the first rounds of each front that have a verification report, three in all or one of each run."""
    best = [(run, entry) for run in runs for entry in run.front[: max(1, 3 // len(runs))] if entry.key in run.details]
    return [(run, entry, report) for run, entry in best if (report := run.verification(entry)) is not None]


def _round_name(run: RunReport, entry: RoundEntry, runs: Sequence[RunReport]) -> str:
    return f"round {entry.row.round}" + (f" of {run.id}" if len(runs) > 1 else "")


def _effects_by_p(report: VerifyReport, name: str) -> list[tuple[float, PairedEffect]]:
    """Return the candidate's effect against one baseline, at every p where both were measured, in order of p."""
    at_target = [member.against for member in report.panel if member.name == name] if report.effect else []
    if report.effect and name == report.backend:
        at_target = [report.effect]
    effects = (*at_target, *(point for point in report.points if point.reference == name))
    return sorted(((effect.p, effect) for effect in effects if effect.p is not None), key=lambda pair: pair[0])


def _ratios_by_p(report: VerifyReport, name: str) -> list[tuple[float, float, float | None, float | None]]:
    """Return (p, ratio, low, high) of the LER to a baseline's; leave out every p where the baseline never failed."""
    return [
        (
            p,
            1 - effect.relative,
            None if effect.relative_high is None else 1 - effect.relative_high,
            None if effect.relative_low is None else 1 - effect.relative_low,
        )
        for p, effect in _effects_by_p(report, name)
        if effect.relative is not None
    ]


def _counts_by_p(report: VerifyReport, name: str | None = None) -> list[tuple[float, PairedCounts]]:
    """Counts of the candidate and one baseline on the same shots, at every p where both were measured."""
    return [(p, effect.counts) for p, effect in _effects_by_p(report, name or report.backend)]


def _baseline_rates(axes: Axes, report: VerifyReport, shift: int) -> None:
    """Draw the baseline decoder, and the other baselines at every p where they were measured."""
    others = [member.name for member in report.panel if member.name != report.backend]
    for index, name in enumerate([report.backend, *others]):
        rates = [(p, counts.errors_reference, counts.shots) for p, counts in _counts_by_p(report, name)]
        if not rates:
            continue
        if index == 0:
            _rates(axes, rates, COLOURS["soft"], f"{name} alone", "o", shift)
        else:
            _rates(axes, rates, COLOURS["bad"], name, "D^v*"[(index - 1) % 4], shift + 2)


def _rates(
    axes: Axes, rates: Sequence[tuple[float, int, int]], colour: str, name: str, marker: str, shift: int
) -> None:
    """Draw (p, errors, shots) with exact intervals, shifted slightly in x so that bars of several curves stay apart."""
    from autoqec.qec.stats import clopper_pearson

    factor = 1 + 0.012 * shift
    x, y, below, above = [], [], [], []
    for p, errors, shots in rates:
        low, high = clopper_pearson(errors, shots)
        rate = errors / shots if errors else high  # without errors: the upper bound, with a bar to the lower edge
        x.append(p * factor)
        y.append(rate)
        below.append(rate - low if errors else 0.9 * rate)
        above.append(high - rate)
    style: Any = {"color": colour, "marker": marker, "markersize": 4, "linewidth": 1.2, "capsize": 2}
    axes.errorbar(x, y, yerr=[below, above], label=plain(name, 60), **style)


def _format_p_axis(axes: Axes, values: set[float]) -> None:
    """Make the x axis logarithmic, with a tick at every measured p."""
    ticks = sorted(values)
    axes.set_xscale("log")
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_formatter(lambda value, _: "")
    axes.set_xlabel("physical error rate p")
