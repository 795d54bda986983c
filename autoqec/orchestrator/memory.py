"""RunMemory: the history of a run, the state derived from it, and the views for users and roles."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from autoqec.contracts.env import EnvSpec
from autoqec.contracts.history import HistoryRow
from autoqec.contracts.pareto import ParetoEntry, non_dominated, preview
from autoqec.contracts.profiles import profile_of
from autoqec.contracts.round import canonical_fork
from autoqec.contracts.views import AnalystView, IdeatorView, NextTest, RoundRow
from autoqec.orchestrator import fork_graph, views
from autoqec.store import atomic
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from autoqec.store.run_state import Attempt, AttemptState, RunState, candidate_front

FRONT, CANDIDATES = "pareto.json", "candidate_pareto.json"


class RunMemory:
    """Access to one run directory: its history, the state derived from it, the view files, and the role views.

    Args:
        run_dir: The run directory, `runs/<run_id>`.
        pareto_filename: The file that `update_pareto` writes: `pareto.json` (the verified front, with its preview), or
            `candidate_pareto.json` (nominated rounds that are not verified), which no role reads.
    """

    def __init__(self, run_dir: Path | str, pareto_filename: str = FRONT) -> None:
        directory = Path(os.path.abspath(run_dir))  # not resolved: `runs` may be a link to another disk
        if pareto_filename not in (FRONT, CANDIDATES):
            raise ValueError(f"pareto_filename is {FRONT} or {CANDIDATES}, not {pareto_filename!r}")
        self.layout = RunLayout(directory.parent.parent, directory.name)
        self.history = History(self.layout)
        self.pareto_filename = pareto_filename

    @property
    def state(self) -> RunState:
        """The state derived from the rows."""
        return self.history.state()

    @property
    def attempt_state(self) -> AttemptState:
        """The state derived from the write-ahead lines."""
        return self.history.attempt_state()

    def next_round(self) -> int:
        """Return the next round number; numbers of unfinished rounds are not reused."""
        return max(self.attempt_state.last_round, self.state.last_round) + 1

    # ---- view files

    def append_round(self, row: HistoryRow) -> None:
        """Append the row of a round, durably: the commit point of the round."""
        self.history.append_row(row)

    def append_log(self, text: str) -> None:
        """Append to log.md; a new file starts with the header."""
        if self.layout.log.is_file():
            atomic.append_bytes(self.layout.log, text.encode())
        else:
            atomic.write_text(self.layout.log, views.log_head(self.history.info()) + text)

    def update_pareto(self, entry: ParetoEntry | HistoryRow) -> list[Path]:
        """Write the Pareto file that the object was created with as if the history also had this entry.

        Args:
            entry: A verified entry for `pareto.json`, or a nominated row for `candidate_pareto.json`.

        Returns:
            The files that were written, including the preview.

        Raises:
            TypeError: The entry is not one of that file.
        """
        if isinstance(entry, HistoryRow) and self.pareto_filename == CANDIDATES:
            return self._write({self.layout.candidates: _candidate_file([*self.state.candidates, entry])})
        if isinstance(entry, ParetoEntry) and self.pareto_filename == FRONT:
            verified = {known.round_attempt_id: known for known in (*self.state.front, entry)}
            return self._write(self._front_files(non_dominated(verified.values())))
        raise TypeError(f"{type(entry).__name__} is not an entry of {self.pareto_filename}")

    def rebuild_views(self) -> list[Path]:
        """Write every view that differs from the history; return the written files."""
        return self._write(self.views())

    def stale_views(self) -> list[Path]:
        """Return the view files that are missing or differ from the history."""
        return [path for path, text in self.views().items() if not _holds(path, text)]

    def views(self) -> dict[Path, str]:
        """Return the exact content of every view file."""
        return self._front_files(self.state.front) | {
            self.layout.candidates: _candidate_file(self.state.candidates),
            self.layout.fork_graph: fork_graph.text(self.graph()),
            self.layout.log: views.log(self.history.info(), self.history.rows()),
        }

    def graph(self) -> dict[str, Any]:
        """Return the content of fork_graph.json, computed from the history."""
        return fork_graph.build(self.history.info(), self.state)

    def _front_files(self, front: Sequence[ParetoEntry]) -> dict[Path, str]:
        return {
            self.layout.pareto: _json_lines(entry.dump() for entry in front),
            self.layout.preview: _json_lines(entry.dump() for entry in preview(front)),
        }

    def _write(self, wanted: dict[Path, str]) -> list[Path]:
        stale = [path for path, text in wanted.items() if not _holds(path, text)]
        for path in stale:
            atomic.write_text(path, wanted[path])
        return stale

    def next_test_index(self) -> int:
        """Return the index of the next test in the run's error budget; lost lines of attempts.jsonl do not lower it."""
        tests = self.attempt_state.registered_tests
        n_verdicts = sum(found.row.verify_verdict is not None for found in self.state.rounds.values())
        return max([len(tests), n_verdicts, *(line.attempt_index for line in tests)]) + 1

    # ---- role views

    def l2_for_ideator(
        self,
        env: EnvSpec,
        baseline_config: dict[str, Any],
        *,
        inputs: str = "other_sector",
        gate_available: bool = False,
    ) -> IdeatorView:
        """Return the Ideator's view: derived from the history and the verified front only.

        Args:
            env: The env of the run.
            baseline_config: The config of the baseline commit.
            inputs: The detectors that a predecoder of this env can read.
            gate_available: Whether a config of this env can have a `gate`.

        Returns:
            The view; its `pending` are planned rounds without a row.
        """
        info, state = self.history.info(), self.state
        planned = (attempt for attempt in self.attempt_state.attempts.values() if attempt.planned)
        return IdeatorView(
            run_id=info.run_id,
            seed=info.seed,
            env=env,
            profile=profile_of(info.profile, info.scale),
            baseline_config=baseline_config,
            inputs=inputs,
            gate_available=gate_available,
            pins=dict(info.pins),
            history=tuple(found.summary for found in state.rounds.values()),
            pending=tuple(_pending(attempt) for attempt in planned if attempt.id not in state.rounds),
            next_test=self._next_test(env.protocol.alpha),
            pareto=tuple(state.front),
            pareto_preview=tuple(preview(state.front)),
        )

    def _next_test(self, alpha: float) -> NextTest:
        from autoqec.verification.sequential import e_lond_level

        index, discoveries = self.next_test_index(), len(self.state.verified)
        return NextTest(
            index=index,
            threshold=1 / e_lond_level(alpha, index, discoveries),
            first_threshold=1 / e_lond_level(alpha, 1, 0),
        )

    def l3_for_analyst(self, round_dir: Path | str, *, hypothesis: str = "") -> AnalystView:
        """Return the Analyst's view of one round."""
        metrics_path = Path(os.path.abspath(round_dir)) / "metrics.json"
        return AnalystView(
            run_id=self.layout.run_id,
            hypothesis=hypothesis,
            metrics_path=metrics_path,
            sealed_shots=self.history.info().sealed_shots,
        )


def _pending(attempt: Attempt) -> RoundRow:
    planned = attempt.planned
    assert planned is not None
    known = {
        "round": attempt.round,
        "hypothesis": planned.ideator.hypothesis,
        "fork_from": planned.fork_from,
        "fork_from_canonical": canonical_fork(planned.fork_from),
        "compose_mode": planned.compose_mode,
        "branch": planned.branch,
        "dsl_config": planned.dsl_config,
        "forkable": False,
    }
    return cast("RoundRow", dict.fromkeys(RoundRow.__annotations__) | known)


def _candidate_file(rows: Iterable[HistoryRow]) -> str:
    return _json_lines(views.candidate(row) for row in candidate_front(rows))


def _json_lines(entries: Iterable[dict[str, Any]]) -> str:
    """Return a JSON list, one entry per line."""
    lines = ",\n".join(json.dumps(entry, ensure_ascii=False, allow_nan=False) for entry in entries)
    return f"[\n{lines}\n]\n" if lines else "[]\n"


def _holds(path: Path, text: str) -> bool:
    data = text.encode()
    return path.is_file() and path.stat().st_size == len(data) and path.read_bytes() == data
