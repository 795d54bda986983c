"""Charts of runs, drawn with matplotlib: Pareto front and progress of the search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from autoqec.qec.stats import validation_effect
from autoqec.reporting.run_report import RoundEntry, RunReport
from autoqec.reporting.text import count, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Colours of the light theme. On a page each becomes the CSS variable of its name, so that the dark theme applies.
COLOURS = {
    "ink": "#1b1f24",
    "soft": "#5b6672",
    "line": "#d5dae0",
    "good": "#0b7a53",
    "warn": "#9a6200",
    "bad": "#b3261e",
    "mark": "#2257c4",
    "second": "#8a3fb0",
}
SERIES = ("mark", "second", "good", "warn")
SIZE = (4.0, 3.2)  # inches
X_OFFSET = 0.08  # rounds: validation is drawn to the left of the round number, verification to the right
MAX_LABELLED_ROUNDS = 12  # with more tested rounds, only those on the front are labelled
Draw = Callable[[Sequence[RunReport]], "Figure | None"]
CostOf = Callable[[RunReport, RoundEntry], "float | None"]  # the cost that the front is drawn against


class _Marker(NamedTuple):
    """One round of the front chart."""

    run: RunReport
    entry: RoundEntry
    x: float
    y: float
    colour: str
    filled: bool


def front(runs: Sequence[RunReport]) -> Figure | None:
    """Draw Δ_LER against FLOPs; the area of a disc is the parameter count, bars are 95% intervals."""
    return _front_against(runs, lambda _, entry: _flops(entry), "FLOPs per shot (inner decoder excluded)")


def front_by_time(runs: Sequence[RunReport]) -> Figure | None:
    """Draw Δ_LER against the CPU time of decoding divided by that of correlated matching, where it was measured."""
    figure = _front_against(runs, _time_ratio, "CPU time per shot ÷ correlated matching")
    if figure is not None:
        figure.axes[0].axvline(1, color=COLOURS["bad"], linewidth=0.9, zorder=1)
    return figure


def _time_ratio(run: RunReport, entry: RoundEntry) -> float | None:
    """Return the verifier's time ratio of a round; reports are read only for rounds that a page shows in detail."""
    report = run.verification(entry) if entry.key in run.details else None
    return None if report is None or report.cost is None else report.cost.time_ratio


def _front_against(runs: Sequence[RunReport], cost_of: CostOf, label: str) -> Figure | None:
    tested, validated = _tested_markers(runs, cost_of), _validated_markers(runs, cost_of)
    if not tested and not validated:
        return None
    figure, axes = new_figure()
    largest = max(1, *(_n_params(entry) for run in runs for entry in run.listed))
    _discs(axes, [*validated, *tested], largest)
    bars = [(marker.x, marker.entry.row.delta_holdout_low, marker.entry.row.delta_holdout_high) for marker in tested]
    draw_bars(axes, bars, [COLOURS[marker.colour] for marker in tested])
    _baseline_lines(axes, runs)
    axes.set_xscale("log")
    format_ticks(axes.yaxis, _exponent)
    format_ticks(axes.xaxis, count, subs=(1.0, 2.0, 5.0))
    axes.set_xlabel(label)
    axes.set_ylabel("Δ_LER per shot, higher is better")
    axes.margins(0.12, 0.12)
    label_all = len(runs) == 1 and len(tested) <= MAX_LABELLED_ROUNDS
    _label_rounds(axes, [marker for marker in tested if marker.entry.on_front or label_all], len(runs) > 1)
    for colour, filled, label in _front_legend(tested, validated):
        face = COLOURS[colour] if filled else "none"
        axes.scatter([], [], s=40, edgecolor=COLOURS[colour], facecolor=face, label=label)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=3, handletextpad=0.2, columnspacing=1)
    return figure


def search_progress(runs: Sequence[RunReport]) -> Figure | None:
    """Draw the gain of every round on val shots and in verification, with 95% intervals."""
    rows = [entry.row for run in runs for entry in run.listed]
    if all(_validation_gain(entry) is None for run in runs for entry in run.listed) and all(
        row.relative_holdout is None for row in rows
    ):
        return None
    from matplotlib.ticker import MaxNLocator

    figure, axes = new_figure()
    for index, run in enumerate(runs):
        colour = COLOURS[SERIES[index % len(SERIES)]]
        # With several runs the legend names the runs; circles and discs mean the same in all of them.
        names = ("validation", run.terms.shots)
        _plot_progress(axes, run, colour, (run.id, None) if len(runs) > 1 else names)
    axes.axhline(0, color=COLOURS["soft"], linewidth=0.8)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    first, last = axes.get_xlim()
    axes.set_xlim(min(first, round(first) - 0.5), max(last, round(last) + 0.5))  # whole numbers even for one round
    axes.set_xlabel("round")
    sealed = any(run.on_sealed_shots for run in runs)
    axes.set_ylabel("fewer failures than baseline" + (", %" if sealed else " decoder, %"))
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=2, handletextpad=0.2, columnspacing=1)
    return figure


def _tested_markers(runs: Sequence[RunReport], cost_of: CostOf) -> list[_Marker]:
    """Rounds measured by the verifier; rounds of equal cost are shifted slightly so that their bars stay apart."""
    markers: list[_Marker] = []
    seen: dict[float, int] = {}
    for run in runs:
        for entry in run.listed:
            delta = entry.row.delta_vs_baseline_holdout
            if delta is None or (cost := cost_of(run, entry)) is None:
                continue
            x = cost * (1 + 0.02 * seen.get(cost, 0))
            seen[cost] = seen.get(cost, 0) + 1
            colour = {"VERIFIED": "good", "FAILED": "bad"}.get(entry.outcome, "warn")
            markers.append(_Marker(run, entry, x, delta, colour, entry.on_front))
    return markers


def _validated_markers(runs: Sequence[RunReport], cost_of: CostOf) -> list[_Marker]:
    """Rounds measured on val shots only."""
    return [
        _Marker(run, entry, cost, entry.row.delta_ler, "soft", False)
        for run in runs
        for entry in run.listed
        if entry.row.delta_vs_baseline_holdout is None and entry.row.delta_ler is not None and entry.row.status == "ok"
        if (cost := cost_of(run, entry)) is not None
    ]


def _discs(axes: Axes, markers: Sequence[_Marker], largest: int) -> None:
    """Draw all discs as one collection, which costs far less than a collection each."""
    edges = [COLOURS[marker.colour] for marker in markers]
    artist: Any = axes.scatter(
        [marker.x for marker in markers],
        [marker.y for marker in markers],
        s=[18 + 70 * _n_params(marker.entry) / largest for marker in markers],
        edgecolor=edges,
        facecolor=[edge if marker.filled else "none" for edge, marker in zip(edges, markers, strict=True)],
        zorder=3,
    )
    linked = [marker.entry.anchor in marker.run.linked_anchors for marker in markers]
    artist.set_urls(
        [f"#{marker.entry.anchor}" if is_linked else None for is_linked, marker in zip(linked, markers, strict=True)]
    )


def _label_rounds(axes: Axes, markers: Sequence[_Marker], several_runs: bool) -> None:
    """Write round numbers beside the discs; discs that overlap share one label at the rightmost."""
    low, high = axes.get_ylim()
    groups: list[list[_Marker]] = []
    for marker in sorted(markers, key=lambda marker: (marker.y, marker.x)):
        near = [group for group in groups if _labels_overlap(group[-1], marker, 0.05 * (high - low))]
        if near:
            near[0].append(marker)
        else:
            groups.append([marker])
    for group in groups:
        x, y = max(marker.x for marker in group), sum(marker.y for marker in group) / len(group)
        names = [f"{marker.entry.row.round}" + (f" ({marker.run.id[-6:]})" if several_runs else "") for marker in group]
        axes.annotate(", ".join(sorted(names)), (x, y), textcoords="offset points", xytext=(7, 5), fontsize=8)


def _labels_overlap(first: _Marker, second: _Marker, height: float) -> bool:
    return abs(first.y - second.y) <= height and 1 / 1.15 <= first.x / second.x <= 1.15


def _baseline_lines(axes: Axes, runs: Sequence[RunReport]) -> None:
    """Draw the Δ_LER of each baseline against the reference of the best round, on the shots of that round."""
    lines: dict[tuple[str, str], float] = {}
    for run in runs:
        best = run.best_verification
        if best is None or best.effect is None:
            continue
        rates = {member.name: member.rate.rate for member in best.panel}
        if (reference := rates.get(best.effect.reference)) is None:
            continue
        for name, rate in rates.items():
            lines.setdefault((best.env_yaml_sha256, name), reference - rate)
    for delta in lines.values():
        axes.axhline(delta, color=COLOURS["soft"], linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
    low, high = axes.get_ylim()
    labels: list[tuple[float, list[str]]] = []  # height of the highest line, names of lines close to it
    for (_, name), delta in sorted(lines.items(), key=lambda line: -line[1]):
        if labels and labels[-1][0] - delta <= 0.05 * (high - low):
            labels[-1][1].append(plain(name, 40))
        else:
            labels.append((delta, [plain(name, 40)]))
    y_transform: Any = axes.get_yaxis_transform()
    style: Any = {"fontsize": 8, "color": COLOURS["soft"], "ha": "right", "va": "bottom"}
    style |= {"xycoords": y_transform, "textcoords": "offset points", "xytext": (0, 2)}
    for height, names in labels:
        axes.annotate(", ".join(names), (0.995, height), **style)


def _front_legend(tested: Sequence[_Marker], validated: Sequence[_Marker]) -> list[tuple[str, bool, str]]:
    """(colour, filled, label) of each kind of disc that is drawn."""
    verified = [marker.entry.outcome == "VERIFIED" for marker in tested]
    kinds = [
        (any(marker.filled for marker in tested), ("good", True, "front")),
        (
            any(is_verified and not marker.filled for is_verified, marker in zip(verified, tested, strict=True)),
            ("good", False, "verified, dominated"),
        ),
        (not all(verified), ("warn", False, "tested, not verified")),
        (bool(validated), ("soft", False, "validation only: no evidence")),
    ]
    return [kind for present, kind in kinds if present]


def _plot_progress(axes: Axes, run: RunReport, colour: str, labels: tuple[str | None, str | None]) -> None:
    """Draw validation and verification of a round side by side, so that neither bar hides the other."""
    validated = [(entry.row, gain) for entry in run.listed if (gain := _validation_gain(entry)) is not None]
    tested = [(entry.row, gain) for entry in run.listed if (gain := entry.row.relative_holdout) is not None]
    effects = [(row.round, effect) for row, _ in validated if (effect := validation_effect(row)) is not None]
    on_val = [(number - X_OFFSET, effect.relative_low, effect.relative_high) for number, effect in effects]
    draw_bars(axes, on_val, colour, scale=100, alpha=0.35)
    on_fresh = [(row.round + X_OFFSET, row.relative_holdout_low, row.relative_holdout_high) for row, _ in tested]
    draw_bars(axes, on_fresh, colour, scale=100)
    style: Any = {"s": 16, "facecolor": "none", "edgecolor": colour, "alpha": 0.7, "label": labels[0]}
    if validated:
        axes.scatter([row.round - X_OFFSET for row, _ in validated], [gain for _, gain in validated], **style)
    if tested:
        gains = [100 * gain for _, gain in tested]
        axes.scatter([row.round + X_OFFSET for row, _ in tested], gains, s=30, color=colour, label=labels[1], zorder=3)


def draw_bars(
    axes: Axes,
    bars: Sequence[tuple[float, float | None, float | None]],
    colours: str | Sequence[str],
    *,
    scale: float = 1,
    alpha: float = 1,
) -> None:
    """Draw intervals, each (x, low, high), as vertical bars; unknown ones are left out."""
    each = [colours] * len(bars) if isinstance(colours, str) else colours
    known = [
        (x, scale * low, scale * high, colour)
        for (x, low, high), colour in zip(bars, each, strict=True)
        if low is not None and high is not None
    ]
    if known:
        x, low, high, colour = zip(*known, strict=True)
        axes.vlines(x, low, high, colors=colour, linewidth=1.2, alpha=alpha, zorder=2, capstyle="projecting")


def _validation_gain(entry: RoundEntry) -> float | None:
    """Relative gain on val shots, in percent."""
    found = entry.row.validation
    return None if found is None or found.relative is None else 100 * found.relative


def _n_params(entry: RoundEntry) -> int:
    return max(0, entry.row.judge_n_params or entry.row.n_params or 0)


def _flops(entry: RoundEntry) -> int:
    return max(1, entry.row.judge_flops_per_syndrome or entry.row.flops_per_syndrome or 1)


def new_figure() -> tuple[Figure, Axes]:
    """Return an empty chart and its axes."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="tight")
    return figure, figure.add_subplot()


def _exponent(value: float) -> str:
    return "0" if value == 0 else f"{value:.1e}".replace("e-0", "e-").replace(".0e", "e")


def format_ticks(axis: Any, label: Callable[[float], str], *, subs: tuple[float, ...] | None = None) -> None:
    """Label major ticks only; subs: multiples of powers of ten at which a logarithmic axis has them."""
    from matplotlib.ticker import LogLocator

    if subs is not None:
        axis.set_major_locator(LogLocator(subs=subs))
    axis.set_major_formatter(lambda value, _: label(value))
    axis.set_minor_formatter(lambda value, _: "")
