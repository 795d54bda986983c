"""Exports the results of a run to CSV and to the formats of sinter, tensorboard and wandb."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from autoqec.contracts.history import HistoryRow
from autoqec.contracts.verdict import VerifyReport
from autoqec.errors import UsageError
from autoqec.reporting import run_report, trackers
from autoqec.reporting.run_report import RoundEntry, RunReport
from autoqec.store import atomic
from autoqec.store.layout import RunLayout

_NESTED = ("fork_from", "fork_from_ordered", "dsl_config", "verify_reasons", "beats_panel", "conflicting_files")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def to_csv(run: RunReport) -> str:
    """Format history as CSV: one line per row, one column per field; lists and mappings as JSON.

    Text that a spreadsheet would read as a formula gets a leading apostrophe.
    """
    text = io.StringIO()
    table = csv.DictWriter(text, list(HistoryRow.model_fields), restval="", extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    for row in run.rows:
        table.writerow({key: _cell(key, value) for key, value in row.model_dump(mode="json").items()})
    return text.getvalue()


def to_sinter_csv(run: RunReport) -> str:
    """Format the effect draws of all verifications as a sinter CSV file, as `sinter plot --in FILE` reads it.

    Decoders are the baselines and `<inner decoder>+round<N>`; `m.p` is the physical error rate (null: noise of the
    circuit file). Shots of the sequential test are left out, because its stopping time depends on them. Times are left
    out, because they were not measured in isolation.
    """
    import sinter

    code = run.env.code.model_dump(mode="json", exclude={"text"}) if run.env else {}
    lines = [sinter.CSV_HEADER]
    for round_entry in run.rounds:
        report = run.verification(round_entry)
        if report is None or report.effect is None:
            continue
        for decoder, p, errors, shots in _rates(round_entry, report):
            meta = {"env": report.env_name, "p": p, "d": code.get("distance"), "r": code.get("rounds")}
            # A baseline compared with several candidates is one decoder on more shots: sinter adds them up.
            artifact = report.artifact_sha256 if "+" in decoder else None
            identity = json.dumps([report.env_yaml_sha256, artifact, decoder, meta], sort_keys=True)
            stats = sinter.TaskStats(
                strong_id=hashlib.sha256(identity.encode()).hexdigest(),
                decoder=decoder,
                json_metadata=meta,
                shots=shots,
                errors=errors,
            )
            lines.append(stats.to_csv_line())
    return "\n".join(lines) + "\n"


def _rates(round_entry: RoundEntry, report: VerifyReport) -> Iterator[tuple[str, float | None, int, int]]:
    """(decoder, p, errors, shots) of the candidate, and of the baselines on the same shots."""
    effect, candidate_name = report.effect, f"{report.backend}+round{round_entry.row.round}"
    assert effect is not None
    yield candidate_name, effect.p, effect.counts.errors_candidate, effect.counts.shots
    for member in report.panel:
        yield member.name, member.against.p, member.rate.errors, member.rate.shots
    for point in report.points:
        if point.reference == report.backend:  # other baselines were measured on the same shots
            yield candidate_name, point.p, point.counts.errors_candidate, point.counts.shots
        yield point.reference, point.p, point.counts.errors_reference, point.counts.shots


TEXT_FORMATS: dict[str, tuple[str, Callable[[RunReport], str]]] = {
    "csv": ("history.csv", to_csv),
    "sinter-csv": ("sinter.csv", to_sinter_csv),
}
FORMATS = (*TEXT_FORMATS, *trackers.WRITERS)


def export(layout: RunLayout, form: str, target: Path | None = None) -> Path:
    """Write the run in this format and return the path.

    Args:
        layout: The run.
        form: One of FORMATS.
        target: A file; for a tracker an empty directory. By default below `exports/` of the run.
    """
    run = run_report.load(layout)
    if form in TEXT_FORMATS:
        name, render = TEXT_FORMATS[form]
        path = target or layout.exports / name
        if path.is_dir():
            raise UsageError("is a directory", location=str(path), hint="name a file")
        atomic.make_dir(path.parent)
        atomic.write_text(path, render(run))
        return path
    return trackers.write(run, form, target or layout.exports / form)


def _cell(key: str, value: Any) -> Any:
    if value is None:
        return ""
    if key in _NESTED and not isinstance(value, str):
        return json.dumps(value, ensure_ascii=True)
    if isinstance(value, str):
        text = value.encode("utf-8", "backslashreplace").decode()
        return f"'{text}" if text.startswith(_FORMULA) else text
    return value
