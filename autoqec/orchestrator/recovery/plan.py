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
from autoqec.store.layout import RunLayout, quarantined, round_of_branch
from autoqec.store.run_state import Attempt, RoundState, fold

Kind = Literal["pause", "heal", "sweep", "remove_worktree", "move_ref", "drop_ref", "pin", "append_row", "views"]

# The same words whether recovery got through at once or was itself cut off.
_EMPTY = "the process died before the round's branch held anything"
_SET_ASIDE = "the process died before the round was judged and recorded"


@dataclass(frozen=True)
class Tip:
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
class State:
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
    branches: Mapping[str, Tip]
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
class Action:
    """One thing to do. Refs: `branch` (or a pin) at `sha`, `to` where it moves."""

    kind: Kind
    why: str
    path: Path | None = None
    branch: str | None = None
    sha: str | None = None
    to: str | None = None
    row: HistoryRow | None = None
    mend: str | None = None

    def dump(self) -> dict[str, Any]:
        """JSON-able, without what is absent."""
        found = {
            "kind": self.kind,
            "why": self.why,
            "path": str(self.path) if self.path else None,
            "branch": self.branch,
            "sha": self.sha,
            "to": self.to,
            "row": self.row.dump() if self.row else None,
        }
        return {key: value for key, value in found.items() if value is not None}


def plan(state: State) -> list[Action]:
    """What recovery has to do, in order. A `pause` stands alone: only a person can decide, nothing is touched."""
    standing = [*fold(state.rows).rounds.values()]
    pauses = [*_lost_fronts(state, standing), *_strangers(state, standing)]
    unfinished = _open(state, standing)
    dead = [attempt for attempt in unfinished if not _is_with_its_job(state, attempt)]
    closings = [action for attempt in dead for action in _close(state, attempt)]
    pauses += [action for action in closings if action.kind == "pause"]
    if pauses:
        return pauses
    actions = [Action("heal", "its last line is torn", path=path) for path in state.torn]
    kept = in_use(state)
    leftovers = [path for path in state.leftovers if kept.isdisjoint(path.parents)]
    actions += [Action("sweep", "left by a process that died", path=path) for path in leftovers]
    actions += [Action("remove_worktree", "its round is over", path=p) for p in state.worktrees if p not in kept]
    actions += closings
    actions += [action for one in standing for action in _keep(state, one)]
    actions += _unrecorded(state, standing)
    # Refs first, all in one transaction; a row then speaks of what is already so.
    refs = [action for action in actions if action.kind in ("move_ref", "drop_ref", "pin")]
    files = [action for action in actions if action.kind in ("heal", "sweep", "remove_worktree")]
    rows = [action for action in actions if action.kind == "append_row"]
    pins = [pin for action in rows if (pin := _pin_of(state, action.row)) is not None]
    views = [Action("views", "they follow from history")] if rows or state.views_stale else []
    return [*files, *refs, *pins, *rows, *views]


def _open(state: State, standing: list[RoundState]) -> list[Attempt]:
    closed = {one.attempt_id for one in standing}
    return [attempt for attempt in state.attempts.values() if attempt.id not in closed]


def _is_with_its_job(state: State, attempt: Attempt) -> bool:
    """Whether a cluster's job measures the round, or has: its order and branch are as they were when it began."""
    planned = attempt.planned
    if planned is None or attempt.id not in state.jobs or planned.branch in state.pointers:
        return False
    tip = state.branches.get(planned.branch)
    return tip is not None and tip.attempt == attempt.id and tip.sha != planned.base_sha


def in_use(state: State) -> set[Path]:
    """Worktrees and round directories of rounds that a cluster's job is at: nobody else's to touch."""
    with_jobs = (one.planned for one in state.attempts.values() if _is_with_its_job(state, one))
    planned = [one for one in with_jobs if one is not None]
    worktrees = {state.layout.worktree(one.branch) for one in planned}
    return worktrees | {state.layout.round(one.round).dir for one in planned}


def _close(state: State, attempt: Attempt) -> Iterator[Action]:
    """One row, and a branch that bears it out."""
    planned = attempt.planned
    if planned is None:
        yield _row(round_recorder.lost_row(attempt, why="the process died before anything was planned"))
        return
    branch, shelf = planned.branch, quarantined(planned.branch)
    tip, shelved = state.branches.get(branch), state.branches.get(shelf)
    if tip is not None and shelved is not None and tip.sha == shelved.sha:
        # git makes the new name before it drops the old one; it was cut off between the two.
        yield Action("drop_ref", "it was being set aside", branch=branch, sha=tip.sha)
        yield from _shelved(state, attempt, shelf, shelved)
    elif tip is not None and shelved is not None:
        mend = f"git branch -m {shelf} a-name-of-your-own; then --resume"
        yield Action("pause", f"both {branch} and {shelf} exist, so it is not known which is the round's", mend=mend)
    elif shelved is not None:
        yield from _shelved(state, attempt, shelf, shelved)
    elif tip is None:
        yield _row(round_recorder.lost_row(attempt, why=_EMPTY))
    elif tip.sha == planned.base_sha:
        yield Action("drop_ref", f"{branch} holds nothing of its own", branch=branch, sha=tip.sha)
        yield _row(round_recorder.lost_row(attempt, why=_EMPTY))
    else:
        yield from _close_branch(state, attempt, branch, tip)


def _shelved(state: State, attempt: Attempt, shelf: str, tip: Tip) -> Iterator[Action]:
    sha = _code_commit(state.pointers.get(shelf), tip)
    yield _row(round_recorder.lost_row(attempt, branch=shelf, commit_sha=sha, why=_SET_ASIDE))


def _close_branch(state: State, attempt: Attempt, branch: str, tip: Tip) -> Iterator[Action]:
    pointer = state.pointers.get(branch)
    fault = _pointer_fault(state, attempt, branch, pointer)
    if fault is not None:
        yield Action("pause", fault, branch=branch, mend=f"git log {branch}; move or delete that branch, then --resume")
        return
    finished = _finish(state, attempt, pointer, tip) if isinstance(pointer, Pointer) else None
    if finished is not None:
        yield _row(finished)
        return
    shelf = quarantined(branch)
    sha = _code_commit(pointer, tip)
    yield Action("move_ref", _SET_ASIDE, branch=branch, sha=tip.sha, to=shelf)
    yield _row(round_recorder.lost_row(attempt, branch=shelf, commit_sha=sha, why=_SET_ASIDE))


def _pointer_fault(state: State, attempt: Attempt, branch: str, pointer: Pointer | str | None) -> str | None:
    """Why the pointer found on `branch` is not this attempt's; None where it is, or where there is none."""
    if pointer is None:
        return None
    if isinstance(pointer, str):
        return f"the pointer on {branch} cannot be read: {pointer}"
    told = (pointer.run_id, pointer.round_idx, pointer.branch, pointer.round_attempt_id)
    if told != (state.info.run_id, attempt.round, branch, attempt.id):
        return f"the pointer on {branch} speaks of another round: run {told[0]}, round {told[1]}, attempt {told[3]}"
    return None


def _finish(state: State, attempt: Attempt, pointer: Pointer, tip: Tip) -> HistoryRow | None:
    """The row of a round that had come to its end but for the row; None where something is missing."""
    files = state.rounds.get(attempt.round, RoundFiles())
    metrics, report = files.metrics, files.report
    if metrics is None or attempt.nominated is None or tip.parents[:1] != (pointer.commit_sha,):
        return None
    if attempt.nominated.analyst.verdict == "ignore":
        report = None
    elif report is None or not _speaks_of(report, attempt, pointer):
        return None
    return round_recorder.build_row(
        attempt, metrics, pointer=pointer, report=report, config=files.config, sandbox=files.sandbox
    )


def _speaks_of(report: VerifyReport, attempt: Attempt, pointer: Pointer) -> bool:
    if attempt.charged is None or report.artifact_sha256 != attempt.charged.artifact_sha256:
        return False
    told = (report.run_id, report.round, report.round_attempt_id, report.branch, report.commit_sha)
    return told == (pointer.run_id, attempt.round, attempt.id, pointer.branch, pointer.commit_sha)


def _code_commit(pointer: Pointer | str | None, tip: Tip) -> str:
    return pointer.commit_sha if isinstance(pointer, Pointer) and tip.parents[:1] == (pointer.commit_sha,) else tip.sha


def _row(row: HistoryRow) -> Action:
    return Action("append_row", f"round {row.round}: {row.status}", row=row)


def _keep(state: State, one: RoundState) -> Iterator[Action]:
    """A recorded round: its branch stands, or a follow-up says that it does not; its commit is pinned."""
    row = one.row
    if row.branch is None or row.commit_sha is None:
        return
    other = _counterpart(row.branch)
    tip, twin = state.branches.get(row.branch), state.branches.get(other)
    if tip is not None and twin is not None and tip.sha == twin.sha:
        yield Action("drop_ref", f"it is {row.branch} by now", branch=other, sha=twin.sha)
    if tip is None and not one.gone:
        if twin is not None:
            yield Action("move_ref", "history says so", branch=other, sha=twin.sha, to=row.branch)
            tip = twin
        else:
            yield _row(round_recorder.deleted_row(row, one.attempt_id))
    if one.gone and row.branch.startswith("quarantine/"):
        return  # set aside, and then deleted: nothing stands on it
    if one.attempt_id not in state.pins and row.commit_sha not in state.missing:
        sha = tip.sha if tip is not None and tip.parents[:1] == (row.commit_sha,) else row.commit_sha
        yield _pin(state, one.attempt_id, sha)


def _pin_of(state: State, row: HistoryRow | None) -> Action | None:
    """The pin of a round that this very plan records."""
    if row is None or row.round_attempt_id is None or row.commit_sha is None or row.branch is None:
        return None
    if row.round_attempt_id in state.pins:
        return None
    tip = state.branches.get(row.branch) or state.branches.get(_counterpart(row.branch))
    return _pin(state, row.round_attempt_id, tip.sha if tip else row.commit_sha)


def _pin(state: State, attempt_id: str, sha: str) -> Action:
    return Action("pin", "a recorded commit must outlive its branch", branch=state.layout.pin(attempt_id), sha=sha)


def _counterpart(branch: str) -> str:
    if branch.startswith("quarantine/"):
        return "exp/" + branch.removeprefix("quarantine/")
    return quarantined(branch)


def _lost_fronts(state: State, standing: list[RoundState]) -> Iterator[Action]:
    for one in standing:
        if one.row.verify_verdict == "VERIFIED" and one.row.commit_sha in state.missing:
            what = f"git no longer has commit {one.row.commit_sha} of the verified round {one.row.round}"
            mend = f"fetch it back (`git fetch BACKUP {one.row.branch}`), then --resume"
            yield Action("pause", what, sha=one.row.commit_sha, mend=mend)


def _known(state: State, standing: list[RoundState]) -> set[str]:
    planned = {attempt.planned.branch for attempt in state.attempts.values() if attempt.planned}
    named = planned | {one.row.branch for one in standing if one.row.branch}
    return named | {_counterpart(branch) for branch in named}


def _strangers(state: State, standing: list[RoundState]) -> Iterator[Action]:
    """Branches under the run's names that nothing on disk accounts for, and whose pointer names no attempt."""
    known = _known(state, standing)
    closed = {one.attempt_id for one in standing}
    for branch in state.branches:
        if branch in known or _own_pointer(state, branch, closed) is not None:
            continue
        what = f"branch {branch} lies under this run's names, but no attempt of the run made it"
        yield Action("pause", what, branch=branch, mend=f"git branch -m {branch} a-name-of-your-own; then --resume")


def _unrecorded(state: State, standing: list[RoundState]) -> Iterator[Action]:
    """Branches whose attempt line is lost while their pointer tells the attempt: set aside, one row each."""
    known = _known(state, standing)
    closed = {one.attempt_id for one in standing}
    for branch, tip in state.branches.items():
        pointer = None if branch in known else _own_pointer(state, branch, closed)
        if pointer is None:
            continue
        shelf = branch if branch.startswith("quarantine/") else quarantined(branch)
        if shelf != branch:
            yield Action("move_ref", "its attempt's line is lost", branch=branch, sha=tip.sha, to=shelf)
        yield _row(round_recorder.unrecorded_row(pointer, branch=shelf))


def _own_pointer(state: State, branch: str, closed: set[str]) -> Pointer | None:
    """The pointer of a branch that no line accounts for, where it fits the place it was found at."""
    pointer = state.pointers.get(branch)
    origin = branch if branch.startswith("exp/") else _counterpart(branch)
    if not isinstance(pointer, Pointer) or pointer.round_attempt_id in closed | set(state.attempts):
        return None
    told = (pointer.run_id, pointer.branch, pointer.round_idx, state.branches[branch].parents[:1])
    return pointer if told == (state.info.run_id, origin, round_of_branch(origin), (pointer.commit_sha,)) else None
