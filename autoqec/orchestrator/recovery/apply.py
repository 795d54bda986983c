"""Doing what recovery planned. Every step leaves a state that the next plan goes on from."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from autoqec.contracts.events import OnEvent, RunRecovered
from autoqec.errors import ManualInterventionRequired
from autoqec.orchestrator import worktree
from autoqec.orchestrator.failpoint import failpoint
from autoqec.orchestrator.memory import RunMemory
from autoqec.orchestrator.recovery import inspect
from autoqec.orchestrator.recovery.plan import RecoveryAction, plan_recovery
from autoqec.store import atomic, jsonl, run_log
from autoqec.store.layout import RunLayout
from autoqec.system import run_lock
from autoqec.system.git import RefUpdate, Repo


def reconcile(layout: RunLayout, repo: Repo, *, dry_run: bool = False) -> list[RecoveryAction]:
    """Bring a run's files and branches in line; returns what was done, or with `dry_run` what would be.

    Raises UsageError where the run is held or not there, ManualInterventionRequired where only a person can decide.
    """
    RunMemory(layout.root).history.info()
    if dry_run:
        return plan_recovery(inspect.inspect_run(repo, layout))
    with run_lock.lock_run(layout.root), run_log.attach(layout):
        return recover(layout, repo, run_log.logged(None))


def recover(
    layout: RunLayout, repo: Repo, on_event: OnEvent | None = None, *, memory: RunMemory | None = None
) -> list[RecoveryAction]:
    """As `reconcile`, for whoever holds the run already. memory: the run's, where there is one, so that what is read
    here need not be read again."""
    memory = memory or RunMemory(layout.root)
    repo.repair()
    actions = plan_recovery(inspect.inspect_run(repo, layout, memory))
    apply_plan(actions, memory, repo)
    if actions and on_event is not None:
        on_event(RunRecovered(actions=tuple(action.dump() for action in actions)))
    return actions


def apply_plan(actions: Sequence[RecoveryAction], memory: RunMemory, repo: Repo) -> None:
    """In the plan's order. Raises ManualInterventionRequired for a pause, before anything is touched."""
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
    updates = [update for action in actions for update in _ref_updates(action)]
    if updates:
        repo.update_refs(updates)
        failpoint("recovery_refs_moved")
    rows = [action.row for action in actions if action.row is not None]
    if rows:
        atomic.make_dirs(dict.fromkeys(layout.round(row.round).dir for row in rows))
        memory.history.append_rows(rows)
        failpoint("recovery_row_appended")
    memory.rebuild_views()
    failpoint("recovery_views_written")


def _delete_leftover(path: Path) -> None:
    with atomic.storage_errors(path):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _ref_updates(action: RecoveryAction) -> list[RefUpdate]:
    if action.kind == "pin":
        return [RefUpdate(str(action.branch), action.sha, None)]
    old = RefUpdate(f"refs/heads/{action.branch}", None, action.sha)
    if action.kind == "drop_ref":
        return [old]
    return [RefUpdate(f"refs/heads/{action.to}", action.sha, None), old] if action.kind == "move_ref" else []
