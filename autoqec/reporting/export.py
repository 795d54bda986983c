"""A run's figures in the formats of other tools."""

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
from autoqec.reporting import run_view, trackers
from autoqec.reporting.run_data import RoundEntry, env_of, rounds_of
from autoqec.reporting.run_view import RunView
from autoqec.store import atomic
from autoqec.store.layout import RunLayout

_NESTED = ("fork_from", "fork_from_ordered", "dsl_config", "verify_reasons", "beats_panel", "conflicting_files")
_FORMULA = ("=", "+", "-", "@", "\t", "\r")


def to_csv(view: RunView) -> str:
    """One line a row of history, a column a key of its contract; lists and maps as JSON.

    A text that a spreadsheet would take for a formula gets an apostrophe in front.
    """
    text = io.StringIO()
    table = csv.DictWriter(text, list(HistoryRow.model_fields), restval="", extrasaction="ignore", lineterminator="\n")
    table.writeheader()
    for row in view.rows:
        table.writerow({key: _cell(key, value) for key, value in row.model_dump(mode="json").items()})
    return text.getvalue()


def to_sinter_csv(view: RunView) -> str:
    """Statistics of the judge's effect draws, as `sinter collect` writes them: `sinter plot --in FILE` reads it.

    Decoders of the panel stand beside `<backend>+round<N>`; `m.p` is the physical error rate (null: the file's own
    noise). Shots of the sequential test are left out: when it stopped depended on them. No times: sinter would
    compare them, and they were not taken alone.
    """
    import sinter

    env = env_of(view.layout)
    code = env.code.model_dump(mode="json", exclude={"text"}) if env else {}
    lines = [sinter.CSV_HEADER]
    for round_entry in rounds_of(view):
        report = run_view.report(view.layout.round(round_entry.row.round)) if round_entry.row.verify_verdict else None
        if report is None or report.effect is None:
            continue
        for decoder, p, errors, shots in _rates(round_entry, report):
            meta = {"env": report.env_name, "p": p, "d": code.get("distance"), "r": code.get("rounds")}
            # A panel member met by several candidates is one decoder on more shots: sinter adds them up.
            whose = report.artifact_sha256 if "+" in decoder else None
            identity = json.dumps([report.env_yaml_sha256, whose, decoder, meta], sort_keys=True)
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
    """(decoder, p, errors, shots) of the candidate, and of the panel on the same shots."""
    effect, candidate_name = report.effect, f"{report.backend}+round{round_entry.row.round}"
    assert effect is not None
    yield candidate_name, effect.p, effect.counts.errors_candidate, effect.counts.shots
    for member in report.panel:
        yield member.name, member.against.p, member.rate.errors, member.rate.shots
    for point in report.points:
        if point.reference == report.backend:  # the others met the candidate on the same shots
            yield candidate_name, point.p, point.counts.errors_candidate, point.counts.shots
        yield point.reference, point.p, point.counts.errors_reference, point.counts.shots


TEXT_FORMATS: dict[str, tuple[str, Callable[[RunView], str]]] = {
    "csv": ("history.csv", to_csv),
    "sinter-csv": ("sinter.csv", to_sinter_csv),
}
FORMATS = (*TEXT_FORMATS, *trackers.WRITERS)


def export(layout: RunLayout, form: str, target: Path | None = None) -> Path:
    """Write the run in this format; where it lies. target: a file, or for a tracker a directory that is empty."""
    view = run_view.load(layout)
    if form in TEXT_FORMATS:
        name, render = TEXT_FORMATS[form]
        path = target or layout.exports / name
        if path.is_dir():
            raise UsageError("is a directory", location=str(path), hint="name a file")
        atomic.make_dir(path.parent)
        atomic.write_text(path, render(view))
        return path
    return trackers.write(view, form, target or layout.exports / form)


def _cell(key: str, value: Any) -> Any:
    if value is None:
        return ""
    if key in _NESTED and not isinstance(value, str):
        return json.dumps(value, ensure_ascii=True)
    if isinstance(value, str):
        text = value.encode("utf-8", "backslashreplace").decode()
        return f"'{text}" if text.startswith(_FORMULA) else text
    return value
