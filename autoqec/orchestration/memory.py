"""RunMemory: the truth of a run as the roles see it, and the views that people see."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from autoqec.contracts.env import EnvSpec
from autoqec.contracts.front import ParetoEntry, preview
from autoqec.contracts.history import HistoryRow, RunInfo
from autoqec.contracts.profiles import PROFILES
from autoqec.contracts.round import canonical_fork
from autoqec.orchestration import fork_graph, views
from autoqec.orchestration.attempts import Attempt, Standing, group, standings
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
        self._sections: list[str] = []
        self._told: dict[str, tuple[Standing, dict[str, Any]]] = {}
        self._nodes: dict[str, tuple[Standing, str]] = {}

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
        return views.verified_front(standings(self.history.rows()))

    def rebuild_views(self) -> list[Path]:
        """Bring every view up to date; a file that says so already is left alone. Returns what was written."""
        return self._write()

    def stale_views(self) -> list[Path]:
        """Views that are missing or do not say what history says."""
        return [path for path, text in self._views_now().items() if not _holds(path, text)]

    def _write(self, *wanted: Path) -> list[Path]:
        written = []
        for path, text in self._views_now().items():
            if (not wanted or path in wanted) and not _holds(path, text):
                atomic.write_text(path, text)
                written.append(path)
        return written

    def _views_now(self) -> dict[Path, str]:
        return self.views(self.history.info(), self.history.rows())

    def views(self, info: RunInfo, rows: list[HistoryRow]) -> dict[Path, str]:
        """What every view must hold, byte for byte."""
        standing = standings(rows)
        front = views.verified_front(standing)
        return {
            self.layout.pareto: _lines(entry.dump() for entry in front),
            self.layout.preview: _lines(entry.dump() for entry in preview(front)),
            self.layout.candidates: _lines(views.candidate_front(standing)),
            self.layout.fork_graph: fork_graph.text(info, self._nodes_of(standing), front),
            self.layout.log: views.log(info, standing, self._sections_of(rows)),
        }

    def _sections_of(self, rows: list[HistoryRow]) -> list[str]:
        """Of the log. Rows never change, so only new ones are put into words."""
        if len(rows) < len(self._sections):
            self._sections = []
        self._sections += [views.section(row) for row in rows[len(self._sections) :]]
        return self._sections

    def _nodes_of(self, standing: list[Standing]) -> list[str]:
        """Of the fork graph, as JSON."""
        by_branch = {one.row.branch: one.attempt_id for one in standing if one.row.branch}
        found = []
        for one in standing:
            known = self._nodes.get(one.attempt_id)
            if known is None or not one.is_as(known[0]):
                value = fork_graph.node(one, by_branch)
                known = self._nodes[one.attempt_id] = (one, json.dumps(value, ensure_ascii=False, allow_nan=False))
            found.append(known[1])
        return found

    def _seen(self, one: Standing) -> dict[str, Any]:
        """One round as the ideator sees it; a copy, for roles may do as they like with it."""
        known = self._told.get(one.attempt_id)
        if known is None or not one.is_as(known[0]):
            known = self._told[one.attempt_id] = (one, _seen(one))
        return dict(known[1])

    def l2_for_ideator(
        self, env: EnvSpec, baseline_config: dict[str, Any], *, inputs: str = "other_sector"
    ) -> dict[str, Any]:
        """What the ideator sees: plain values, from history and the verified front alone.

        baseline_config: the config that the baseline commit stands for. inputs: what a net of this env can read.
        `pending`: planned rounds without a row.
        """
        info, rows, attempts = self.history.info(), self.history.rows(), group(self.history.attempts())
        standing = standings(rows)
        closed = {one.attempt_id for one in standing}
        front = views.verified_front(standing)
        return {
            "run_id": info.run_id,
            "seed": info.seed,
            "env": env.dump(),
            "profile": PROFILES[info.profile].dump(),
            "baseline_config": baseline_config,
            "inputs": inputs,
            "history": [self._seen(one) for one in standing],
            "pending": [_pending(one) for one in attempts.values() if one.planned and one.id not in closed],
            "pareto": [entry.dump() for entry in front],
            "pareto_preview": [entry.dump() for entry in preview(front)],
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


_SEEN = (
    "round",
    "status",
    "status_reason",
    "hypothesis",
    "fork_from",
    "fork_from_canonical",
    "compose_mode",
    "branch",
    "dsl_config",
    "delta_ler",
    "delta_vs_parent",
    "val_shots",
    "flops_per_syndrome",
    "n_params",
    "verdict",
    "verify_verdict",
    "verify_reasons",
    "delta_vs_baseline_holdout",
    "delta_holdout_low",
    "delta_holdout_high",
    "beats_panel",
    "summary_1line",
    "next_hypothesis_seed",
)


def _seen(one: Standing) -> dict[str, Any]:
    row = one.row.dump()
    forkable = one.branch is not None and one.row.status == "ok"
    return {key: row[key] for key in _SEEN} | {"fork_from": one.row.fork_from, "forkable": forkable}


def _pending(attempt: Attempt) -> dict[str, Any]:
    planned = attempt.planned
    assert planned is not None
    nothing_yet: dict[str, Any] = dict.fromkeys(_SEEN)
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
    data = text.encode()
    return path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data


def _lines(entries: Iterable[dict[str, Any]]) -> str:
    """A JSON list, one entry a line."""
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False, allow_nan=False) for entry in entries)
    return f"[\n{lines}\n]\n" if lines else "[]\n"
