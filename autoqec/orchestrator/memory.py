"""RunMemory: the truth of a run as the roles see it, and the views that people see."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from autoqec.contracts.env import EnvSpec
from autoqec.contracts.history import AttemptLine, Charged, HistoryRow
from autoqec.contracts.pareto import ParetoEntry, preview
from autoqec.contracts.profiles import PROFILES
from autoqec.contracts.round import canonical_fork
from autoqec.orchestrator import fork_graph, views
from autoqec.orchestrator.attempts import Attempt, Standing, reached
from autoqec.orchestrator.told import SEEN, Told
from autoqec.store import atomic
from autoqec.store.history import History
from autoqec.store.layout import RunLayout

FRONT, CANDIDATES = "pareto.json", "candidate_pareto.json"


class RunMemory:
    """One run directory. Nothing is remembered that the directory does not hold; what a row gives rise to is worked
    out once, so that a late round costs what an early one does.

    pareto_filename: what `update_pareto` writes: the verified front (with its preview), or `candidate_pareto.json`,
    the nominated rounds that no judge has confirmed, which no role ever reads.
    """

    def __init__(self, run_dir: Path | str, pareto_filename: str = FRONT) -> None:
        directory = Path(run_dir).resolve()
        if pareto_filename not in (FRONT, CANDIDATES):
            raise ValueError(f"pareto_filename is {FRONT} or {CANDIDATES}, not {pareto_filename!r}")
        self.layout = RunLayout(directory.parent.parent, directory.name)
        self.history = History(self.layout)
        self.pareto_filename = pareto_filename
        self._told = Told()
        self._last: HistoryRow | None = None
        self._attempts: dict[str, Attempt] = {}
        self._open: dict[str, Attempt] = {}
        self._charged: list[Charged] = []
        self._lines = 0
        self._last_line: AttemptLine | None = None
        self._begun = 0
        # Sections, bytes and the summary of log.md, once they are known to be right.
        self._log: tuple[int, int, str] | None = None

    # ---- what the run has come to

    def attempts(self) -> dict[str, Attempt]:
        """By id, in the order they began. Not to be changed."""
        lines, count = self.history.attempts(), self._lines
        if len(lines) < count or (count and lines[count - 1] is not self._last_line):
            self._attempts, self._open, self._charged, self._begun, count = {}, {}, [], 0, 0
        for line in lines[count:]:
            if isinstance(line, Charged):
                self._charged.append(line)
            attempt = reached(self._attempts, line)
            self._open[attempt.id] = attempt
            self._begun = max(self._begun, attempt.round)
        self._lines, self._last_line = len(lines), lines[-1] if lines else None
        return self._attempts

    def charged(self) -> list[Charged]:
        """Every draw from the judge's shots, in order. Not to be changed."""
        self.attempts()
        return self._charged

    def discoveries(self) -> int:
        """Rounds that stand VERIFIED."""
        return self._caught_up().tally.discoveries

    def standing(self) -> dict[str, Standing]:
        """Closed attempts by id, in the order of their first rows. Not to be changed."""
        return self._caught_up().tally.standing

    def front(self) -> list[ParetoEntry]:
        """The verified front, best first."""
        return list(self._caught_up().tally.front())

    def by_branch(self, branches: Iterable[str]) -> dict[str, Standing]:
        """The rounds that stand under these branches, those that were deleted left out."""
        tally = self._caught_up().tally
        named = {branch: tally.standing[tally.branches[branch]] for branch in branches if branch in tally.branches}
        return {branch: one for branch, one in named.items() if one.branch == branch}

    def next_round(self) -> int:
        """Never a number that was used, finished or not."""
        self.attempts()
        return max(self._begun, self._caught_up().last_round) + 1

    def _caught_up(self) -> Told:
        rows = self.history.rows()
        count = len(self._told.sections)
        if len(rows) < count or (count and rows[count - 1] is not self._last):
            self._told, self._log, count = Told(), None, 0  # restored from a backup, or cut
        for row in rows[count:]:
            self._told.take(row)
        self._last = rows[-1] if rows else None
        return self._told

    # ---- what people see

    def append_round(self, row: HistoryRow) -> None:
        """The commit point of a round: durable on return."""
        self.history.append_row(row)

    def append_log(self) -> None:
        """log.md with every row of history in it."""
        self._write(self.layout.log)

    def update_pareto(self) -> list[ParetoEntry]:
        """The front file from history; returns the verified front."""
        if self.pareto_filename == CANDIDATES:
            self._write(self.layout.candidates)
        else:
            self._write(self.layout.pareto, self.layout.preview)
        return self.front()

    def rebuild_views(self) -> list[Path]:
        """Bring every view up to date; a file that says so already is left alone. Returns what was written."""
        return self._write()

    def stale_views(self) -> list[Path]:
        """Views that are missing or do not say what history says."""
        return [path for path, text in self.views().items() if not _holds(path, text)]

    def views(self) -> dict[Path, str]:
        """What every view must hold, byte for byte."""
        told, info = self._caught_up(), self.history.info()
        return self._small(told) | {self.layout.log: views.log_head(info, told.summary) + "".join(told.sections)}

    def graph(self) -> dict[str, Any]:
        """What fork_graph.json holds, from history."""
        value: dict[str, Any] = json.loads(self._small(self._caught_up())[self.layout.fork_graph])
        return value

    def _small(self, told: Told) -> dict[Path, str]:
        pareto, top = told.front()
        return {
            self.layout.pareto: pareto,
            self.layout.preview: top,
            self.layout.candidates: told.candidates(),
            self.layout.fork_graph: fork_graph.text(self.history.info(), told.nodes.values(), told.tally.front()),
        }

    def _write(self, *wanted: Path) -> list[Path]:
        told, written = self._caught_up(), []
        for path, text in self._small(told).items():
            if (not wanted or path in wanted) and not _holds(path, text):
                atomic.write_text(path, text)
                written.append(path)
        if (not wanted or self.layout.log in wanted) and self._write_log(told):
            written.append(self.layout.log)
        return written

    def _write_log(self, told: Told) -> bool:
        """Sections that came since are added at the end; a log whose summary is another now, or that is not as it was
        left, is written anew."""
        path, total, summary = self.layout.log, len(told.sections), told.summary
        if self._log is None or not path.is_file() or (path.stat().st_size, summary) != self._log[1:]:
            data = (views.log_head(self.history.info(), summary) + "".join(told.sections)).encode()
            stale = not _has(path, data)
            if stale:
                atomic.write_bytes(path, data)
            self._log = total, len(data), summary
            return stale
        sections, size, _ = self._log
        data = "".join(told.sections[sections:]).encode()
        if data:
            atomic.append_bytes(path, data)
        self._log = total, size + len(data), summary
        return bool(data)

    # ---- what the roles see

    def l2_for_ideator(
        self, env: EnvSpec, baseline_config: dict[str, Any], *, inputs: str = "other_sector"
    ) -> dict[str, Any]:
        """What the ideator sees: plain values, from history and the verified front alone.

        baseline_config: the config that the baseline commit stands for. inputs: what a net of this env can read.
        `pending`: planned rounds without a row.
        """
        info, told = self.history.info(), self._caught_up()
        self.attempts()
        front = told.tally.front()
        for name in [name for name in self._open if name in told.tally.standing]:
            del self._open[name]
        return {
            "run_id": info.run_id,
            "seed": info.seed,
            "env": env.dump(),
            "profile": PROFILES[info.profile].dump(),
            "baseline_config": baseline_config,
            "inputs": inputs,
            "pins": dict(info.pins),
            # The rows themselves: copying them would cost a late round more than an early one.
            "history": [*told.seen.values()],
            "pending": [_pending(one) for one in self._open.values() if one.planned],
            "pareto": [told.entry(entry)[0] for entry in front],
            "pareto_preview": [told.entry(entry)[0] for entry in preview(front)],
        }

    def l3_for_analyst(self, round_dir: Path | str, *, hypothesis: str = "") -> dict[str, Any]:
        """What the analyst sees of one round; `metrics_path` is absolute."""
        directory = Path(round_dir).resolve()
        return {
            "run_id": self.layout.run_id,
            "hypothesis": hypothesis,
            "round_dir": str(directory),
            "metrics_path": str(directory / "metrics.json"),
        }


def _pending(attempt: Attempt) -> dict[str, Any]:
    planned = attempt.planned
    assert planned is not None
    nothing_yet: dict[str, Any] = dict.fromkeys(SEEN)
    return nothing_yet | {
        "round": attempt.round,
        "hypothesis": planned.ideator.hypothesis,
        "fork_from": planned.fork_from,
        "fork_from_canonical": canonical_fork(planned.fork_from),
        "compose_mode": planned.compose_mode,
        "branch": planned.branch,
        "dsl_config": planned.dsl_config,
        "forkable": False,
    }


def _holds(path: Path, text: str) -> bool:
    return _has(path, text.encode())


def _has(path: Path, data: bytes) -> bool:
    return path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data
