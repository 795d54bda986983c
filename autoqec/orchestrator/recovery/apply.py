"""Carries out a recovery plan. Every step leaves a state from which the next plan continues."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from autoqec.errors import ManualInterventionRequired
from autoqec.orchestrator import worktree
from autoqec.orchestrator.failpoint import failpoint
from autoqec.orchestrator.hold import hold_run
from autoqec.orchestrator.memory import RunMemory
from autoqec.orchestrator.recovery import inspect
from autoqec.orchestrator.recovery.plan import plan_recovery
from autoqec.orchestrator.recovery.state import RecoveryAction
from autoqec.store import atomic, jsonl, run_log
from autoqec.store.layout import RunLayout
from autoqec.system.git import RefUpdate, Repo

if TYPE_CHECKING:
    from autoqec.contracts.events import OnEvent


def reconcile(layout: RunLayout, repo: Repo, *, dry_run: bool = False) -> list[RecoveryAction]:
    """Make the files and branches of a run match its history.

    Args:
        layout: The run.
        repo: The repository that holds it.
        dry_run: Only return the plan.

    Returns:
        The actions that were carried out, or with `dry_run` those that would be.

    Raises:
        UsageError: The run does not exist, or another process holds it.
        ManualInterventionRequired: The user has to decide; nothing was changed.
    """
    inspect.require_own_directory(layout, RunMemory(layout.root).history.info())
    if dry_run:
        return plan_recovery(inspect.inspect_run(repo, layout))
    with hold_run(layout, "reconcile"):
        return recover(layout, repo, run_log.logged(None))


def recover(
    layout: RunLayout, repo: Repo, on_event: OnEvent | None = None, *, memory: RunMemory | None = None
) -> list[RecoveryAction]:
    """Do what `reconcile` does, for a caller that holds the run's lock.

    Args:
        layout: The run.
        repo: The repository that holds it.
        on_event: Receives one `recovered` event if anything was done.
        memory: The run's memory, if the caller has one, so that files are not read twice.

    Returns:
        The actions that were carried out.

    Raises:
        ManualInterventionRequired: The user has to decide; nothing was changed.
    """
    memory = memory or RunMemory(layout.root)
    inspect.require_own_directory(layout, memory.history.info())
    repo.repair()
    repo.worktree_repair(layout.worktree("any").parent)
    actions = plan_recovery(inspect.inspect_run(repo, layout, memory))
    pointers = [action for action in actions if action.kind == "commit_pointer"]
    if pointers:
        _commit_pointers(pointers, memory, repo)
        actions = plan_recovery(inspect.inspect_run(repo, layout, memory))
    apply_plan(actions, memory, repo)
    done = [*pointers, *actions]
    if done and on_event is not None:
        from autoqec.contracts.events import RunRecovered  # mostly there is nothing to do

        on_event(RunRecovered(actions=tuple(action.dump() for action in done)))
    return done


def _commit_pointers(actions: Sequence[RecoveryAction], memory: RunMemory, repo: Repo) -> None:
    """Commit the pointers of measured rounds, as their process would have done next."""
    planned = {
        attempt.planned.branch: attempt.planned for attempt in memory.attempt_state.attempts.values() if attempt.planned
    }
    for action in actions:
        worktree.recommit_pointer(repo, memory.layout, planned[str(action.branch)])
        failpoint("recovery_pointer_committed")


def apply_plan(actions: Sequence[RecoveryAction], memory: RunMemory, repo: Repo) -> None:
    """Carry out a plan in its order.

    Raises:
        ManualInterventionRequired: The plan contains a `pause`; nothing was changed.
    """
    layout = memory.layout
    for action in actions:
        if action.kind == "pause":
            raise ManualInterventionRequired(action.why, location=action.branch or layout.run_id, hint=action.hint)
    for action in actions:
        if action.kind == "heal" and action.path is not None:
            jsonl.repair(action.path, salvage=layout.salvage)
        elif action.kind == "sweep" and action.path is not None:
            _delete_leftover(action.path)
            failpoint("recovery_swept")
        elif action.kind == "remove_worktree" and action.path is not None:
            worktree.salvage_and_remove_worktree(repo, layout, action.path)
            failpoint("recovery_worktree_removed")
    updates = list(_ref_updates(actions, repo, layout))
    if updates:
        repo.update_refs(updates)
        failpoint("recovery_refs_moved")
    rows = [action.row for action in actions if action.row is not None]
    if rows:
        atomic.make_dirs(dict.fromkeys(layout.round(row.round).dir for row in rows))
        memory.history.append_rows(rows)
        failpoint("recovery_row_appended")
    if any(action.kind == "views" for action in actions):
        memory.rebuild_views()
    failpoint("recovery_views_written")


def _delete_leftover(path: Path) -> None:
    with atomic.storage_errors(path):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _ref_updates(actions: Sequence[RecoveryAction], repo: Repo, layout: RunLayout) -> Iterator[RefUpdate]:
    # When the file of a damaged ref is deleted, an older value in packed-refs becomes visible.
    swept = any(action.kind == "sweep" for action in actions)
    packed = repo.refs(f"refs/heads/{layout.branch_prefix}", layout.pin_prefix) if swept else {}
    for action in actions:
        ref = f"refs/heads/{action.branch}"
        if action.kind == "pin":
            ref = str(action.branch)
        if action.kind in ("pin", "restore_ref") and packed.get(ref) != action.sha:
            yield RefUpdate(ref, action.sha, packed.get(ref))
        if action.kind in ("move_ref", "copy_ref"):
            yield RefUpdate(f"refs/heads/{action.to}", action.sha, None)
        if action.kind in ("move_ref", "drop_ref"):
            yield RefUpdate(ref, None, action.sha)
