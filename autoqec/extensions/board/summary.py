"""A board as text: its table, and which decoder to use."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from autoqec.extensions.board.contracts import BoardCircuit, BoardMeasurement
from autoqec.extensions.board.results import Cell, cell_times
from autoqec.reporting.text import pluralize

ENOUGH_FAILURES = 100  # fewer leave an interval wider than about 20% on either side
SHOWN_DECODERS = 5  # of a sentence on what to use when


LEGEND = (
    "Columns: decoder; failures per shot; failures/shots; failures per round; Δ: failures of correlated matching minus",
    "those of the decoder, per shot on the same shots, positive is better; CPU time per shot on one core, its ratio",
    "to that of correlated matching in the same process. Brackets hold 95% intervals.",
)


def table_lines(
    circuits: Mapping[str, BoardCircuit], table: Sequence[Cell], applicable: Mapping[str, Sequence[str]]
) -> list[str]:
    """Return the table in lines: a heading per circuit, its cells, a legend, and how many cells are measured.

    `applicable` holds the decoders that can be measured here, by name of the circuit. Cells of others are shown and
    counted apart.
    """
    lines: list[str] = []
    width = max((len(cell.decoder) for cell in table), default=0)
    for name, spec in circuits.items():
        mine = [cell for cell in table if cell.circuit_sha256 == spec.sha256]
        if mine:
            rounds = "rounds unknown" if spec.rounds is None else f"rounds={spec.rounds}"
            lines += [
                f"{name} ({rounds}, sha256 {spec.sha256[:12]})",
                *(f"  {cell.decoder:{width}}  {_figures(cell)}" for cell in mine),
            ]
    empty = [name for name, spec in circuits.items() if all(cell.circuit_sha256 != spec.sha256 for cell in table)]
    lines += LEGEND if table else ()
    without = f"; circuits without any: {', '.join(empty)}" if empty else ""
    measurable = {(circuits[name].sha256, decoder) for name, names in applicable.items() for decoder in names}
    others = [cell.decoder for cell in table if (cell.circuit_sha256, cell.decoder) not in measurable]
    lines.append(f"{len(table) - len(others)} of {len(measurable)} cells measured{without}")
    if others:
        names, shown = ", ".join(dict.fromkeys(others)), pluralize(len(others), "further cell")
        reasons = "the run of a round is not in this directory, or the decoder is not on the board"
        lines.append(f"{shown} of decoders that cannot be measured here ({reasons}): {names}")
    return lines


def cell_line(cell: Cell) -> str:
    """Describe a cell in one line."""
    return f"{cell.circuit} {cell.decoder}: {_figures(cell)}"


def _figures(cell: Cell) -> str:
    parts = [rate_text(cell)]
    if cell.rate is not None:
        parts.append(shots_text(cell))
        if cell.per_round_low is not None and cell.per_round_high is not None:
            interval = f"[{cell.per_round_low:.2e}, {cell.per_round_high:.2e}]"
            parts.append(f"per round {cell.rate.per_round:.2e} {interval}")
    if cell.effect is not None:
        effect = cell.effect
        parts.append(f"Δ {effect.delta:+.2e} [{effect.delta_low:+.2e}, {effect.delta_high:+.2e}]")
    if cell.us_per_shot is not None:
        relative = "" if cell.relative_time is None else f" ({cell.relative_time:.2f} x correlated)"
        parts.append(f"{cell.us_per_shot:.1f} µs{relative}")
    if cell.state != "measured":
        parts.append(
            f"{cell.state.upper().replace('_', ' ')}: {conflict_text(cell) if cell.conflicts else cell.message}"
        )
    elif cell.reproduced:
        parts.append(f"{pluralize(cell.reproduced, 'block')} reproduced exactly")
    return "  ".join(parts)


def missing_cells(
    circuits: Mapping[str, BoardCircuit], table: Iterable[Cell], applicable: Mapping[str, Sequence[str]]
) -> dict[str, list[str]]:
    """Return the decoders of `applicable` that have no cell yet, by name of the circuit."""
    measured = {(cell.circuit_sha256, cell.decoder) for cell in table}
    left = {
        name: [decoder for decoder in names if (circuits[name].sha256, decoder) not in measured]
        for name, names in applicable.items()
    }
    return {name: names for name, names in left.items() if names}


def measurement_line(measurement: BoardMeasurement) -> str:
    """Describe a measurement that was just made in one line."""
    parts = [f"{sum(measurement.failures)} failures in {measurement.shots:,} shots"] if measurement.failures else []
    if measurement.status != "ok":
        parts.append(f"{measurement.status.replace('_', ' ')}: {measurement.message}")
    return f"{measurement.circuit} {measurement.decoder}: {', then '.join(parts)}"


def conflict_text(cell: Cell) -> str:
    """Say in how many blocks the measurements of a cell contradict each other."""
    return f"measurements of the same shots differ in {pluralize(cell.conflicts, 'block')}"


def rate_text(cell: Cell) -> str:
    """Return the failures per shot with their interval; without failures, an upper bound."""
    if cell.rate is None:
        return "no shots"
    if cell.rate.errors == 0:
        return f"< {cell.rate.high:.1e} (no failure)"
    return f"{cell.rate.rate:.3e} [{cell.rate.low:.3e}, {cell.rate.high:.3e}]"


def shots_text(cell: Cell) -> str:
    """Return failures and shots; with fewer than `ENOUGH_FAILURES` failures, that those need more shots."""
    if cell.rate is None:
        return ""
    counted = f"{cell.rate.errors}/{cell.rate.shots}"
    if cell.rate.errors >= ENOUGH_FAILURES:
        return counted
    return f"{counted} ({ENOUGH_FAILURES} failures need > {cell.rate.shots:,} shots)"


def advice(table: Iterable[Cell]) -> list[str]:
    """Return five sentences on what to use when, each a function of measured cells.

    A decoder counts as better than correlated matching on a circuit if the 95% interval of the paired difference lies
    above 0. The most accurate decoder of a circuit counts only if its cell has at least `ENOUGH_FAILURES` failures.
    """
    usable = [cell for cell in table if cell.state == "measured" and cell.rate is not None]
    by_circuit: dict[str, list[Cell]] = {}
    for cell in usable:
        by_circuit.setdefault(cell.circuit, []).append(cell)
    groups = list(by_circuit.values())
    with_graph = [group for group in groups if any(cell.effect is not None for cell in group)]
    others = [group for group in groups if group not in with_graph]
    few = sum(cell.rate is not None and cell.rate.errors < ENOUGH_FAILURES for cell in usable)
    return [
        f"Shortest time per shot: {_fastest(groups)}.",
        f"Fewer failures than correlated matching on the same shots (95% interval) in at most its time: "
        f"{_better_and_not_slower(with_graph)}.",
        f"Fewest failures per shot, whatever the time, where the best cell has {ENOUGH_FAILURES} failures or more: "
        f"{_most_accurate(with_graph)}.",
        f"The same on circuits without a matching graph: {_most_accurate(others)}.",
        f"{len(usable)} cells of {pluralize(len(groups), 'circuit')} are measured; {few} of them have fewer than "
        f"{ENOUGH_FAILURES} failures: measure more shots before you rely on those.",
    ]


def _fastest(groups: Iterable[list[Cell]]) -> str:
    times = [found for group in groups if len(found := cell_times(group)[0]) > 1]
    return _tally([min(found, key=lambda name: found[name]) for found in times], len(times))


def _better_and_not_slower(groups: Sequence[list[Cell]]) -> str:
    better = [
        cell.decoder
        for group in groups
        for cell in group
        if cell.effect is not None and cell.effect.delta_low > 0
        if cell.relative_time is not None and cell.relative_time <= 1
    ]
    return _tally(better, len(groups))


def _most_accurate(groups: Iterable[list[Cell]]) -> str:
    """Name the best cell of each circuit; one with few failures decides nothing, nor does the second best then."""
    best = [min(group, key=_failure_rate) for group in groups if len(group) > 1]
    winners = [cell.decoder for cell in best if cell.rate and cell.rate.errors >= ENOUGH_FAILURES]
    return _tally(winners, len(winners))


def _failure_rate(cell: Cell) -> float:
    return cell.rate.rate if cell.rate else 1.0


def _tally(winners: list[str], n_circuits: int) -> str:
    """Count the circuits of each decoder; name the first `SHOWN_DECODERS`."""
    counts = Counter(sorted(winners)).most_common()
    total = f" of {pluralize(n_circuits, 'circuit')}"
    shown = [f"{name} ({count}{'' if index else total})" for index, (name, count) in enumerate(counts[:SHOWN_DECODERS])]
    left = len(counts) - len(shown)
    return ", ".join(shown + ([f"and {pluralize(left, 'other decoder')}"] if left else [])) or "none measured"
