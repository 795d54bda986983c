"""Tools and resources of the MCP server, as functions of a repository; this module does not import `mcp`."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autoqec import locate
from autoqec.contracts.dsl import Family, parse_dsl
from autoqec.contracts.history import HistoryRow
from autoqec.contracts.round import RoundStatus
from autoqec.contracts.verdict import Verdict
from autoqec.contracts.views import IdeatorView
from autoqec.errors import UsageError
from autoqec.reporting.text import paragraphs, plain
from autoqec.store.layout import EDITABLE_CONFIG, RunLayout

if TYPE_CHECKING:
    from autoqec.reporting.run_report import RunReport

MAX_ROWS = 20
MAX_HISTORY_ROWS = 500
MAX_TEXT_CHARS = 240  # of any text that a model or a log wrote
MAX_PAGE_CHARS = 100_000
VERIFY_TIMEOUT_S = 4 * 3600
PHASES = {"judge_test": "sequential test", "judge_effect": "measuring the gain"}

OnProgress = Callable[[float, str], None]


class Tools:
    """What the tools of the server return. Nothing here trains or writes, except `verify`.

    Every answer is bounded; texts that models and logs wrote are reduced to one line without control characters.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    def machine_state(self, run: str | None = None) -> dict[str, Any]:
        """Return the resources of this machine, and those that the last rounds of a run used."""
        from autoqec.reporting.machine_state import machine_state

        state = machine_state(locate.run_layout(run, root=self._root) if run else None)
        return {**state, "rounds": state.get("rounds", [])[-MAX_ROWS:]}

    def query_history(
        self,
        run: str,
        status: RoundStatus | None = None,
        verdict: Verdict | None = None,
        family: Family | None = None,
        rounds: Collection[int] = (),
    ) -> dict[str, Any]:
        """Return the rounds of a run that match every filter, newest first."""
        rows = [
            row
            for row in reversed(self._rows(run))
            if status in (None, row.status)
            and verdict in (None, row.verify_verdict)
            and family in (None, (row.dsl_config or {}).get("type"))
            and (not rounds or row.round in rounds)
        ]
        return {"matching": len(rows), "rounds": [_row(row) for row in rows[:MAX_ROWS]]}

    def run_ids(self) -> list[str]:
        """Return the ids of the latest runs, oldest first."""
        return list(locate.run_ids(self._root))[-MAX_ROWS:]

    def show(self, run: str | None = None) -> dict[str, Any]:
        """Return the runs of this repository, or the verified results of one."""
        from autoqec.reporting import run_report

        if run is None:
            return {"runs": self.run_ids()}
        return _results(run_report.load(locate.run_layout(run, root=self._root)))

    def propose(self, run: str, config: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return the next proposal of the TPE search, or the check of `config`; nothing is started."""
        if config is not None:
            return self._check_config(run, config)
        from autoqec.ideators import tpe

        return tpe.propose(self._view(run)).dump()

    def verify(self, run: str, round_number: int, on_progress: OnProgress) -> dict[str, Any]:
        """Run `autoqec verify` on a round, in a child process.

        Args:
            run: Id of the run.
            round_number: Number of the round.
            on_progress: Called a few times per second with the seconds so far and a description; an exception in it
                ends the child process and is passed on.

        Returns:
            The JSON object that the command prints at its end, with its `exit_code`.

        Raises:
            UsageError: There is no such run or round.
        """
        from autoqec.system.process import child

        round_dir = locate.run_layout(run, root=self._root).round(round_number).dir
        if not round_dir.is_dir():
            what = "there is no such round"
            raise UsageError(what, location=f"run {run}, round {round_number}", hint="call query_history")
        env = child.environment({"PYTHONPATH": os.pathsep.join(filter(None, sys.path))})
        limits = child.Limits(VERIFY_TIMEOUT_S)
        with tempfile.TemporaryDirectory(prefix="autoqec-mcp-") as scratch:
            stdout = Path(scratch) / "stdout"
            ended = child.run(
                verify_command(round_dir), cwd=self._root, env=env, limits=limits, stdout=stdout,
                on_tick=lambda seconds: on_progress(seconds, _progress(stdout)),
            )  # fmt: skip
            lines = stdout.read_text(encoding="utf-8", errors="replace").splitlines()
        objects = [value for line in lines if (value := _object(line)) is not None and "event" not in value]
        return {"exit_code": ended.returncode, **(objects[-1] if objects else {"what": plain(" ".join(lines[-3:]))})}

    def log(self, run: str) -> str:
        """Return `log.md` of a run; of a long one its end."""
        return self._page(locate.run_layout(run, root=self._root).log, "no round has ended yet")

    def verification_report(self, run: str, round_number: int) -> str:
        """Return `verification_report.md` of a round."""
        path = locate.run_layout(run, root=self._root).round(round_number).report_md
        return self._page(path, "the round has not been verified")

    def history(self, run: str) -> str:
        """Return the rounds of a run as JSON lines, oldest first; of a long run the latest."""
        return "".join(f"{json.dumps(_row(row))}\n" for row in self._rows(run)[-MAX_HISTORY_ROWS:])

    def _page(self, path: Path, missing: str) -> str:
        if not path.is_file():
            raise UsageError(missing, location=path.name, hint="call query_history")
        text = path.read_text(encoding="utf-8", errors="replace")
        shown = paragraphs(text[-MAX_PAGE_CHARS:], MAX_PAGE_CHARS)
        return shown if len(text) <= MAX_PAGE_CHARS else f"(earlier part omitted)\n{shown}"

    def _rows(self, run: str) -> list[HistoryRow]:
        from autoqec.store.history import History

        rounds = History(locate.run_layout(run, root=self._root)).state().rounds
        return [found.row for found in rounds.values()]

    def _view(self, run: str) -> IdeatorView:
        """Return the ideator's view of a run, without holding the run."""
        from autoqec.orchestrator.memory import RunMemory
        from autoqec.store import files
        from autoqec.system.git import Repo

        layout = locate.run_layout(run, root=self._root)
        memory = RunMemory(layout.root)
        data = Repo.discover(self._root).show_file(memory.history.info().baseline_sha, EDITABLE_CONFIG)
        config = files.load_yaml((data or b"").decode("utf-8", "replace"), location=EDITABLE_CONFIG)
        baseline = parse_dsl(config, location=EDITABLE_CONFIG).config()
        return memory.l2_for_ideator(files.parse_env(_env(layout), location=str(layout.env)), baseline)

    def _check_config(self, run: str, config: dict[str, Any]) -> dict[str, Any]:
        from autoqec.decoders.cost_limits import exceeded_limits, predict_cost
        from autoqec.ideators.proposal_checks import find_duplicate_round

        dsl, view = parse_dsl(config, location="config"), self._view(run)
        env = view.require_env()
        cost = predict_cost(env, dsl)
        return {
            "valid": True,
            "measured_before_as_round": find_duplicate_round(view, dsl),
            **cost,
            "within_bounds": not exceeded_limits(cost, env.constraints),
            "config": dsl.config(),
        }


def verify_command(round_dir: Path) -> list[str]:
    """Return the command that verifies a round and prints JSON."""
    return [sys.executable, "-P", "-m", "autoqec.cli", "verify", str(round_dir), "--json"]


def _results(report: RunReport) -> dict[str, Any]:
    best = report.best_verification
    return {
        "run_id": report.info.run_id,
        "env": report.info.env_name,
        "profile": report.info.profile,
        "ideator": report.info.ideator,
        "rounds": len(report.rows),
        "verified": report.n_verified,
        "front": [
            {"round": entry.row.round, **report.state.verified[entry.key].dump()} for entry in report.front[:MAX_ROWS]
        ],
        "best": None if best is None else {"claim": best.claim, "panel": [member.dump() for member in best.panel]},
    }


def _row(row: HistoryRow) -> dict[str, Any]:
    texts = {"status_reason", "hypothesis", "summary_1line", "analysis", "next_hypothesis_seed"}
    names = (
        "round", "status", "status_reason", "hypothesis", "fork_from", "branch", "dsl_config", "delta_ler",
        "delta_vs_parent", "val_shots", "n_params", "flops_per_syndrome", "verdict", "verify_verdict",
        "delta_vs_baseline_holdout", "delta_holdout_low", "delta_holdout_high", "beats_panel", "summary_1line",
    )  # fmt: skip
    values = row.dump()
    return {name: plain(values[name] or "", MAX_TEXT_CHARS) if name in texts else values[name] for name in names}


def _env(layout: RunLayout) -> str:
    from autoqec.store import files

    return files.read_text(layout.env, what="the run's env", hint=f"restore {layout.env}")


def _progress(stdout: Path) -> str:
    """Describe the latest progress event in the output of `autoqec verify --json`."""
    with stdout.open("rb") as file:
        file.seek(max(0, stdout.stat().st_size - 4096))
        lines = file.read().decode("utf-8", "replace").splitlines()
    for line in reversed(lines):
        event = _object(line)
        if event is not None and (phase := PHASES.get(event.get("event", ""))):
            return f"{phase}: {event.get('shots', 0):,} of at most {event.get('budget', 0):,} shots"
    return "preparing"


def _object(line: str) -> dict[str, Any] | None:
    try:
        value = json.loads(line)
    except ValueError:
        return None
    return value if isinstance(value, dict) else None
