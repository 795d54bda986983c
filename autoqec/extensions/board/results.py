"""Measurements of a board: stored blocks, the cells of the table, and their comparison in words."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autoqec.contracts.env import CORRELATED
from autoqec.contracts.round import PairedCounts
from autoqec.contracts.verdict import PairedEffect, Rate
from autoqec.errors import ContractError
from autoqec.extensions.board.circuits import BLOCK_SHOTS, PART_SHOTS, PARTS, read_lines
from autoqec.extensions.board.contracts import BoardCircuit, BoardMeasurement
from autoqec.qec.stats import paired_effect, per_round, rate
from autoqec.reporting.text import pluralize
from autoqec.store import atomic, jsonl
from autoqec.store.layout import PACKAGED_BOARD, BoardLayout

BlockKey = tuple[str | None, int | None, int, int]  # model, seed, shots per block, number of the block
BlockCounts = tuple[int, int | None, int | None]  # failures, fixed, broken


def read_measurements(path: Path) -> list[BoardMeasurement]:
    """Read a results file; an incomplete last line, left by a crash, is ignored.

    Raises:
        ContractError: A line is damaged, has an unknown schema or contradicts itself.
    """
    return [measurement for _, measurement in read_lines(path, BoardMeasurement)]


def board_measurements(board: BoardLayout) -> list[BoardMeasurement]:
    """Return the packaged measurements, then those of `board`; each once if it is the packaged board."""
    paths = dict.fromkeys(path.resolve() for path in (PACKAGED_BOARD.results, board.results))
    return [measurement for path in paths for measurement in read_measurements(path)]


def append_measurement(board: BoardLayout, measurement: BoardMeasurement) -> None:
    """Append a measurement, durably; an incomplete last line is moved to salvage/ first."""
    atomic.make_dir(board.dir)
    jsonl.append(board.results, measurement.dump())


def blocks(measurement: BoardMeasurement) -> dict[BlockKey, BlockCounts]:
    """Return the counts of each block of a measurement."""
    fixed, broken = measurement.fixed, measurement.broken
    return {
        (measurement.dem_sha256, measurement.seed, measurement.block_shots, measurement.first_block + index): (
            failures,
            None if fixed is None else fixed[index],
            None if broken is None else broken[index],
        )
        for index, failures in enumerate(measurement.failures)
    }


@dataclass(frozen=True)
class Cell:
    """One decoder on one circuit, from all measurements of the decoder's latest version.

    Attributes:
        circuit: Name of the circuit.
        circuit_sha256: Hash of the circuit.
        rounds: Rounds of syndrome measurement; None if unknown.
        decoder: Name of the decoder.
        version: Its version; None if unknown.
        rate: Failures, shots, and rates with 95% intervals; None without shots.
        per_round_low: Lower end of the 95% interval of the rate per round; None if the rounds are unknown.
        per_round_high: Upper end of that interval.
        effect: Paired difference to correlated matching on the same shots; None without a matching graph.
        us_per_shot: CPU time per shot on one core, in microseconds.
        relative_time: CPU time relative to correlated matching in the same process.
        failed: Statuses of measurements in which the decoder failed.
        failure: The last of them; a timeout does not count once a later measurement succeeded.
        message: What that failure said.
        conflicts: Blocks that two measurements counted differently; both are kept in the file, and `rate` uses the
            first.
        reproduced: Blocks that several measurements counted equally, as a whole or in parts.
        machines: Processors of the measurements.
        measurements: The measurements.
    """

    circuit: str
    circuit_sha256: str
    rounds: int | None
    decoder: str
    version: str | None
    rate: Rate | None
    per_round_low: float | None
    per_round_high: float | None
    effect: PairedEffect | None
    us_per_shot: float | None
    relative_time: float | None
    failed: tuple[str, ...]
    failure: str | None
    message: str | None
    conflicts: int
    reproduced: int
    machines: tuple[str | None, ...]
    measurements: tuple[BoardMeasurement, ...]

    @property
    def state(self) -> str:
        """`measured`, `conflict`, or the way in which the decoder failed."""
        if self.conflicts:
            return "conflict"
        return self.failure or "measured"


def cells(measurements: Iterable[BoardMeasurement]) -> list[Cell]:
    """Return the cells of the table, in the order of circuits and decoders in the file."""
    groups: dict[tuple[str, str], list[BoardMeasurement]] = defaultdict(list)
    for measurement in measurements:
        groups[measurement.circuit_sha256, measurement.decoder].append(measurement)
    return [_cell(group) for group in groups.values()]


def table_of_cells(circuits: Mapping[str, BoardCircuit], measurements: Iterable[BoardMeasurement]) -> list[Cell]:
    """Return the cells of these circuits, in the order of the circuits."""
    order = {spec.sha256: index for index, spec in enumerate(circuits.values())}
    found = [cell for cell in cells(measurements) if cell.circuit_sha256 in order]
    return sorted(found, key=lambda cell: order[cell.circuit_sha256])


def _cell(group: list[BoardMeasurement]) -> Cell:
    latest = group[-1]
    group = [item for item in group if item.decoder_version == latest.decoder_version]
    counted: dict[BlockKey, BlockCounts] = {}
    conflicts: set[BlockKey] = set()
    reproduced: set[BlockKey] = set()
    for measurement in group:
        for key, counts in blocks(measurement).items():
            known = counted.get(key)
            if known is None:
                counted[key] = counts
            else:
                (reproduced if known == counts else conflicts).add(key)
    for key, parts in _parts_of_blocks(counted).items():
        agrees = _agrees(counted[key], parts)
        if agrees is not None:
            (reproduced if agrees else conflicts).add(key)
    shots = sum(key[2] for key in counted)
    failures = sum(counts[0] for counts in counted.values())
    measured = rate(failures, shots, rounds=latest.rounds or 1) if shots else None
    low, high = _per_round_interval(measured, latest.rounds)
    us_per_shot, relative_time = _times(group)
    failure = _last_failure(group)
    return Cell(
        circuit=latest.circuit,
        circuit_sha256=latest.circuit_sha256,
        rounds=latest.rounds,
        decoder=latest.decoder,
        version=latest.decoder_version,
        rate=measured,
        per_round_low=low,
        per_round_high=high,
        effect=_effect(counted),
        us_per_shot=us_per_shot,
        relative_time=relative_time,
        failed=tuple(item.status for item in group if item.status != "ok"),
        failure=None if failure is None else failure.status,
        message=None if failure is None else failure.message,
        conflicts=len(conflicts),
        reproduced=len(reproduced - conflicts),
        machines=tuple(dict.fromkeys(item.machine for item in group)),
        measurements=tuple(group),
    )


def _parts_of_blocks(counted: dict[BlockKey, BlockCounts]) -> dict[BlockKey, list[BlockCounts]]:
    """Take the parts of blocks that are counted as a whole out of `counted`, and return them by their block."""
    found: dict[BlockKey, list[BlockCounts]] = defaultdict(list)
    for key in [key for key in counted if key[2] == PART_SHOTS]:
        model, seed, _, number = key
        whole = model, seed, BLOCK_SHOTS, number // PARTS
        if whole in counted:
            found[whole].append(counted.pop(key))
    return found


def _agrees(whole: BlockCounts, parts: list[BlockCounts]) -> bool | None:
    """Return whether parts of a block add up to its counts; None if some parts are missing and it is possible."""
    known = [(count, values) for count, *values in zip(whole, *parts, strict=True) if count is not None]
    sums = [(count, sum(value or 0 for value in values)) for count, values in known]
    if len(parts) == PARTS:
        return all(total == count for count, total in sums)
    return None if all(total <= count for count, total in sums) else False


def _last_failure(group: list[BoardMeasurement]) -> BoardMeasurement | None:
    """Return the last failure; a timeout may come from a busy machine, so that a later success takes its place."""
    for index in reversed(range(len(group))):
        succeeded = any(later.status == "ok" for later in group[index + 1 :])
        if group[index].status != "ok" and not (group[index].status == "timeout" and succeeded):
            return group[index]
    return None


def _per_round_interval(measured: Rate | None, rounds: int | None) -> tuple[float | None, float | None]:
    if measured is None or rounds is None:
        return None, None
    return per_round(measured.low, rounds), per_round(measured.high, rounds)


def _effect(counted: dict[BlockKey, BlockCounts]) -> PairedEffect | None:
    """Return the paired difference over the blocks that were compared with correlated matching."""
    shots = failures = fixed = broken = 0
    for key, (block_failures, block_fixed, block_broken) in counted.items():
        if block_fixed is not None and block_broken is not None:
            shots += key[2]
            failures, fixed, broken = failures + block_failures, fixed + block_fixed, broken + block_broken
    if shots == 0:
        return None
    counts = PairedCounts(
        shots=shots, errors_reference=failures + fixed - broken, errors_candidate=failures, fixed=fixed, broken=broken
    )
    try:
        return paired_effect(counts, reference=CORRELATED)
    except ValueError as error:  # counts that contradict each other
        raise ContractError(str(error), location="results.jsonl") from error


def _times(group: list[BoardMeasurement]) -> tuple[float | None, float | None]:
    """Return microseconds per shot, and the ratio to correlated matching, over the measurements that have them."""
    timed = [item for item in group if item.cpu_s is not None and item.shots]
    seconds, shots = sum(item.cpu_s or 0.0 for item in timed), sum(item.shots for item in timed)
    paired = [item for item in timed if item.reference_cpu_s]
    reference = sum(item.reference_cpu_s or 0.0 for item in paired)
    relative = sum(item.cpu_s or 0.0 for item in paired) / reference if reference else None
    return (1e6 * seconds / shots if shots else None), relative


def cell_times(table: Iterable[Cell]) -> tuple[dict[str, float], bool]:
    """Return the times of the cells of one circuit by decoder, and whether they are ratios to correlated matching.

    Ratios are measured in one process. Microseconds also depend on the machine; they are used where a cell has no
    ratio, as without a matching graph. Cells without a time are left out.
    """
    timed = [cell for cell in table if cell.us_per_shot is not None]
    relative = all(cell.relative_time is not None for cell in timed)
    return {cell.decoder: (cell.relative_time if relative else cell.us_per_shot) or 0.0 for cell in timed}, relative


def pareto_front(table: Iterable[Cell]) -> list[Cell]:
    """Return the cells of one circuit that no other beats in both failures per shot and time, fastest first."""
    measured = [cell for cell in table if cell.state == "measured" and cell.rate is not None]
    times, _ = cell_times(measured)
    usable = [cell for cell in measured if cell.decoder in times]
    front: list[Cell] = []
    for cell in sorted(usable, key=lambda cell: (times[cell.decoder], cell.rate.rate if cell.rate else 0.0)):
        if not front or (cell.rate and front[-1].rate and cell.rate.rate < front[-1].rate.rate):
            front.append(cell)
    return front


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
