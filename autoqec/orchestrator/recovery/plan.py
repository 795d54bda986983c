"""Recovery: what a run's disk and git say -> what has to be done, as a pure function.

Gathering the state is `survey.gather`'s, doing it is `recovery.apply`'s. Every plan, cut off anywhere, is followed by
one that does the rest: the state it leaves is one of those below.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from autoqec.contracts.history import HistoryRow, RunInfo
from autoqec.contracts.provenance import Pointer
from autoqec.contracts.round import RoundMetrics
from autoqec.contracts.verdict import VerifyReport
from autoqec.orchestrator import round_recorder
from autoqec.store.layout import RunLayout, branch_round, quarantine_branch_of
from autoqec.store.run_state import Attempt, RoundState, fold

Kind = Literal["pause", "heal", "sweep", "remove_worktree", "move_ref", "drop_ref", "pin", "append_row", "views"]

# The same words whether recovery got through at once or was itself cut off.
_NOTHING_COMMITTED = "the process died before the round's branch held anything"
_NOT_RECORDED = "the process died before the round was judged and recorded"


@dataclass(frozen=True)
class BranchTip:
    """Where a branch points. attempt: the `Autoqec-Attempt` trailer of that commit, if it has one."""

    sha: str
    parents: tuple[str, ...] = ()
    attempt: str | None = None


@dataclass(frozen=True)
class RoundFiles:
    """What one round directory holds that is whole; None: missing or torn."""

    metrics: RoundMetrics | None = None
    report: VerifyReport | None = None
    config: dict[str, Any] | None = None
    sandbox: str | None = None


@dataclass(frozen=True)
class RunInspection:
    """A run as it was found. Branches by full name (`exp/…`, `quarantine/…`).

    pointers: of branches without a row, what stands at their round's pointer path on the tip: a Pointer, or a
    sentence saying why it is none; absent: no such file. missing: recorded commits that git no longer has.
    worktrees, leftovers: directories and files that a dead owner left behind. torn: files that end in half a line.
    jobs: open attempts with an order for a cluster's job and the worktree that it needs.
    """

    layout: RunLayout
    info: RunInfo
    attempts: Mapping[str, Attempt]
    rows: tuple[HistoryRow, ...]
    branches: Mapping[str, BranchTip]
    pins: Mapping[str, str] = field(default_factory=dict)
    pointers: Mapping[str, Pointer | str] = field(default_factory=dict)
    rounds: Mapping[int, RoundFiles] = field(default_factory=dict)
    jobs: frozenset[str] = frozenset()
    missing: frozenset[str] = frozenset()
    worktrees: tuple[Path, ...] = ()
    leftovers: tuple[Path, ...] = ()
    torn: tuple[Path, ...] = ()
    views_stale: bool = True


@dataclass(frozen=True)
class RecoveryAction:
    """One thing to do. Refs: `branch` (or a pin) at `sha`, `to` where it moves."""

    kind: Kind
    why: str
    path: Path | None = None
    branch: str | None = None
    sha: str | None = None
    to: str | None = None
    row: HistoryRow | None = None
    hint: str | None = None

    def dump(self) -> dict[str, Any]:
        """JSON-able, without what is absent."""
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


def plan_recovery(state: RunInspection) -> list[RecoveryAction]:
    """What recovery has to do, in order. A `pause` stands alone: only a person can decide, nothing is touched."""
    standing = [*fold(state.rows).rounds.values()]
    pauses = [*_missing_verified_commits(state, standing), *_unknown_branches(state, standing)]
    unfinished = _open_attempts(state, standing)
    aborted = [attempt for attempt in unfinished if not _is_on_cluster(state, attempt)]
    closing_actions = [action for attempt in aborted for action in _close_attempt(state, attempt)]
    pauses += [action for action in closing_actions if action.kind == "pause"]
    if pauses:
        return pauses
    actions = [RecoveryAction("heal", "its last line is torn", path=path) for path in state.torn]
    used_paths = paths_in_use(state)
    leftovers = [path for path in state.leftovers if used_paths.isdisjoint(path.parents)]
    actions += [RecoveryAction("sweep", "left by a process that died", path=path) for path in leftovers]
    actions += [
        RecoveryAction("remove_worktree", "its round is over", path=p) for p in state.worktrees if p not in used_paths
    ]
    actions += closing_actions
    actions += [action for one in standing for action in _maintain_recorded(state, one)]
    actions += _record_unlogged_branches(state, standing)
    # Refs first, all in one transaction; a row then speaks of what is already so.
    refs = [action for action in actions if action.kind in ("move_ref", "drop_ref", "pin")]
    files = [action for action in actions if action.kind in ("heal", "sweep", "remove_worktree")]
    rows = [action for action in actions if action.kind == "append_row"]
    pins = [pin for action in rows if (pin := _pin_of(state, action.row)) is not None]
    views = [RecoveryAction("views", "they follow from history")] if rows or state.views_stale else []
    return [*files, *refs, *pins, *rows, *views]


def _open_attempts(state: RunInspection, standing: list[RoundState]) -> list[Attempt]:
    closed = {one.attempt_id for one in standing}
    return [attempt for attempt in state.attempts.values() if attempt.id not in closed]


def _is_on_cluster(state: RunInspection, attempt: Attempt) -> bool:
    """Whether a cluster's job measures the round, or has: its order and branch are as they were when it began."""
    planned = attempt.planned
    if planned is None or attempt.id not in state.jobs or planned.branch in state.pointers:
        return False
    tip = state.branches.get(planned.branch)
    return tip is not None and tip.attempt == attempt.id and tip.sha != planned.base_sha


def paths_in_use(state: RunInspection) -> set[Path]:
    """Worktrees and round directories of rounds that a cluster's job is at: nobody else's to touch."""
    with_jobs = (one.planned for one in state.attempts.values() if _is_on_cluster(state, one))
    planned = [one for one in with_jobs if one is not None]
    worktrees = {state.layout.worktree(one.branch) for one in planned}
    return worktrees | {state.layout.round(one.round).dir for one in planned}


def _close_attempt(state: RunInspection, attempt: Attempt) -> Iterator[RecoveryAction]:
    """One row, and a branch that bears it out."""
    planned = attempt.planned
    if planned is None:
        yield _row(round_recorder.aborted_row(attempt, why="the process died before anything was planned"))
        return
    branch, quarantine_branch = planned.branch, quarantine_branch_of(planned.branch)
    tip, quarantine_tip = state.branches.get(branch), state.branches.get(quarantine_branch)
    if tip is not None and quarantine_tip is not None and tip.sha == quarantine_tip.sha:
        # git makes the new name before it drops the old one; it was cut off between the two.
        yield RecoveryAction("drop_ref", "it was being set aside", branch=branch, sha=tip.sha)
        yield from _close_quarantined(state, attempt, quarantine_branch, quarantine_tip)
    elif tip is not None and quarantine_tip is not None:
        hint = f"git branch -m {quarantine_branch} a-name-of-your-own; then --resume"
        yield RecoveryAction(
            "pause", f"both {branch} and {quarantine_branch} exist, so it is not known which is the round's", hint=hint
        )
    elif quarantine_tip is not None:
        yield from _close_quarantined(state, attempt, quarantine_branch, quarantine_tip)
    elif tip is None:
        yield _row(round_recorder.aborted_row(attempt, why=_NOTHING_COMMITTED))
    elif tip.sha == planned.base_sha:
        yield RecoveryAction("drop_ref", f"{branch} holds nothing of its own", branch=branch, sha=tip.sha)
        yield _row(round_recorder.aborted_row(attempt, why=_NOTHING_COMMITTED))
    else:
        yield from _close_branch(state, attempt, branch, tip)


def _close_quarantined(
    state: RunInspection, attempt: Attempt, quarantine_branch: str, tip: BranchTip
) -> Iterator[RecoveryAction]:
    sha = _code_commit(state.pointers.get(quarantine_branch), tip)
    yield _row(round_recorder.aborted_row(attempt, branch=quarantine_branch, commit_sha=sha, why=_NOT_RECORDED))


def _close_branch(state: RunInspection, attempt: Attempt, branch: str, tip: BranchTip) -> Iterator[RecoveryAction]:
    pointer = state.pointers.get(branch)
    problem = _pointer_problem(state, attempt, branch, pointer)
    if problem is not None:
        yield RecoveryAction(
            "pause", problem, branch=branch, hint=f"git log {branch}; move or delete that branch, then --resume"
        )
        return
    finished = _finish(state, attempt, pointer, tip) if isinstance(pointer, Pointer) else None
    if finished is not None:
        yield _row(finished)
        return
    quarantine_branch = quarantine_branch_of(branch)
    sha = _code_commit(pointer, tip)
    yield RecoveryAction("move_ref", _NOT_RECORDED, branch=branch, sha=tip.sha, to=quarantine_branch)
    yield _row(round_recorder.aborted_row(attempt, branch=quarantine_branch, commit_sha=sha, why=_NOT_RECORDED))


def _pointer_problem(state: RunInspection, attempt: Attempt, branch: str, pointer: Pointer | str | None) -> str | None:
    """Why the pointer found on `branch` is not this attempt's; None where it is, or where there is none."""
    if pointer is None:
        return None
    if isinstance(pointer, str):
        return f"the pointer on {branch} cannot be read: {pointer}"
    identity = (pointer.run_id, pointer.round_idx, pointer.branch, pointer.round_attempt_id)
    if identity != (state.info.run_id, attempt.round, branch, attempt.id):
        return (
            f"the pointer on {branch} speaks of another round: run {identity[0]}, round {identity[1]}, "
            f"attempt {identity[3]}"
        )
    return None


def _finish(state: RunInspection, attempt: Attempt, pointer: Pointer, tip: BranchTip) -> HistoryRow | None:
    """The row of a round that had come to its end but for the row; None where something is missing."""
    files = state.rounds.get(attempt.round, RoundFiles())
    metrics, report = files.metrics, files.report
    if metrics is None or attempt.nominated is None or tip.parents[:1] != (pointer.commit_sha,):
        return None
    if attempt.nominated.analyst.verdict == "ignore":
        report = None
    elif report is None or not _report_matches(report, attempt, pointer):
        return None
    return round_recorder.build_row(
        attempt, metrics, pointer=pointer, report=report, config=files.config, sandbox=files.sandbox
    )


def _report_matches(report: VerifyReport, attempt: Attempt, pointer: Pointer) -> bool:
    if attempt.charged is None or report.artifact_sha256 != attempt.charged.artifact_sha256:
        return False
    identity = (report.run_id, report.round, report.round_attempt_id, report.branch, report.commit_sha)
    return identity == (pointer.run_id, attempt.round, attempt.id, pointer.branch, pointer.commit_sha)


def _code_commit(pointer: Pointer | str | None, tip: BranchTip) -> str:
    return pointer.commit_sha if isinstance(pointer, Pointer) and tip.parents[:1] == (pointer.commit_sha,) else tip.sha


def _row(row: HistoryRow) -> RecoveryAction:
    return RecoveryAction("append_row", f"round {row.round}: {row.status}", row=row)


def _maintain_recorded(state: RunInspection, one: RoundState) -> Iterator[RecoveryAction]:
    """A recorded round: its branch stands, or a follow-up says that it does not; its commit is pinned."""
    row = one.row
    if row.branch is None or row.commit_sha is None:
        return
    other = _counterpart(row.branch)
    tip, counterpart_tip = state.branches.get(row.branch), state.branches.get(other)
    if tip is not None and counterpart_tip is not None and tip.sha == counterpart_tip.sha:
        yield RecoveryAction("drop_ref", f"it is {row.branch} by now", branch=other, sha=counterpart_tip.sha)
    if tip is None and not one.gone:
        if counterpart_tip is not None:
            yield RecoveryAction("move_ref", "history says so", branch=other, sha=counterpart_tip.sha, to=row.branch)
            tip = counterpart_tip
        else:
            yield _row(round_recorder.deleted_row(row, one.attempt_id))
    if one.gone and row.branch.startswith("quarantine/"):
        return  # set aside, and then deleted: nothing stands on it
    if one.attempt_id not in state.pins and row.commit_sha not in state.missing:
        sha = tip.sha if tip is not None and tip.parents[:1] == (row.commit_sha,) else row.commit_sha
        yield _pin(state, one.attempt_id, sha)


def _pin_of(state: RunInspection, row: HistoryRow | None) -> RecoveryAction | None:
    """The pin of a round that this very plan records."""
    if row is None or row.round_attempt_id is None or row.commit_sha is None or row.branch is None:
        return None
    if row.round_attempt_id in state.pins:
        return None
    tip = state.branches.get(row.branch) or state.branches.get(_counterpart(row.branch))
    return _pin(state, row.round_attempt_id, tip.sha if tip else row.commit_sha)


def _pin(state: RunInspection, attempt_id: str, sha: str) -> RecoveryAction:
    return RecoveryAction(
        "pin", "a recorded commit must outlive its branch", branch=state.layout.pin(attempt_id), sha=sha
    )


def _counterpart(branch: str) -> str:
    if branch.startswith("quarantine/"):
        return "exp/" + branch.removeprefix("quarantine/")
    return quarantine_branch_of(branch)


def _missing_verified_commits(state: RunInspection, standing: list[RoundState]) -> Iterator[RecoveryAction]:
    for one in standing:
        if one.row.verify_verdict == "VERIFIED" and one.row.commit_sha in state.missing:
            message = f"git no longer has commit {one.row.commit_sha} of the verified round {one.row.round}"
            hint = f"fetch it back (`git fetch BACKUP {one.row.branch}`), then --resume"
            yield RecoveryAction("pause", message, sha=one.row.commit_sha, hint=hint)


def _known_branches(state: RunInspection, standing: list[RoundState]) -> set[str]:
    planned = {attempt.planned.branch for attempt in state.attempts.values() if attempt.planned}
    named = planned | {one.row.branch for one in standing if one.row.branch}
    return named | {_counterpart(branch) for branch in named}


def _unknown_branches(state: RunInspection, standing: list[RoundState]) -> Iterator[RecoveryAction]:
    """Branches under the run's names that nothing on disk accounts for, and whose pointer names no attempt."""
    known_branches = _known_branches(state, standing)
    closed = {one.attempt_id for one in standing}
    for branch in state.branches:
        if branch in known_branches or _matching_pointer(state, branch, closed) is not None:
            continue
        message = f"branch {branch} lies under this run's names, but no attempt of the run made it"
        yield RecoveryAction(
            "pause", message, branch=branch, hint=f"git branch -m {branch} a-name-of-your-own; then --resume"
        )


def _record_unlogged_branches(state: RunInspection, standing: list[RoundState]) -> Iterator[RecoveryAction]:
    """Branches whose attempt line is lost while their pointer tells the attempt: set aside, one row each."""
    known_branches = _known_branches(state, standing)
    closed = {one.attempt_id for one in standing}
    for branch, tip in state.branches.items():
        pointer = None if branch in known_branches else _matching_pointer(state, branch, closed)
        if pointer is None:
            continue
        quarantine_branch = branch if branch.startswith("quarantine/") else quarantine_branch_of(branch)
        if quarantine_branch != branch:
            yield RecoveryAction(
                "move_ref", "its attempt's line is lost", branch=branch, sha=tip.sha, to=quarantine_branch
            )
        yield _row(round_recorder.unrecorded_row(pointer, branch=quarantine_branch))


def _matching_pointer(state: RunInspection, branch: str, closed: set[str]) -> Pointer | None:
    """The pointer of a branch that no line accounts for, where it fits the place it was found at."""
    pointer = state.pointers.get(branch)
    origin = branch if branch.startswith("exp/") else _counterpart(branch)
    if not isinstance(pointer, Pointer) or pointer.round_attempt_id in closed | set(state.attempts):
        return None
    identity = (pointer.run_id, pointer.branch, pointer.round_idx, state.branches[branch].parents[:1])
    return pointer if identity == (state.info.run_id, origin, branch_round(origin), (pointer.commit_sha,)) else None
