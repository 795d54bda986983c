"""The charts of a run, drawn by matplotlib: front, LER against p, course of the search."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from autoqec.contracts.verdict import PairedCounts, VerifyReport
from autoqec.reporting.run_data import RoundEntry, RunData, validation
from autoqec.reporting.text import count, plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Light theme's colours; inside a page each becomes the CSS variable of its name, so that dark follows.
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
X_OFFSET = 0.08  # of a round's place: what was validated to the left, what was judged to the right
MAX_LABELLED_ROUNDS = 12  # judged rounds of one run up to which each has its number; of more, the front alone
Draw = Callable[[Sequence[RunData]], "Figure | None"]


def front(runs: Sequence[RunData]) -> Figure | None:
    """Δ_LER against FLOPs, a disc's area the parameters; bars are 95% intervals; lines are the panel's members."""
    judged = [
        (run, round_entry)
        for run in runs
        for round_entry in run.listed
        if round_entry.row.delta_vs_baseline_holdout is not None
    ]
    validated_only = [
        (run, round_entry) for run in runs for round_entry in run.listed if _is_only_validated(round_entry)
    ]
    if not judged and not validated_only:
        return None
    figure, axes = _figure()
    for run, round_entry in validated_only:
        _disc(
            axes, round_entry, _flops(round_entry), round_entry.row.delta_ler, "soft", filled=False, run=run, runs=runs
        )
    numbers: list[tuple[float, float, str]] = []
    seen: dict[int, int] = {}
    for run, round_entry in judged:
        row, colour, flops = round_entry.row, _verdict_colour(round_entry), _flops(round_entry)
        seen[flops] = seen.get(flops, 0) + 1
        x = flops * (1 + 0.02 * (seen[flops] - 1))  # of one cost stand side by side, so that their bars stay apart
        low, high, delta = row.delta_holdout_low, row.delta_holdout_high, row.delta_vs_baseline_holdout
        if low is not None and high is not None:
            axes.plot([x] * 2, [low, high], color=COLOURS[colour], linewidth=1.2, zorder=2)
        _disc(axes, round_entry, x, delta, colour, filled=round_entry.on_front, run=run, runs=runs)
        if delta is not None and (round_entry.on_front or (len(runs) == 1 and len(judged) <= MAX_LABELLED_ROUNDS)):
            numbers.append((x, delta, f"{row.round}" + (f" ({run.id[-6:]})" if len(runs) > 1 else "")))
    _baseline_lines(axes, runs)
    from matplotlib.ticker import LogLocator

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.xaxis.set_major_formatter(_formatter(count))
    axes.xaxis.set_minor_formatter(_formatter(lambda value: ""))
    axes.yaxis.set_major_formatter(_formatter(_exponent))
    axes.set_xlabel("FLOPs a shot (backend excluded)")
    axes.set_ylabel("Δ_LER a shot, higher is better")
    axes.margins(0.12, 0.12)
    _numbers(axes, numbers)
    for colour, filled, words in _front_legend(judged, validated_only):
        face_colour = COLOURS[colour] if filled else "none"
        axes.scatter([], [], s=40, edgecolor=COLOURS[colour], facecolor=face_colour, label=words)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=3, handletextpad=0.2, columnspacing=1)
    return figure


def ler_vs_p(runs: Sequence[RunData]) -> Figure | None:
    """LER of the plain backend and of the best verified rounds at every p, with Clopper-Pearson intervals."""
    told = [
        (run, round_entry, run.report(round_entry))
        for run in runs
        for round_entry in run.front[: max(1, 3 // len(runs))]
    ]
    known = [(run, round_entry, report, _by_p(report)) for run, round_entry, report in told if report is not None]
    known = [entry for entry in known if entry[3]]
    if not known:
        return None
    figure, axes = _figure()
    plain_of: set[str] = set()
    for index, (run, round_entry, report, effects) in enumerate(known):
        if report.env_yaml_sha256 not in plain_of:
            plain_of.add(report.env_yaml_sha256)
            rates = [(p, counts.errors_reference, counts.shots) for p, counts in effects]
            _rates(axes, rates, COLOURS["soft"], f"{report.backend} alone", "o", index)
            _baseline_rates(axes, report, index)
        rates = [(p, counts.errors_candidate, counts.shots) for p, counts in effects]
        name = f"round {round_entry.row.round}" + (f" of {run.id}" if len(runs) > 1 else "")
        _rates(axes, rates, COLOURS[SERIES[index % len(SERIES)]], name, "s", index + 1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    ticks = sorted({p for *_, effects in known for p, _ in effects})
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_formatter(_formatter(lambda value: ""))
    axes.yaxis.set_major_formatter(_formatter(lambda value: f"{value:g}"))
    axes.yaxis.set_minor_formatter(_formatter(lambda value: ""))
    axes.set_xlabel("physical error rate p")
    axes.set_ylabel("logical error rate a shot")
    axes.margins(0.08, 0.12)
    axes.legend(loc="lower right")
    return figure


def search_progress(runs: Sequence[RunData]) -> Figure | None:
    """Gain on validation shots (guidance) and before the judge, round by round, with 95% intervals."""
    if not any(
        _gain(round_entry) is not None or round_entry.row.relative_holdout is not None
        for run in runs
        for round_entry in run.listed
    ):
        return None
    from matplotlib.ticker import MaxNLocator

    figure, axes = _figure()
    for index, run in enumerate(runs):
        colour = COLOURS[SERIES[index % len(SERIES)]]
        # Of several runs the legend tells which is which; circles and discs mean the same in all of them.
        names = (run.id, None) if len(runs) > 1 else ("validation", "the judge's fresh shots")
        _plot_progress(axes, run, colour, names)
    axes.axhline(0, color=COLOURS["soft"], linewidth=0.8)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    first, last = axes.get_xlim()
    axes.set_xlim(
        min(first, round(first) - 0.5), max(last, round(last) + 0.5)
    )  # a single round, too, has whole numbers
    axes.set_xlabel("round")
    axes.set_ylabel("fewer failures than plain, %")
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.16), ncols=2, handletextpad=0.2, columnspacing=1)
    return figure


def _plot_progress(axes: Axes, run: RunData, colour: str, names: tuple[str | None, ...]) -> None:
    """Validation and judgement of a round stand side by side, so that neither bar hides the other."""
    seen = [
        (round_entry.row.round - X_OFFSET, gain, validation(round_entry.row))
        for round_entry in run.listed
        if (gain := _gain(round_entry)) is not None
    ]
    for x, _, known in seen:
        if known is not None:
            _bar(axes, x, known.relative_low, known.relative_high, colour, alpha=0.35)
    judged = [
        (round_entry.row, round_entry.row.relative_holdout)
        for round_entry in run.listed
        if round_entry.row.relative_holdout is not None
    ]
    for row, _ in judged:
        _bar(axes, row.round + X_OFFSET, row.relative_holdout_low, row.relative_holdout_high, colour)
    style: Any = {"s": 16, "facecolor": "none", "edgecolor": colour, "alpha": 0.7, "label": names[0]}
    if seen:
        axes.scatter([x for x, *_ in seen], [gain for _, gain, _ in seen], **style)
    if judged:
        gains = [100 * gain for _, gain in judged]
        axes.scatter([row.round + X_OFFSET for row, _ in judged], gains, s=30, color=colour, label=names[1], zorder=3)


def _bar(axes: Axes, x: float, low: float | None, high: float | None, colour: str, *, alpha: float = 1.0) -> None:
    """An interval of relative gains, in percent; nothing where it is not known."""
    if low is not None and high is not None:
        axes.plot([x] * 2, [100 * low, 100 * high], color=colour, linewidth=1.2, alpha=alpha)


def _figure() -> tuple[Figure, Axes]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=SIZE, layout="tight")
    return figure, figure.add_subplot()


def _disc(
    axes: Axes,
    round_entry: RoundEntry,
    x: float,
    y: float | None,
    colour: str,
    *,
    filled: bool,
    run: RunData,
    runs: Sequence[RunData],
) -> None:
    if y is None:
        return
    area = 18 + 70 * _size(round_entry) / max(1, *(_size(other) for other_run in runs for other in other_run.listed))
    marker_artist: Any = axes.scatter(
        [x], [y], s=area, edgecolor=COLOURS[colour], facecolor=COLOURS[colour] if filled else "none", zorder=3
    )
    if round_entry.anchor in run.told:
        marker_artist.set_urls([f"#{round_entry.anchor}"])


def _numbers(axes: Axes, places: Sequence[tuple[float, float, str]]) -> None:
    """Rounds' numbers beside their discs; of discs that lie on each other, in one label at the rightmost."""
    low, high = axes.get_ylim()
    groups: list[list[tuple[float, float, str]]] = []
    for place in sorted(places, key=lambda place: (place[1], place[0])):
        near = [group for group in groups if _labels_overlap(group[-1], place, 0.05 * (high - low))]
        if near:
            near[0].append(place)
        else:
            groups.append([place])
    for group in groups:
        x, y = max(x for x, *_ in group), sum(y for _, y, _ in group) / len(group)
        names = ", ".join(name for *_, name in sorted(group))
        axes.annotate(names, (x, y), textcoords="offset points", xytext=(7, 5), fontsize=8)


def _labels_overlap(round_entry: tuple[float, float, str], other: tuple[float, float, str], height: float) -> bool:
    """Whether their labels would touch."""
    return abs(round_entry[1] - other[1]) <= height and 1 / 1.15 <= round_entry[0] / other[0] <= 1.15


def _baseline_lines(axes: Axes, runs: Sequence[RunData]) -> None:
    """Each baseline's own Δ_LER against the plain one, on the shots of the best round's judgement."""
    drawn: set[tuple[str, str]] = set()
    for run in runs:
        best = run.view.best
        if best is None or best.decoder_rate is None:
            continue
        for member in best.panel:
            plain_rate = next((other.rate.rate for other in best.panel if other.name == best.backend), None)
            if plain_rate is None or (best.env_yaml_sha256, member.name) in drawn:
                continue
            drawn.add((best.env_yaml_sha256, member.name))
            delta = plain_rate - member.rate.rate
            axes.axhline(delta, color=COLOURS["soft"], linewidth=0.9, linestyle=(0, (4, 3)), zorder=1)
            y_transform: Any = axes.get_yaxis_transform()
            style: Any = {"fontsize": 8, "color": COLOURS["soft"], "ha": "right", "va": "bottom"}
            style |= {"xycoords": y_transform, "textcoords": "offset points", "xytext": (0, 2)}  # clear of the line
            axes.annotate(plain(member.name, 40), (0.995, delta), **style)


def _front_legend(judged: Sequence[Any], validated_only: Sequence[Any]) -> list[tuple[str, bool, str]]:
    words = []
    if any(round_entry.on_front for _, round_entry in judged):
        words.append(("good", True, "front"))
    if any(round_entry.row.verify_verdict == "VERIFIED" and not round_entry.on_front for _, round_entry in judged):
        words.append(("good", False, "verified, dominated"))
    if any(round_entry.row.verify_verdict != "VERIFIED" for _, round_entry in judged):
        words.append(("warn", False, "judged, not verified"))
    if validated_only:
        words.append(("soft", False, "validation only: no evidence"))
    return words


def _by_p(report: VerifyReport, name: str | None = None) -> list[tuple[float, PairedCounts]]:
    """Candidate and a member of the panel (the plain backend) on the same shots, at every p where both were measured;
    [] where there is no p or no effect was measured."""
    name = name or report.backend
    at_target = [member.against for member in report.panel if member.name == name] if report.effect else []
    if report.effect and name == report.backend:
        at_target = [report.effect]
    effects = (*at_target, *(point for point in report.points if point.reference == name))
    known = [(effect.p, effect.counts) for effect in effects if effect.p is not None]
    return sorted(known, key=lambda entry: entry[0])


def _rates(axes: Axes, rates: Sequence[Any], colour: str, name: str, marker: str, shift: int) -> None:
    """A curve with exact intervals; curves are moved aside a little, so that their bars stay apart."""
    from autoqec.qec.stats import clopper_pearson

    x_factor = 1 + 0.012 * shift
    x, y, below, above = [], [], [], []
    for p, errors, shots in rates:
        low, high = clopper_pearson(errors, shots)
        middle = errors / shots if errors else high  # no error seen: its upper bound, and a bar down to the edge
        x.append(p * x_factor)
        y.append(middle)
        below.append(middle - low if errors else 0.9 * middle)
        above.append(high - middle)
    style: Any = {"color": colour, "marker": marker, "markersize": 4, "linewidth": 1.2, "capsize": 2}
    axes.errorbar(x, y, yerr=[below, above], label=plain(name, 60), **style)


def _baseline_rates(axes: Axes, report: VerifyReport, shift: int) -> None:
    """The panel's other members, wherever the judge had them decode."""
    for index, member in enumerate(other for other in report.panel if other.name != report.backend):
        rates = [(p, counts.errors_reference, counts.shots) for p, counts in _by_p(report, member.name)]
        if rates:
            _rates(axes, rates, COLOURS["bad"], member.name, "D^v*"[index % 4], shift + 2)


def _is_only_validated(round_entry: RoundEntry) -> bool:
    return (
        round_entry.row.delta_vs_baseline_holdout is None
        and round_entry.row.delta_ler is not None
        and round_entry.row.status == "ok"
    )


def _gain(round_entry: RoundEntry) -> float | None:
    """Relative gain on validation shots, in percent."""
    row = round_entry.row
    if row.delta_ler is None or not row.ler_plain_classical:
        return None
    return 100 * row.delta_ler / row.ler_plain_classical


def _size(round_entry: RoundEntry) -> int:
    return max(0, round_entry.row.judge_n_params or round_entry.row.n_params or 0)


def _flops(round_entry: RoundEntry) -> int:
    return max(1, round_entry.row.judge_flops_per_syndrome or round_entry.row.flops_per_syndrome or 1)


def _verdict_colour(round_entry: RoundEntry) -> str:
    return {"VERIFIED": "good", "FAILED": "bad"}.get(round_entry.row.verify_verdict or "", "warn")


def _exponent(value: float) -> str:
    return "0" if value == 0 else f"{value:.1e}".replace("e-0", "e-").replace(".0e", "e")


def _formatter(format_tick: Callable[[float], str]) -> Any:
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: format_tick(value))
