"""A board for other programs: CSV and JSON with all figures, and the CSV of sinter."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable
from typing import Any

from autoqec.contracts.base import sha256_json
from autoqec.extensions.board.results import Cell


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
