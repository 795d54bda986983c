"""Recovery plan: a pure function from the inspected state of a run to the actions that repair it.

`inspect.inspect_run` reads the state, `apply.apply_plan` carries out the plan. An interrupted plan leaves one of the
states handled below, so the next plan completes it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from autoqec.contracts.history import HistoryRow, Nominated
from autoqec.contracts.provenance import Pointer
from autoqec.contracts.verdict import VerifyReport
from autoqec.orchestrator import round_recorder
from autoqec.orchestrator.recovery.consistency import find_contradictions
from autoqec.orchestrator.recovery.state import BranchTip, Kind, OpenRound, RecoveryAction, RunInspection
from autoqec.store.layout import branch_round, quarantine_branch_of, round_branch_of
from autoqec.store.run_state import Attempt, RoundState, fold

# Constants, so that an interrupted and repeated recovery writes the same text.
_NOTHING_COMMITTED = "the process died before the round's branch had a commit of its own"
_NOT_MEASURED = "the process died before the round was measured"
_UNFINISHED_RENAME = "its move to quarantine was interrupted"


def plan_recovery(state: RunInspection) -> list[RecoveryAction]:
    """Return the actions of recovery, in order.

    A plan with a `pause` contains no other kind of action: the user has to decide, and nothing is changed. Actions of
    kind `commit_pointer` are carried out first, and the rest is planned again after them.
    """
    recorded = [*fold(state.rows).rounds.values()]
    pauses = [*find_contradictions(state, recorded), *_unknown_branches(state, recorded)]
    aborted = [attempt for attempt in _open_attempts(state, recorded) if not _is_on_cluster(state, attempt)]
    closing = [action for attempt in aborted for action in _close_attempt(state, attempt)]
    broken = list(_broken_refs(state, recorded))
    pauses += [action for action in (*closing, *broken) if action.kind == "pause"]
    if pauses:
        return pauses
    actions = [RecoveryAction("heal", "its last line is incomplete", path=path) for path in state.torn]
    used_paths = paths_in_use(state)
    leftovers = [path for path in state.leftovers if used_paths.isdisjoint(path.parents)]
    actions += [RecoveryAction("sweep", "left by a process that died", path=path) for path in leftovers]
    actions += [
        RecoveryAction("remove_worktree", "its round has ended", path=p) for p in state.worktrees if p not in used_paths
    ]
    restored = {action.branch for action in broken if action.kind == "restore_ref"}
    actions += [*broken, *closing]
    actions += [action for found in recorded if found.branch not in restored for action in _maintain(state, found)]
    actions += _record_unlogged_branches(state, recorded)
    return _in_order(state, actions)


def _in_order(state: RunInspection, actions: list[RecoveryAction]) -> list[RecoveryAction]:
    """Order the actions: files, then refs in one transaction, then rows, which describe the new state, then views."""
    pointers = [action for action in actions if action.kind == "commit_pointer"]
    files = [action for action in actions if action.kind in ("heal", "sweep", "remove_worktree")]
    refs = [action for action in actions if action.kind in ("restore_ref", "move_ref", "copy_ref", "drop_ref", "pin")]
    rows = [action for action in actions if action.kind == "append_row"]
    pins = [pin for action in rows if (pin := _pin_of(state, action.row)) is not None]
    views = [RecoveryAction("views", "they differ from the history")] if rows or state.views_stale else []
    return [*pointers, *files, *refs, *pins, *rows, *views]


def _broken_refs(state: RunInspection, recorded: list[RoundState]) -> Iterator[RecoveryAction]:
    """Restore refs whose file names no commit, as after a power failure, from the pin; they do not count as deleted."""
    by_branch = {found.branch: found for found in recorded if found.branch is not None}
    planned = {attempt.planned.branch for attempt in _open_attempts(state, recorded) if attempt.planned}
    for ref, path in state.broken_refs.items():
        branch = ref.removeprefix("refs/heads/")
        found = by_branch.get(branch)
        pin = state.pins.get(found.attempt_id) if found is not None else None
        if branch in planned or (found is not None and pin is None):
            hint = f"write the commit of that branch to {path} (`git reflog`, `git fsck`), or delete the file"
            yield RecoveryAction("pause", f"{path} names no commit, and its round has no pin", hint=hint)
            continue
        yield RecoveryAction("sweep", "the ref's file names no commit", path=path)
        if pin is not None:
            yield RecoveryAction("restore_ref", "its file was damaged; the pin has the commit", branch=branch, sha=pin)


def _open_attempts(state: RunInspection, recorded: list[RoundState]) -> list[Attempt]:
    closed = {found.attempt_id for found in recorded}
    return [attempt for attempt in state.attempts.values() if attempt.id not in closed]


def _is_on_cluster(state: RunInspection, attempt: Attempt) -> bool:
    """Return whether a job of a cluster measures the round: order and branch are unchanged since it was submitted."""
    planned = attempt.planned
    if planned is None or attempt.id not in state.jobs or planned.branch in state.pointers:
        return False
    tip = state.branches.get(planned.branch)
    return tip is not None and tip.attempt == attempt.id and tip.sha != planned.base_sha


def paths_in_use(state: RunInspection) -> set[Path]:
    """Return the worktrees and round directories that jobs of a cluster are using and recovery must not change."""
    with_jobs = (attempt.planned for attempt in state.attempts.values() if _is_on_cluster(state, attempt))
    planned = [plan for plan in with_jobs if plan is not None]
    worktrees = {state.layout.worktree(plan.branch) for plan in planned}
    return worktrees | {state.layout.round(plan.round).dir for plan in planned}


def _close_attempt(state: RunInspection, attempt: Attempt) -> Iterator[RecoveryAction]:
    """Close an unfinished attempt with one row and a branch that matches it."""
    planned = attempt.planned
    if planned is None:
        yield _row(round_recorder.aborted_row(attempt, why="the process died before anything was planned"))
        return
    branch, quarantine_branch = planned.branch, quarantine_branch_of(planned.branch)
    tip, quarantine_tip = state.branches.get(branch), state.branches.get(quarantine_branch)
    if tip is not None and quarantine_tip is not None and tip.sha == quarantine_tip.sha:
        # git creates the new name before it deletes the old one, and was interrupted in between.
        yield from _drop(state, branch, tip.sha, _UNFINISHED_RENAME)
        yield from _close_quarantined(state, attempt, quarantine_branch, quarantine_tip)
    elif tip is not None and quarantine_tip is not None:
        hint = f"git branch -m {quarantine_branch} a-name-of-your-own; then --resume"
        message = f"both {branch} and {quarantine_branch} exist, so the branch of the round is ambiguous"
        yield RecoveryAction("pause", message, hint=hint)
    elif quarantine_tip is not None:
        yield from _close_quarantined(state, attempt, quarantine_branch, quarantine_tip)
    elif tip is None:
        yield _row(round_recorder.aborted_row(attempt, why=_NOTHING_COMMITTED))
    elif tip.sha == planned.base_sha:
        yield from _drop(state, branch, tip.sha, f"{branch} has no commit of its own")
        yield _row(round_recorder.aborted_row(attempt, why=_NOTHING_COMMITTED))
    else:
        yield from _close_branch(state, attempt, branch, tip)


def _drop(state: RunInspection, branch: str, sha: str, why: str) -> Iterator[RecoveryAction]:
    """Delete a branch, unless someone has it checked out: a later recovery deletes it then."""
    if branch not in state.checked_out:
        yield RecoveryAction("drop_ref", why, branch=branch, sha=sha)


def _move(state: RunInspection, branch: str, sha: str, to: str, why: str) -> RecoveryAction:
    """Rename a branch; one that is checked out keeps its name too, until it no longer is."""
    kind: Kind = "copy_ref" if branch in state.checked_out else "move_ref"
    return RecoveryAction(kind, why, branch=branch, sha=sha, to=to)


def _close_quarantined(
    state: RunInspection, attempt: Attempt, quarantine_branch: str, tip: BranchTip
) -> Iterator[RecoveryAction]:
    sha = _code_commit(state.pointers.get(quarantine_branch), tip)
    yield _row(round_recorder.aborted_row(attempt, branch=quarantine_branch, commit_sha=sha, why=_NOT_MEASURED))


def _close_branch(state: RunInspection, attempt: Attempt, branch: str, tip: BranchTip) -> Iterator[RecoveryAction]:
    pointer = state.pointers.get(branch)
    problem = _pointer_problem(state, attempt, branch, pointer)
    if problem is not None:
        hint = f"git log {branch}; move or delete that branch, then --resume"
        yield RecoveryAction("pause", problem, branch=branch, hint=hint)
        return
    if isinstance(pointer, Pointer):
        finished = _finish(state, attempt, pointer, tip)
        if finished is not None:
            yield _row(finished)
            return
    elif _is_measured(state, attempt, branch, tip):
        yield _commit_pointer(state, attempt, branch, tip)
        return
    quarantine_branch = quarantine_branch_of(branch)
    sha = _code_commit(pointer, tip)
    yield _move(state, branch, tip.sha, quarantine_branch, _NOT_MEASURED)
    yield _row(round_recorder.aborted_row(attempt, branch=quarantine_branch, commit_sha=sha, why=_NOT_MEASURED))


def _is_measured(state: RunInspection, attempt: Attempt, branch: str, tip: BranchTip) -> bool:
    """Return whether the Runner finished the round, and only the commit of its pointer is missing."""
    files = state.rounds.get(attempt.round, OpenRound())
    if files.metrics is None or files.pointer is None or files.pointer.commit_sha != tip.sha:
        return False
    return _pointer_problem(state, attempt, branch, files.pointer) is None


def _commit_pointer(state: RunInspection, attempt: Attempt, branch: str, tip: BranchTip) -> RecoveryAction:
    if branch in state.checked_out:
        message = (
            f"round {attempt.round} was measured, but its branch {branch} is checked out, so it cannot be finished"
        )
        return RecoveryAction("pause", message, branch=branch, hint="git checkout another branch, then --resume")
    why = f"round {attempt.round} was measured; its pointer is missing on the branch"
    return RecoveryAction("commit_pointer", why, branch=branch, sha=tip.sha, path=state.layout.worktree(branch))


def _pointer_problem(state: RunInspection, attempt: Attempt, branch: str, pointer: Pointer | str | None) -> str | None:
    """Return why the pointer on `branch` does not belong to this attempt; None if it does, or if there is none."""
    if pointer is None:
        return None
    if isinstance(pointer, str):
        return f"the pointer on {branch} cannot be read: {pointer}"
    identity = (pointer.run_id, pointer.round_idx, pointer.branch, pointer.round_attempt_id)
    if identity != (state.info.run_id, attempt.round, branch, attempt.id):
        found = f"run {identity[0]}, round {identity[1]}, attempt {identity[3]}"
        return f"the pointer on {branch} belongs to another round: {found}"
    return None


def _finish(state: RunInspection, attempt: Attempt, pointer: Pointer, tip: BranchTip) -> HistoryRow | None:
    """Return the row of a measured round whose pointer is committed; None if one of its files is missing.

    Nomination and report are taken from disk. Without a nomination the Analyst without a language model nominates; a
    candidate without a report is recorded as not verified and can be verified later.
    """
    files = state.rounds.get(attempt.round, OpenRound())
    metrics, nominated, report = files.metrics, attempt.nominated, files.report
    if metrics is None or tip.parents[:1] != (pointer.commit_sha,):
        return None
    if nominated is None:
        if files.nomination is None:
            return None
        at = metrics.measurement_finished_at or (attempt.planned and attempt.planned.at)
        nominated = Nominated(round_attempt_id=attempt.id, round=attempt.round, analyst=files.nomination, at=at)
    unverified_reason = None
    if nominated.analyst.verdict == "ignore":
        report = None
    elif report is None or not _report_matches(report, attempt, pointer):
        report = None
        round_dir = state.layout.round(attempt.round).dir.relative_to(state.layout.repo_root)
        unverified_reason = f"not verified: the process died before; `autoqec verify {round_dir}` verifies it"
    return round_recorder.build_row(
        replace(attempt, nominated=nominated),
        metrics,
        pointer=pointer,
        report=report,
        config=files.config,
        sandbox=files.sandbox,
        unverified_reason=unverified_reason,
    )


def _report_matches(report: VerifyReport, attempt: Attempt, pointer: Pointer) -> bool:
    if attempt.registered_test is None or report.artifact_sha256 != attempt.registered_test.artifact_sha256:
        return False
    identity = (report.run_id, report.round, report.round_attempt_id, report.branch, report.commit_sha)
    return identity == (pointer.run_id, attempt.round, attempt.id, pointer.branch, pointer.commit_sha)


def _code_commit(pointer: Pointer | str | None, tip: BranchTip) -> str:
    return pointer.commit_sha if isinstance(pointer, Pointer) and tip.parents[:1] == (pointer.commit_sha,) else tip.sha


def _row(row: HistoryRow) -> RecoveryAction:
    return RecoveryAction("append_row", f"round {row.round}: {row.status}", row=row)


def _maintain(state: RunInspection, found: RoundState) -> Iterator[RecoveryAction]:
    """Make a recorded round consistent: branch present or its deletion recorded, commit pinned."""
    row = found.row
    if row.branch is None or row.commit_sha is None:
        yield from _drop_empty_branch(state, found)
        return
    other = _counterpart(row.branch)
    tip, counterpart_tip = state.branches.get(row.branch), state.branches.get(other)
    if tip is not None and counterpart_tip is not None and tip.sha == counterpart_tip.sha:
        yield from _drop(state, other, counterpart_tip.sha, f"it was renamed to {row.branch}")
    if tip is None and not found.gone:
        if counterpart_tip is not None:
            why = f"its name in the history is {row.branch}"
            yield _move(state, other, counterpart_tip.sha, row.branch, why)
            tip = counterpart_tip
        else:
            yield _row(round_recorder.deleted_row(row, found.attempt_id))
    if found.gone and row.branch.startswith("quarantine/"):
        return  # quarantined, then deleted: nothing depends on it
    if found.attempt_id not in state.pins and row.commit_sha not in state.missing:
        sha = tip.sha if tip is not None and tip.parents[:1] == (row.commit_sha,) else row.commit_sha
        yield _pin(state, found.attempt_id, sha)


def _drop_empty_branch(state: RunInspection, found: RoundState) -> Iterator[RecoveryAction]:
    """Delete a branch without a commit of its own that was checked out when its round was closed, also if renamed."""
    attempt = state.attempts.get(found.attempt_id)
    planned = attempt.planned if attempt is not None else None
    if planned is None:
        return
    for branch in (planned.branch, quarantine_branch_of(planned.branch)):
        tip = state.branches.get(branch)
        if tip is not None and tip.sha == planned.base_sha:
            yield from _drop(state, branch, tip.sha, f"{branch} has no commit of its own")


def _pin_of(state: RunInspection, row: HistoryRow | None) -> RecoveryAction | None:
    """Return the pin of a round that the same plan records."""
    if row is None or row.round_attempt_id is None or row.commit_sha is None or row.branch is None:
        return None
    if row.round_attempt_id in state.pins:
        return None
    tip = state.branches.get(row.branch) or state.branches.get(_counterpart(row.branch))
    return _pin(state, row.round_attempt_id, tip.sha if tip else row.commit_sha)


def _pin(state: RunInspection, attempt_id: str, sha: str) -> RecoveryAction:
    why = "a recorded commit must outlive its branch"
    return RecoveryAction("pin", why, branch=state.layout.pin(attempt_id), sha=sha)


def _counterpart(branch: str) -> str:
    return round_branch_of(branch) if branch.startswith("quarantine/") else quarantine_branch_of(branch)


def _known_branches(state: RunInspection, recorded: list[RoundState]) -> set[str]:
    planned = {attempt.planned.branch for attempt in state.attempts.values() if attempt.planned}
    named = planned | {found.row.branch for found in recorded if found.row.branch}
    return named | {_counterpart(branch) for branch in named}


def _unknown_branches(state: RunInspection, recorded: list[RoundState]) -> Iterator[RecoveryAction]:
    """Yield a pause for branches in the run's namespace that no file of the run and no pointer accounts for."""
    known_branches = _known_branches(state, recorded)
    closed = {found.attempt_id for found in recorded}
    for branch in state.branches:
        if branch in known_branches or _matching_pointer(state, branch, closed) is not None:
            continue
        message = f"branch {branch} has a name of this run, but no attempt of the run created it"
        hint = f"git branch -m {branch} a-name-of-your-own; then --resume"
        yield RecoveryAction("pause", message, branch=branch, hint=hint)


def _record_unlogged_branches(state: RunInspection, recorded: list[RoundState]) -> Iterator[RecoveryAction]:
    """Quarantine branches whose line in attempts.jsonl is lost, with one row each; their pointer names the attempt."""
    known_branches = _known_branches(state, recorded)
    closed = {found.attempt_id for found in recorded}
    for branch, tip in state.branches.items():
        pointer = None if branch in known_branches else _matching_pointer(state, branch, closed)
        if pointer is None:
            continue
        quarantine_branch = branch if branch.startswith("quarantine/") else quarantine_branch_of(branch)
        if quarantine_branch != branch:
            yield _move(state, branch, tip.sha, quarantine_branch, "its line in attempts.jsonl is lost")
        yield _row(round_recorder.unrecorded_row(pointer, branch=quarantine_branch))


def _matching_pointer(state: RunInspection, branch: str, closed: set[str]) -> Pointer | None:
    """Return the pointer of a branch without a line in attempts.jsonl, if it matches the branch that it is on."""
    pointer, origin = state.pointers.get(branch), round_branch_of(branch)
    if not isinstance(pointer, Pointer) or pointer.round_attempt_id in closed | set(state.attempts):
        return None
    identity = (pointer.run_id, pointer.branch, pointer.round_idx, state.branches[branch].parents[:1])
    return pointer if identity == (state.info.run_id, origin, branch_round(origin), (pointer.commit_sha,)) else None
