"""What people want to know of a run, read from its files; nothing is computed that the judge has not said."""

from __future__ import annotations

import json
from dataclasses import dataclass

from autoqec.contracts.history import HistoryRow, RunInfo
from autoqec.contracts.pareto import ParetoEntry
from autoqec.contracts.verdict import VerifyReport
from autoqec.errors import ContractError
from autoqec.store.history import History
from autoqec.store.layout import RoundLayout, RunLayout


@dataclass(frozen=True)
class RunView:
    """One run as its files stand. `front` is best first; `best` is the judge's report on its first entry."""

    layout: RunLayout
    info: RunInfo
    rows: tuple[HistoryRow, ...]
    front: tuple[ParetoEntry, ...]
    best: VerifyReport | None

    @property
    def verified(self) -> int:
        return sum(row.verify_verdict == "VERIFIED" for row in self.rows)

    def round_of(self, entry: ParetoEntry) -> int:
        return next(row.round for row in self.rows if attempt_of(row) == entry.round_attempt_id)

    def dump(self) -> dict[str, object]:
        return {
            "run_id": self.info.run_id,
            "info": self.info.dump(),
            "rounds": [row.dump() for row in self.rows],
            "front": [entry.dump() for entry in self.front],
            "best": self.best.dump() if self.best else None,
            "log": str(self.layout.log),
        }


def load(layout: RunLayout) -> RunView:
    """Raises InputError where there is no such run, RunPaused where its truth is damaged."""
    history = History(layout)
    info, rows = history.info(), tuple(history.rows())
    known = {attempt_of(row) for row in rows}
    front = tuple(entry for entry in _front(layout) if entry.round_attempt_id in known)
    view = RunView(layout, info, rows, front, None)
    if not front:
        return view
    return RunView(layout, info, rows, front, report(layout.round(view.round_of(front[0]))))


def attempt_of(row: HistoryRow) -> str | None:
    """The attempt that a row speaks of: a follow-up speaks of an earlier one."""
    return row.refers_to_attempt or row.round_attempt_id


def _front(layout: RunLayout) -> tuple[ParetoEntry, ...]:
    """pareto.json is a view: where it is missing or unreadable there is nothing to show until a reconcile."""
    try:
        entries = json.loads(layout.pareto.read_bytes())
        return tuple(ParetoEntry.read(entry, where=str(layout.pareto)) for entry in entries)
    except (OSError, ValueError, TypeError, ContractError):
        return ()


def report(files: RoundLayout) -> VerifyReport | None:
    """The judge's report of a round; None where there is none, or none that can be read."""
    path = files.report_json
    try:
        return VerifyReport.read(json.loads(path.read_bytes()), where=str(path))
    except (OSError, ValueError, ContractError):
        return None
