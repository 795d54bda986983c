"""What people want to know of a run, read from its files; nothing is computed that the judge has not said."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from autoqec.contracts.history import HistoryRow, RunInfo
from autoqec.contracts.pareto import ParetoEntry
from autoqec.contracts.verdict import VerifyReport
from autoqec.errors import ContractError
from autoqec.store.history import History
from autoqec.store.layout import RoundLayout, RunLayout
from autoqec.store.run_state import RunState


@dataclass(frozen=True)
class RunView:
    """One run as its history stands. `best` is the verification report of the first entry of the front."""

    layout: RunLayout
    info: RunInfo
    rows: tuple[HistoryRow, ...]
    state: RunState
    best: VerifyReport | None

    @property
    def verified(self) -> int:
        return len(self.state.verified)

    @property
    def front(self) -> tuple[ParetoEntry, ...]:
        """The verified front, best first."""
        return self.state.front

    @property
    def latest_rows(self) -> list[HistoryRow]:
        """The row of each attempt that says what the round is, oldest first."""
        return [found.row for found in self.state.rounds.values()]

    @property
    def ended(self) -> list[HistoryRow]:
        """As `latest_rows`, without rounds that were lost."""
        return [found.row for found in self.state.rounds.values() if not found.lost]

    def round_of(self, entry: ParetoEntry) -> int:
        return self.state.rounds[entry.round_attempt_id].row.round

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
    """Raises UsageError where there is no such run, ManualInterventionRequired where its truth is damaged."""
    history = History(layout)
    info, rows, state = history.info(), tuple(history.rows()), history.state()
    view = RunView(layout, info, rows, state, None)
    if not state.front:
        return view
    return replace(view, best=report(layout.round(view.round_of(state.front[0]))))


def report(files: RoundLayout) -> VerifyReport | None:
    """The judge's report of a round; None where there is none, or none that can be read."""
    path = files.report_json
    try:
        return VerifyReport.read(json.loads(path.read_bytes()), location=str(path))
    except (OSError, ValueError, ContractError):
        return None
