"""One run as `show`, `watch`, `report` and `export` present it, read from its directory."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from autoqec.contracts.env import EnvSpec
from autoqec.contracts.history import HistoryRow, RunInfo
from autoqec.contracts.round import Trial
from autoqec.contracts.verdict import ComparisonTerms, VerifyReport, comparison_terms
from autoqec.errors import AutoqecError
from autoqec.reporting.proposals import (
    describe_trials,
    describe_usage,
    proposed_by_model,
    read_ledger,
    trials_by_attempt,
)
from autoqec.store import atomic
from autoqec.store.files import dump_config, parse_env
from autoqec.store.history import History
from autoqec.store.layout import RunLayout
from autoqec.store.round_files import load_contract
from autoqec.store.run_state import Attempt, RoundState, RunState
from autoqec.system import run_lock

if TYPE_CHECKING:
    from autoqec.store.model_calls import ModelCalls


from autoqec.errors import UsageError
from autoqec.reporting.loss import Point, curve
from autoqec.reporting.text import paragraphs
from autoqec.store.layout import EDITABLE_MODULES
from autoqec.system.git import Repo

MAX_DETAILED_ROUNDS, MAX_LISTED_ROUNDS = 60, 400  # over all runs of a page
MAX_DIFF_CHARS = 300_000  # of all diffs of a page


@dataclass(frozen=True)
class RoundEntry:
    """One attempt as its last row leaves it.

    Attributes:
        row: The last row that describes the round.
        key: The attempt id.
        anchor: Fragment identifier of the round on a page; unique within the run.
        on_front: Whether the round is on the Pareto front.
        branch_deleted: Whether its branch was deleted by hand.
        parents: Anchors of the rounds it forks from; empty for the baseline.
    """

    row: HistoryRow
    key: str
    anchor: str
    on_front: bool
    branch_deleted: bool
    parents: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Last part of the branch name; without a branch, the status."""
        return (self.row.branch or self.row.status).rsplit("/", 1)[-1]

    @property
    def outcome(self) -> str:
        """The verdict; without one, the reason for that in one or two words."""
        return outcome(self.row)


@dataclass(frozen=True)
class PendingRound:
    """An attempt without a row: in progress, or interrupted and not yet recovered."""

    round: int
    phase: str
    hypothesis: str


@dataclass(frozen=True)
class RunReport:
    """One run as its files stand. What is derived from them is read on first use.

    Attributes:
        rows: All rows of history.jsonl, in file order.
        listed: The rounds that a page lists, oldest first; empty unless `load_pages` made the report.
        details: By attempt id, the rounds that a page shows in full.
    """

    layout: RunLayout
    info: RunInfo
    rows: tuple[HistoryRow, ...]
    state: RunState
    listed: tuple[RoundEntry, ...] = ()
    details: dict[str, RoundDetails] = field(default_factory=dict)

    @property
    def id(self) -> str:
        """The run id."""
        return self.layout.run_id

    @property
    def n_verified(self) -> int:
        """Number of rounds whose verdict is VERIFIED, on the front or not."""
        return len(self.state.verified)

    @cached_property
    def rounds(self) -> tuple[RoundEntry, ...]:
        """One entry per attempt, in the order of their first rows."""
        front = {entry.round_attempt_id for entry in self.state.front}
        anchors = _anchors(self.id, self.state.rounds.values())
        return tuple(
            RoundEntry(
                row=attempt.row,
                key=key,
                anchor=anchors[key],
                on_front=key in front,
                branch_deleted=attempt.gone,
                parents=tuple(anchors[parent] for parent in attempt.parents if parent in anchors),
            )
            for key, attempt in self.state.rounds.items()
        )

    @property
    def latest_rows(self) -> list[HistoryRow]:
        """The row of each attempt that describes it, oldest first."""
        return [attempt.row for attempt in self.state.rounds.values()]

    @property
    def finished_rows(self) -> list[HistoryRow]:
        """As `latest_rows`, without aborted rounds."""
        return [attempt.row for attempt in self.state.rounds.values() if not attempt.lost]

    @cached_property
    def front(self) -> tuple[RoundEntry, ...]:
        """The Pareto front of verified rounds, best first."""
        by_key = {entry.key: entry for entry in self.rounds}
        return tuple(by_key[entry.round_attempt_id] for entry in self.state.front)

    @property
    def best(self) -> RoundEntry | None:
        """The first round of the front."""
        return self.front[0] if self.front else None

    @cached_property
    def best_verification(self) -> VerifyReport | None:
        """Verification report of the best round; None if there is none, or it cannot be read."""
        return _verification(self.layout, self.best.row) if self.best else None

    @cached_property
    def linked_anchors(self) -> frozenset[str]:
        """Anchors of the rounds that the page shows in full: targets of links."""
        return frozenset(entry.anchor for entry in self.rounds if entry.key in self.details)

    @cached_property
    def pending(self) -> tuple[PendingRound, ...]:
        """Attempts without a row, in the order they began."""
        attempts = History(self.layout).attempt_state().attempts.values()
        return tuple(
            PendingRound(attempt.round, _phase(attempt), attempt.planned.ideator.hypothesis if attempt.planned else "")
            for attempt in attempts
            if attempt.id not in self.state.rounds
        )

    @cached_property
    def running(self) -> bool:
        """Whether the run was in progress when this was first asked."""
        return is_running(self.layout)

    @cached_property
    def env(self) -> EnvSpec | None:
        """The run's env; None if its copy cannot be read."""
        try:
            return parse_env(atomic.read_bytes(self.layout.env).decode(), location=str(self.layout.env))
        except (OSError, ValueError, AutoqecError):
            return None

    @cached_property
    def on_sealed_shots(self) -> bool:
        """Whether rounds are verified on sealed blocks of recorded shots."""
        return self.env is not None and self.env.code.own_shots

    @property
    def terms(self) -> ComparisonTerms:
        """How text names the shots of verifications and what their gains are over."""
        return comparison_terms(sealed=self.on_sealed_shots)

    @cached_property
    def env_text(self) -> str:
        """The run's env as YAML; empty if it cannot be read."""
        return dump_config(self.env.dump()) if self.env else ""

    @cached_property
    def ledger(self) -> ModelCalls | None:
        """Calls of language models; None if none was called, or the ledger cannot be read."""
        return read_ledger(self.layout)

    @property
    def llm_usage(self) -> dict[str, Any] | None:
        """Calls, tokens and cost of language models, in all and by role; None if none was called."""
        if self.ledger is None:
            return None
        by_role = {role: totals.to_json() for role, totals in sorted(self.ledger.by_role.items())}
        return {**self.ledger.totals.to_json(), "by_role": by_role}

    @cached_property
    def trials(self) -> dict[str, list[Trial]] | None:
        """Trials by attempt id; None if they cannot be read."""
        return trials_by_attempt(self.layout)

    def trials_and_calls(self, attempt_id: str) -> list[str]:
        """Describe the trials of an attempt and its calls of language models, one line each."""
        lines = describe_trials((self.trials or {}).get(attempt_id, ()))
        usage = self.ledger.by_attempt.get(attempt_id) if self.ledger else None
        return lines if usage is None else [*lines, f"language models: {describe_usage(usage.to_json())}"]

    def verification(self, entry: RoundEntry) -> VerifyReport | None:
        """Verification report of a round, read from disk unless the page holds it already."""
        if entry.key in self.details:
            return self.details[entry.key].verification
        return _verification(self.layout, entry.row) if entry.row.verify_verdict else None

    def dump(self) -> dict[str, object]:
        """Return the object that `show --json` prints."""
        return {
            "run_id": self.info.run_id,
            "info": self.info.dump(),
            "rounds": [row.dump() for row in self.rows],
            "front": [entry.dump() for entry in self.state.front],
            "best": self.best_verification.dump() if self.best_verification else None,
            "trials": [trial.dump() for group in (self.trials or {}).values() for trial in group],
            "language_models": self.llm_usage,
            "proposed_by_model": proposed_by_model(self.finished_rows),
            "log": str(self.layout.log),
        }


def load(layout: RunLayout) -> RunReport:
    """Read a run.

    Raises:
        UsageError: There is no such run.
        ManualInterventionRequired: Its history is damaged.
    """
    history = History(layout)
    return RunReport(layout, history.info(), tuple(history.rows()), history.state())


def load_pages(layouts: Sequence[RunLayout]) -> list[RunReport]:
    """Read the runs of one page, with as many listed and detailed rounds as a page may hold.

    Raises:
        UsageError: There is no such run.
        ManualInterventionRequired: The history of one is damaged.
    """
    return [_with_details(load(layout), len(layouts)) for layout in layouts]


def _with_details(report: RunReport, n_runs: int) -> RunReport:
    ranked = sorted(report.rounds, key=lambda entry: (entry == report.best, *_importance(entry)), reverse=True)
    listed = {entry.key for entry in ranked[: MAX_LISTED_ROUNDS // n_runs]}
    detailed = ranked[: max(1, MAX_DETAILED_ROUNDS // n_runs)]
    reader = DetailsReader(report.layout, MAX_DIFF_CHARS // n_runs // max(1, len(detailed)))
    return replace(
        report,
        listed=tuple(entry for entry in report.rounds if entry.key in listed),
        details={
            # Also of a round whose row holds no verdict: an interrupted verification may have left its report.
            entry.key: reader.read(entry.row, _verification(report.layout, entry.row))
            for entry in detailed
        },
    )


def _importance(entry: RoundEntry) -> tuple[bool, bool, bool, int]:
    """Sort key: front, then other verified rounds, then other tested ones, then the latest."""
    verdict = entry.row.verify_verdict
    return entry.on_front, verdict == "VERIFIED", verdict is not None, entry.row.round


def verification_seconds(layout: RunLayout, row: HistoryRow) -> float:
    """Duration of a verification; 0 without one. Rows of version 1 do not hold it, but the report does."""
    if row.verify_verdict is None or row.verify_wallclock_s is not None:
        return row.verify_wallclock_s or 0.0
    report = _verification(layout, row)
    return report.judge_wallclock_s if report else 0.0


def _verification(layout: RunLayout, row: HistoryRow) -> VerifyReport | None:
    """Verification report of a round; None if there is none, or it cannot be read."""
    return load_contract(layout.round(row.round).report_json, VerifyReport)


def is_running(layout: RunLayout) -> bool:
    """Return whether the run is detached, or the process that holds its lock is alive on this machine."""
    return layout.detached.exists() or run_lock.owner_exists(layout.root)


def outcome(row: HistoryRow) -> str:
    """Return the verdict of a round; without one, its status or whether it was nominated."""
    if row.verify_verdict:
        return row.verify_verdict
    if row.status != "ok":
        return row.status
    return "nominated" if row.verdict == "candidate" else "not nominated"


def _anchors(run_id: str, rounds: Iterable[RoundState]) -> dict[str, str]:
    """Anchor of each attempt; a round number that occurs again gets a suffix."""
    seen: dict[int, int] = {}
    anchors = {}
    for attempt in rounds:
        number = attempt.row.round
        seen[number] = seen.get(number, 0) + 1
        suffix = f"-{seen[number]}" if seen[number] > 1 else ""
        anchors[attempt.attempt_id] = f"run-{run_id}-round-{number}{suffix}"
    return anchors


def _phase(attempt: Attempt) -> str:
    if attempt.registered_test:
        return "verification"
    if attempt.nominated:
        return "nominated"
    return "training and measurement" if attempt.planned else "proposal"


ADDED_BY_ESCAPING = 4  # about as many characters as HTML escaping adds to one of < > & ' "


@dataclass(frozen=True)
class RoundDetails:
    """Verification report, loss curve and diff of one round; diff_note: why the diff is missing or truncated."""

    verification: VerifyReport | None
    curve: tuple[Point, ...]
    diff: str
    diff_note: str


class DetailsReader:
    """Reads the details of a run's rounds; `diff_chars` bounds the escaped size of each diff."""

    def __init__(self, layout: RunLayout, diff_chars: int) -> None:
        self._layout, self._diff_chars = layout, diff_chars
        try:
            self._repo: Repo | None = Repo.discover(layout.repo_root)
        except UsageError:
            self._repo = None

    def read(self, row: HistoryRow, verification: VerifyReport | None) -> RoundDetails:
        """Details of the round that a row describes."""
        diff, note = self._diff(row)
        return RoundDetails(verification, curve(self._layout.round(row.round).train_log), diff, note)

    def _diff(self, row: HistoryRow) -> tuple[str, str]:
        """Changes to the editable modules since the (first) parent, and a note."""
        if row.commit_sha is None:
            return "", "This round has no commit."
        if self._repo is None:
            return "", "The repository of this run was not found."
        try:
            text = self._repo.diff_text(f"{row.commit_sha}^", row.commit_sha, [EDITABLE_MODULES])
        except AutoqecError:
            return "", "The commit of this round is not in this repository."
        text = paragraphs(text, 50 * self._diff_chars)
        if not text:
            return "", "No change to the editable modules: the parent's code and configuration were run again."
        return self._truncate(text, row.commit_sha)

    def _truncate(self, text: str, commit: str) -> tuple[str, str]:
        lines, size = text.split("\n"), 0
        for number, line in enumerate(lines):
            size += len(line) + 1 + ADDED_BY_ESCAPING * sum(line.count(char) for char in "<>&'\"")
            if size > self._diff_chars:
                note = f"The first {number} of {len(lines)} lines; all of them: git show {commit[:12]}"
                return "\n".join(lines[:number]), note
        return text, ""
