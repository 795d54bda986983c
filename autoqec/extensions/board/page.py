"""A board as one self-contained HTML page: sortable table, failures against time per circuit, and Pareto fronts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autoqec.extensions.board.contracts import BoardCircuit
from autoqec.extensions.board.results import Cell, cell_times, pareto_front
from autoqec.extensions.board.summary import advice, conflict_text, rate_text, shots_text
from autoqec.reporting.html import environment, policy, template_text

WIDTH, HEIGHT, MARGIN = 520, 240, 48
LABEL_HEIGHT, CHARACTER_WIDTH = 10.0, 5.5  # of the font in which points are labelled


@dataclass(frozen=True)
class PlottedCell:
    """A cell in a scatter plot.

    Attributes:
        cell: The cell.
        x: Position of its time.
        y: Position of its failures per shot.
        y_low: Position of the lower end of their interval.
        y_high: Position of the upper end.
        on_front: Whether the cell lies on the Pareto front.
        label_y: Position of its label.
        label_end: Whether the label ends at the point instead of beginning there.
    """

    cell: Cell
    x: float
    y: float
    y_low: float
    y_high: float
    on_front: bool
    label_y: float
    label_end: bool


@dataclass(frozen=True)
class Plot:
    """Failures per shot against CPU time per shot of one circuit, both logarithmic.

    Attributes:
        circuit: Name of the circuit.
        points: The measured cells with failures.
        x_label: What the horizontal axis shows: microseconds, or the ratio to correlated matching if all have one.
        x_ticks: Position and label of powers of ten.
        y_ticks: Position and label of powers of ten.
        front: Points of the Pareto front, as the `points` of an SVG polyline.
    """

    circuit: str
    points: tuple[PlottedCell, ...]
    x_label: str
    x_ticks: tuple[tuple[float, str], ...]
    y_ticks: tuple[tuple[float, str], ...]
    front: str


def page(circuits: Mapping[str, BoardCircuit], table: Sequence[Cell]) -> str:
    """Render the page; it loads nothing.

    Args:
        circuits: All circuits of the board; those without cells are listed as missing.
        table: The measured cells.
    """
    measured = {cell.circuit_sha256 for cell in table}
    by_circuit = {
        spec.sha256: [cell for cell in table if cell.circuit_sha256 == spec.sha256] for spec in circuits.values()
    }
    plots = [made for name, spec in circuits.items() if (made := plot(name, by_circuit[spec.sha256])) is not None]
    script = template_text("report.js")
    return (
        environment()
        .get_template("board.html.j2")
        .render(
            table=table,
            plots=plots,
            fronts={name: pareto_front(by_circuit[spec.sha256]) for name, spec in circuits.items()},
            missing=[name for name, spec in circuits.items() if spec.sha256 not in measured],
            n_circuits=len(circuits),
            advice=advice(table),
            rate_text=rate_text,
            shots_text=shots_text,
            conflict_text=conflict_text,
            size=(WIDTH, HEIGHT, MARGIN),
            style=template_text("report.css"),
            script=script,
            policy=policy(script, following=False),
        )
    )


def plot(name: str, group: Sequence[Cell]) -> Plot | None:
    """Lay out the plot of a circuit; None with fewer than two cells that have failures and a time."""
    shown = [
        cell
        for cell in group
        if cell.state == "measured" and cell.rate and cell.rate.errors and cell.us_per_shot and cell.relative_time != 0
    ]
    if len(shown) < 2:
        return None
    times, relative = cell_times(shown)
    rates = [end for cell in shown if cell.rate for end in (cell.rate.low, cell.rate.high)]
    x_range, y_range = _decades(list(times.values())), _decades(rates)

    def x(value: float) -> float:
        return round(MARGIN + (math.log10(value) - x_range[0]) / (x_range[1] - x_range[0]) * (WIDTH - 2 * MARGIN), 1)

    def y(value: float) -> float:
        return round(
            HEIGHT - MARGIN - (math.log10(value) - y_range[0]) / (y_range[1] - y_range[0]) * (HEIGHT - 1.5 * MARGIN), 1
        )

    front = [cell for cell in pareto_front(group) if cell in shown]
    labels: list[tuple[float, float, float]] = []
    points = []
    for cell in shown:
        assert cell.rate is not None
        at_x, at_y = x(times[cell.decoder]), y(cell.rate.rate)
        label_y, label_end = _place(labels, cell.decoder, at_x, at_y)
        points.append(
            PlottedCell(cell, at_x, at_y, y(cell.rate.low), y(cell.rate.high), cell in front, label_y, label_end)
        )
    return Plot(
        circuit=name,
        points=tuple(points),
        x_label="CPU time per shot relative to correlated matching" if relative else "CPU time per shot (µs, one core)",
        x_ticks=tuple((x(10.0**power), f"{10.0**power:g}") for power in range(x_range[0], x_range[1] + 1)),
        y_ticks=tuple((y(10.0**power), f"1e{power}") for power in range(y_range[0], y_range[1] + 1)),
        front=" ".join(f"{point.x},{point.y}" for cell in front for point in points if point.cell is cell),
    )


def _place(labels: list[tuple[float, float, float]], text: str, x: float, y: float) -> tuple[float, bool]:
    """Find a place for the label of a point beside the others, and add it to them.

    Args:
        labels: Left end, right end and baseline of each label so far.
        text: The label.
        x: Position of the point.
        y: Position of the point.

    Returns:
        The baseline, and whether the label ends at the point.
    """
    width = CHARACTER_WIDTH * len(text)
    label_end = x + 5 + width > WIDTH
    left = x - 5 - width if label_end else x + 5
    offsets = sorted((LABEL_HEIGHT * step for step in range(-20, 21)), key=abs)
    within = [y - 5 + offset for offset in offsets if LABEL_HEIGHT <= y - 5 + offset <= HEIGHT - MARGIN]
    free = (
        line
        for line in within
        if all(abs(line - other) >= LABEL_HEIGHT or left > end or left + width < start for start, end, other in labels)
    )
    baseline = round(next(free, within[0]), 1)
    labels.append((left, left + width, baseline))
    return baseline, label_end


def _decades(values: Sequence[float]) -> tuple[int, int]:
    """Return the powers of ten around positive values."""
    low, high = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
    return low, max(high, low + 1)
