"""A board as text: its table, and which decoder to use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from autoqec.board.results import Cell
from autoqec.contracts.board import BoardCircuit

ENOUGH_FAILURES = 100  # fewer leave an interval wider than about 20% on either side


def table_lines(circuits: Mapping[str, BoardCircuit], table: Sequence[Cell], n_cells: int) -> list[str]:
    """Return the table in lines: a heading per circuit, its cells, and how many of `n_cells` are measured."""
    lines: list[str] = []
    for name, spec in circuits.items():
        mine = [cell for cell in table if cell.circuit_sha256 == spec.sha256]
        if mine:
            rounds = "rounds unknown" if spec.rounds is None else f"rounds={spec.rounds}"
            lines += [
                f"{name} ({rounds}, sha256 {spec.sha256[:12]})",
                *(f"  {cell_line(cell, short=True)}" for cell in mine),
            ]
    empty = [name for name, spec in circuits.items() if all(cell.circuit_sha256 != spec.sha256 for cell in table)]
    lines.append(f"{len(table)} of {n_cells} cells measured; circuits without any: {', '.join(empty) or 'none'}")
    return lines


def cell_line(cell: Cell, *, short: bool = False) -> str:
    """Describe a cell in one line."""
    parts = [f"{cell.decoder:16}" if short else f"{cell.circuit} {cell.decoder}:", rate_text(cell)]
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
        parts.append(f"{cell.us_per_shot:.1f} us{relative}")
    if cell.state != "measured":
        parts.append(f"{cell.state.upper()}: {conflict_text(cell) if cell.conflicts else cell.message}")
    elif cell.reproduced:
        parts.append(f"{cell.reproduced} blocks reproduced exactly")
    return "  ".join(parts)


def conflict_text(cell: Cell) -> str:
    """Say in how many blocks the measurements of a cell contradict each other."""
    return f"{cell.conflicts} blocks of the same shots were counted differently"


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
    return f"{counted} ({ENOUGH_FAILURES} failures: > {cell.rate.shots:,} shots)"


def advice(circuits: Mapping[str, BoardCircuit], table: Iterable[Cell]) -> list[str]:
    """Return five sentences on what to use when, each a function of measured cells.

    A decoder counts as better than correlated matching on a circuit if the 95% interval of the paired difference lies
    above 0. The most accurate decoder of a circuit counts only if its cell has at least `ENOUGH_FAILURES` failures.
    """
    usable = [cell for cell in table if cell.state == "measured" and cell.rate is not None]
    by_circuit: dict[str, list[Cell]] = {}
    for cell in usable:
        by_circuit.setdefault(cell.circuit, []).append(cell)
    return [
        _fastest(by_circuit),
        _most_accurate(by_circuit),
        _better_than_correlated(usable),
        _without_graph(by_circuit),
        f"{len(usable)} cells of {len(by_circuit)} circuits are measured; "
        f"{sum((cell.rate.errors if cell.rate else 0) < ENOUGH_FAILURES for cell in usable)} of them have fewer than "
        f"{ENOUGH_FAILURES} failures: measure more shots before you rely on those.",
    ]


def _fastest(by_circuit: Mapping[str, list[Cell]]) -> str:
    winners = [
        min(timed, key=lambda cell: cell.us_per_shot or 0.0)
        for group in by_circuit.values()
        if len(timed := [cell for cell in group if cell.us_per_shot is not None]) > 1
    ]
    return f"Shortest time: {_tally(winners)}."


def _most_accurate(by_circuit: Mapping[str, list[Cell]]) -> str:
    """Name the best cell of each circuit; one with few failures decides nothing, nor does the second best then."""
    best = [min(group, key=_failure_rate) for group in by_circuit.values() if len(group) > 1]
    winners = [cell for cell in best if cell.rate and cell.rate.errors >= ENOUGH_FAILURES]
    return f"Fewest failures per shot, where the best cell has {ENOUGH_FAILURES} failures or more: {_tally(winners)}."


def _better_than_correlated(usable: Iterable[Cell]) -> str:
    better = [cell for cell in usable if cell.effect is not None and cell.effect.delta_low > 0]
    return f"Fewer failures than correlated matching on the same shots (95% interval): {_tally(better)}."


def _without_graph(by_circuit: Mapping[str, list[Cell]]) -> str:
    groups = [group for group in by_circuit.values() if all(cell.effect is None for cell in group)]
    winners = [min(group, key=_failure_rate) for group in groups if len(group) > 1]
    return f"Circuits without a matching graph, fewest failures per shot: {_tally(winners)}."


def _failure_rate(cell: Cell) -> float:
    return cell.rate.rate if cell.rate else 1.0


def _tally(winners: list[Cell]) -> str:
    counts: dict[str, int] = {}
    for cell in winners:
        counts[cell.decoder] = counts.get(cell.decoder, 0) + 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{name} ({count} circuit{'s' * (count != 1)})" for name, count in ordered) or "none measured"
