"""The table of a board as text, as an HTML page, and for public registries.

To Circuit Bench and qldpc-challenge only what was measured is written. Ids that a registry gives out, and scores that
only its own evaluator defines, are absent.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import stim
from scipy.stats import binomtest

from autoqec.contracts.base import sha256_json
from autoqec.errors import UsageError
from autoqec.extensions.board.circuits import load_circuit
from autoqec.extensions.board.contracts import BoardCircuit
from autoqec.extensions.board.results import (
    ENOUGH_FAILURES,
    Cell,
    advice,
    cell_times,
    conflict_text,
    pareto_front,
    rate_text,
    shots_text,
)
from autoqec.qec.stats import per_round
from autoqec.reporting.html import environment, policy, template_text
from autoqec.store.layout import BoardLayout


def to_row(cell: Cell) -> dict[str, Any]:
    """Return the figures of a cell; None for what is unknown."""
    rate, effect = cell.rate, cell.effect
    return {
        "circuit": cell.circuit,
        "circuit_sha256": cell.circuit_sha256,
        "rounds": cell.rounds,
        "decoder": cell.decoder,
        "decoder_version": cell.version,
        "state": cell.state,
        "failures": None if rate is None else rate.errors,
        "shots": None if rate is None else rate.shots,
        "ler_per_shot": None if rate is None else rate.rate,
        "ler_per_shot_low": None if rate is None else rate.low,
        "ler_per_shot_high": None if rate is None else rate.high,
        "ler_per_round": None if rate is None or cell.rounds is None else rate.per_round,
        "ler_per_round_low": cell.per_round_low,
        "ler_per_round_high": cell.per_round_high,
        "failures_correlated": None if effect is None else effect.counts.errors_reference,
        "fixed": None if effect is None else effect.counts.fixed,
        "broken": None if effect is None else effect.counts.broken,
        "delta": None if effect is None else effect.delta,
        "delta_low": None if effect is None else effect.delta_low,
        "delta_high": None if effect is None else effect.delta_high,
        "us_per_shot": cell.us_per_shot,
        "time_relative_to_correlated": cell.relative_time,
        "decoder_failures": len(cell.failed) - cell.failed.count("timeout"),
        "timeouts": cell.failed.count("timeout"),
        "message": cell.message,
        "conflicting_blocks": cell.conflicts,
        "reproduced_blocks": cell.reproduced,
        "machines": [machine for machine in cell.machines if machine is not None],
        "commits": sorted({item.commit for item in cell.measurements if item.commit is not None}),
        "seeds": sorted({item.seed for item in cell.measurements if item.seed is not None}),
    }


def to_csv(table: Iterable[Cell]) -> str:
    """Return one line per cell; lists are joined with `;`."""
    rows = [to_row(cell) for cell in table]
    stream = io.StringIO()
    if rows:
        writer = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        for row in rows:
            writer.writerow(
                {key: ";".join(map(str, value)) if isinstance(value, list) else value for key, value in row.items()}
            )
    return stream.getvalue()


def to_json(table: Iterable[Cell]) -> str:
    """Return a JSON list with one object per cell, its measurements included."""
    rows = [{**to_row(cell), "measurements": [item.dump() for item in cell.measurements]} for cell in table]
    return json.dumps(rows, indent=1, ensure_ascii=False) + "\n"


def to_sinter_csv(table: Iterable[Cell]) -> str:
    """Return the cells in sinter's CSV, for `sinter plot` and `sinter.read_stats_from_csv_files`.

    Seconds are CPU time. A cell without shots is left out, and so is one with conflicting counts.
    """
    import sinter

    lines = [sinter.CSV_HEADER]
    for cell in table:
        if cell.rate is None or cell.conflicts:
            continue
        identity = {"circuit_sha256": cell.circuit_sha256, "decoder": cell.decoder, "version": cell.version}
        stats = sinter.TaskStats(
            strong_id=sha256_json(identity),
            decoder=cell.decoder,
            json_metadata={"circuit": cell.circuit, "rounds": cell.rounds, **identity},
            shots=cell.rate.shots,
            errors=cell.rate.errors,
            seconds=(cell.us_per_shot or 0.0) * cell.rate.shots / 1e6,
        )
        lines.append(stats.to_csv_line())
    return "\n".join(lines) + "\n"


TEXT_FORMATS: dict[str, Callable[[Iterable[Cell]], str]] = {
    "csv": to_csv,
    "json": to_json,
    "sinter-csv": to_sinter_csv,
}


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


MAX_RESULTS = 200  # of a batch of Circuit Bench
# The measured-LER tier of qldpc-challenge: its decoder by our and by its name, physical error rate and fewest shots
CHALLENGE_DECODER, CHALLENGE_NAME, CHALLENGE_P, CHALLENGE_SHOTS = "bposd_cs10_qldpc", "bposd-cs-10", 0.001, 10_000


def to_circuit_bench(table: Sequence[Cell]) -> str:
    """Return a `result-batch/0.1` manifest of results 0.6 for Circuit Bench.

    A conflicting cell, and one whose decoder failed, is left out: how many shots of the failed block were attempted is
    not known. The measured CPU times are those of blocks of shots, not latencies at the evaluator's boundary, and stay
    out too.

    Raises:
        UsageError: No cell can be exported, or more than a batch may have.
    """
    measured = [cell for cell in table if cell.state == "measured" and cell.rate is not None]
    if not 1 <= len(measured) <= MAX_RESULTS:
        raise UsageError(
            f"{len(measured)} results; a batch of Circuit Bench has 1 to {MAX_RESULTS}",
            location="--circuit",
            hint="autoqec board export --format circuit-bench --circuit 'surface_d3_*'",
        )
    batch = {
        "schema": "result-batch/0.1",
        "schema_version": "0.6",
        "defaults": {"visibility": "private"},
        "results": {f"{cell.circuit}--{cell.decoder}.json": _result(cell) for cell in measured},
    }
    return json.dumps(batch, indent=1, ensure_ascii=False) + "\n"


def _result(cell: Cell) -> dict[str, Any]:
    assert cell.rate is not None
    packages = {name: version for item in cell.measurements for name, version in (item.packages or {}).items()}
    known = {
        "circuit": cell.circuit,
        "circuit_sha256": cell.circuit_sha256,
        "decoder": cell.decoder,
        "seeds": sorted({item.seed for item in cell.measurements if item.seed is not None}),
        "commits": sorted({item.commit for item in cell.measurements if item.commit is not None}),
        "machines": [name for name in cell.machines if name is not None],
    }
    return {
        "description": f"Measured by autoqec board: {json.dumps(known)}",
        "hyperparameter_values": cell.version,
        "hyperparameter_values_artifact": None,
        "shots_total": cell.rate.shots,
        "successful_shots": cell.rate.shots - cell.rate.errors,
        "logical_failure_shots": cell.rate.errors,
        "timeout_shots": 0,
        "decoder_error_shots": 0,
        "failure_probability_shots": 0,
        "latency_shots": 0,
        "preparation_duration_seconds": None,
        "training_workload_description": None,
        "software_environment": json.dumps(packages) if packages else None,
        "t_1000_ns": None,
        "supersedes_result": None,
    }


def to_qldpc_challenge(circuits: Mapping[str, BoardCircuit], table: Sequence[Cell], board: BoardLayout) -> str:
    """Return the `circuit.ler` blocks of qldpc-challenge, by code.

    The memory circuits of a code are those called CODE_x and CODE_z. The tier pins the decoder, the physical error rate
    and the least number of shots and failures. It does not compare the seed with its own sampler's shots: it measures
    again with another one.

    Raises:
        UsageError: No code has both circuits measured as the tier demands; the message says why.
    """
    cells = {cell.circuit: cell for cell in table if cell.decoder == CHALLENGE_DECODER}
    blocks: dict[str, dict[str, Any]] = {}
    reasons: list[str] = []
    codes = [name[:-2] for name in circuits if name.endswith("_x") and f"{name[:-2]}_z" in circuits]
    for code in codes:
        sides = {basis: f"{code}_{basis.lower()}" for basis in ("X", "Z")}
        rounds = {circuits[name].rounds for name in sides.values()}
        found = [_obstacle(circuits[name], cells.get(name), board, basis) for basis, name in sides.items()]
        found += [f"{code}: its circuits differ in rounds"] if len(rounds) > 1 else []
        missing = [reason for reason in found if reason is not None]
        reasons += missing
        if not missing:
            blocks[code] = {basis: _ler(cells[name]) for basis, name in sides.items()}
    if not blocks:
        why = "; ".join(reasons[:4]) if reasons else "no circuits are called CODE_x and CODE_z"
        raise UsageError(
            f"no code meets the measured-LER tier of qldpc-challenge: {why}",
            hint=f"autoqec board measure 'CODE_[xz]' {CHALLENGE_DECODER} --shots 100000",
        )
    return json.dumps(blocks, indent=1) + "\n"


def _obstacle(spec: BoardCircuit, cell: Cell | None, board: BoardLayout, basis: str) -> str | None:
    """Say why a cell is not accepted by the tier; None if it is."""
    if cell is None or cell.rate is None or cell.state != "measured":
        return f"{spec.name}: not measured with {CHALLENGE_DECODER}"
    if spec.rounds is None:
        return f"{spec.name}: its rounds are unknown"
    if len({item.seed for item in cell.measurements}) != 1 or cell.measurements[0].seed is None:
        return f"{spec.name}: not measured with one seed"
    if cell.rate.shots < CHALLENGE_SHOTS or cell.rate.errors < ENOUGH_FAILURES:
        return (
            f"{spec.name}: {cell.rate.errors} failures in {cell.rate.shots} shots, "
            f"{ENOUGH_FAILURES} in {CHALLENGE_SHOTS} or more are needed"
        )
    circuit = load_circuit(spec, board)
    if _noise_rates(circuit) != {CHALLENGE_P}:
        return f"{spec.name}: its noise does not have the rate {CHALLENGE_P} throughout"
    return None if _basis(circuit) == basis else f"{spec.name}: its last measurement is not in basis {basis}"


def _noise_rates(circuit: stim.Circuit) -> set[float]:
    """Return the arguments of all noise channels and noisy measurements."""
    return {
        rate
        for instruction in circuit.flattened()
        if stim.gate_data(instruction.name).is_noisy_gate
        for rate in instruction.gate_args_copy()
    }


def _basis(circuit: stim.Circuit) -> str | None:
    names = [item.name for item in circuit.flattened() if stim.gate_data(item.name).produces_measurements]
    return {"M": "Z", "MX": "X"}.get(names[-1]) if names else None


def _ler(cell: Cell) -> dict[str, Any]:
    assert cell.rate is not None and cell.rounds is not None
    rounds = cell.rounds
    low, high = binomtest(cell.rate.errors, cell.rate.shots).proportion_ci(0.95, method="wilson")
    return {
        "p": CHALLENGE_P,
        "shots": cell.rate.shots,
        "failures": cell.rate.errors,
        "seed": cell.measurements[0].seed,
        "decoder": CHALLENGE_NAME,
        "ler_per_round": round(cell.rate.per_round, 9),
        "ci95": [round(per_round(end, rounds), 9) for end in (low, high)],
    }
