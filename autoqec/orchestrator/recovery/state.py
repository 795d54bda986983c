"""Data types of recovery: the inspected state of a run, and the actions of a plan."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from autoqec.contracts.history import AlphaSpent, HistoryRow, RunInfo
from autoqec.contracts.messages import AnalystResponse
from autoqec.contracts.provenance import Pointer
from autoqec.contracts.verdict import VerifyReport
from autoqec.store.layout import RunLayout
from autoqec.store.round_files import RoundFiles
from autoqec.store.run_state import Attempt

Kind = Literal[
    "pause",
    "heal",
    "restore_ref",
    "commit_pointer",
    "sweep",
    "remove_worktree",
    "move_ref",
    "copy_ref",
    "drop_ref",
    "pin",
    "append_row",
    "views",
]


@dataclass(frozen=True)
class BranchTip:
    """The commit that a branch points at. attempt: the commit's `Autoqec-Attempt` trailer, if it has one."""

    sha: str
    parents: tuple[str, ...] = ()
    attempt: str | None = None


@dataclass(frozen=True)
class OpenRound(RoundFiles):
    """The files of a round without a row.

    nomination: the response of the rule-based Analyst to `metrics`; None without metrics.
    """

    nomination: AnalystResponse | None = None


@dataclass(frozen=True)
class RunInspection:
    """The state of a run as found on disk. Branches have their full name (`exp/…`, `quarantine/…`).

    Attributes:
        attempts: By id, from attempts.jsonl.
        registered_tests: In the order of attempts.jsonl.
        rows: Of history.jsonl; row `i` is line `i + 1`.
        branches: The run's branches and where they point.
        pins: Attempt id -> pinned commit.
        pointers: For branches without a row, the file at their round's pointer path on the tip: a Pointer, or a
            message saying why it is invalid; absent if there is no such file.
        rounds: Complete files of open attempts' rounds, by round number.
        reports: Reports of verified rounds, by attempt id; None if missing or damaged.
        committed_pointers: Pointers of verified rounds on their pinned commits, by attempt id, as in `pointers`.
        jobs: Open attempts that have a job order for a cluster and the worktree that the job needs.
        missing: Recorded commits, the baseline's included, and tips of branches that git does not have.
        checked_out: Branches that are checked out in the main worktree, or in a linked one that is not a round's.
        broken_refs: Files of branches and pins that name no commit, by full ref name.
        worktrees: Checkouts that a dead process left.
        leftovers: Files and directories that a dead process left.
        torn: Files that end in an incomplete line.
        views_stale: Whether a view is missing or differs from the history.
        row_without_its_attempts: Line of the first row for which attempts.jsonl lost its then last line; None: no row.
        registered_test_lost: Whether attempts.jsonl lost the registered test that attempts.head names.
    """

    layout: RunLayout
    info: RunInfo
    attempts: Mapping[str, Attempt]
    rows: tuple[HistoryRow, ...]
    branches: Mapping[str, BranchTip]
    registered_tests: tuple[AlphaSpent, ...] = ()
    pins: Mapping[str, str] = field(default_factory=dict)
    pointers: Mapping[str, Pointer | str] = field(default_factory=dict)
    rounds: Mapping[int, OpenRound] = field(default_factory=dict)
    reports: Mapping[str, VerifyReport | None] = field(default_factory=dict)
    committed_pointers: Mapping[str, Pointer | str] = field(default_factory=dict)
    jobs: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()
    checked_out: frozenset[str] = frozenset()
    broken_refs: Mapping[str, Path] = field(default_factory=dict)
    worktrees: tuple[Path, ...] = ()
    leftovers: tuple[Path, ...] = ()
    torn: tuple[Path, ...] = ()
    views_stale: bool = True
    row_without_its_attempts: int | None = None
    registered_test_lost: bool = False


@dataclass(frozen=True)
class RecoveryAction:
    """One step of recovery. For refs, `branch` (or a pin) points at `sha`, and `to` is its new name."""

    kind: Kind
    why: str
    path: Path | None = None
    branch: str | None = None
    sha: str | None = None
    to: str | None = None
    row: HistoryRow | None = None
    hint: str | None = None

    def dump(self) -> dict[str, Any]:
        """Return the fields that are set, as JSON values."""
        fields = {
            "kind": self.kind,
            "why": self.why,
            "path": str(self.path) if self.path else None,
            "branch": self.branch,
            "sha": self.sha,
            "to": self.to,
            "row": self.row.dump() if self.row else None,
        }
        return {key: value for key, value in fields.items() if value is not None}

    def describe(self) -> str:
        """Return the action as one line of text."""
        message = self.branch or (str(self.path) if self.path else "")
        return " ".join(filter(None, [self.kind.replace("_", " "), message])) + f": {self.why}"
