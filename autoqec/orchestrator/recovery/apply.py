"""Doing what recovery planned. Every step leaves a state that the next plan goes on from."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from autoqec.errors import RunPaused
from autoqec.orchestrator import worktree
from autoqec.orchestrator.failpoint import reach
from autoqec.orchestrator.memory import RunMemory
from autoqec.orchestrator.recovery import inspect
from autoqec.orchestrator.recovery.plan import Action, plan
from autoqec.store import atomic, jsonl, run_log
from autoqec.store.layout import RunLayout
from autoqec.system import run_lock
from autoqec.system.git import RefUpdate, Repo

OnEvent = Callable[[str, dict[str, Any]], None]


def reconcile(layout: RunLayout, repo: Repo, *, dry_run: bool = False) -> list[Action]:
    """Bring a run's files and branches in line; returns what was done, or with `dry_run` what would be.

    Raises InputError where the run is held or not there, RunPaused where only a person can decide.
    """
    RunMemory(layout.root).history.info()
    if dry_run:
        return plan(inspect.gather(repo, layout))
    with run_lock.hold(layout.root), run_log.attach(layout):
        return recover(layout, repo, run_log.logged(None))


def recover(
    layout: RunLayout, repo: Repo, on_event: OnEvent | None = None, *, memory: RunMemory | None = None
) -> list[Action]:
    """As `reconcile`, for whoever holds the run already. memory: the run's, where there is one, so that what is read
    here need not be read again."""
    memory = memory or RunMemory(layout.root)
    repo.heal()
    actions = plan(inspect.gather(repo, layout, memory))
    apply(actions, memory, repo)
    if actions and on_event is not None:
        on_event("recovered", {"actions": [action.dump() for action in actions]})
    return actions


def apply(actions: Sequence[Action], memory: RunMemory, repo: Repo) -> None:
    """In the plan's order. Raises RunPaused for a pause, before anything is touched."""
    layout = memory.layout
    for action in actions:
        if action.kind == "pause":
            raise RunPaused(action.why, where=action.branch or layout.run_id, mend=action.mend)
    for action in actions:
        if action.kind == "heal" and action.path is not None:
            jsonl.heal(action.path, salvage=layout.salvage)
        elif action.kind == "sweep" and action.path is not None:
            _sweep(action.path)
            reach("recovery_swept")
        elif action.kind == "remove_worktree" and action.path is not None:
            worktree.salvage_and_remove(repo, layout, action.path)
            reach("recovery_worktree_removed")
    updates = [update for action in actions for update in _refs(action)]
    if updates:
        repo.update_refs(updates)
        reach("recovery_refs_moved")
    rows = [action.row for action in actions if action.row is not None]
    if rows:
        atomic.make_dirs(dict.fromkeys(layout.round(row.round).dir for row in rows))
        memory.history.append_rows(rows)
        reach("recovery_row_appended")
    memory.rebuild_views()
    reach("recovery_views_written")


def _sweep(path: Path) -> None:
    with atomic.disk(path):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def _refs(action: Action) -> list[RefUpdate]:
    if action.kind == "pin":
        return [RefUpdate(str(action.branch), action.sha, None)]
    old = RefUpdate(f"refs/heads/{action.branch}", None, action.sha)
    if action.kind == "drop_ref":
        return [old]
    return [RefUpdate(f"refs/heads/{action.to}", action.sha, None), old] if action.kind == "move_ref" else []
