"""Creates run directories atomically, and finds branches and pins of runs whose directory was deleted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from autoqec.store import atomic
from autoqec.store.layout import RUN_ID, RunLayout, partial_run_id, runs_dir
from autoqec.system import run_lock
from autoqec.system.git import RefUpdate, Repo

_PREFIXES = ("refs/heads/exp/", "refs/heads/quarantine/", "refs/autoqec/pin/")


def create_run_directory(root: Path, fill: Callable[[RunLayout, str], None]) -> RunLayout:
    """Create the directory of a new run under `runs/` atomically.

    Args:
        root: The repository's top level.
        fill: Writes the first files of the run; its arguments are the layout under a temporary name and the run id.

    Returns:
        The layout of the directory. The run id is the UTC time, with `-2`, `-3`, … for runs of the same second.

    Raises:
        StorageError: A file cannot be written; no part of the run remains.
    """
    atomic.make_dir(runs_dir(root))
    _protect(runs_dir(root))
    _remove_partial(root)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    number = 1
    while True:
        run_id = stamp if number == 1 else f"{stamp}-{number}"
        number += 1
        if RunLayout(root, run_id).root.exists():
            continue
        partial = RunLayout(root, partial_run_id(run_id))
        with suppress(FileExistsError):
            atomic.make_dir(partial.root, exclusive=True)
            return _fill(root, run_id, partial, fill)


def _fill(root: Path, run_id: str, partial: RunLayout, fill: Callable[[RunLayout, str], None]) -> RunLayout:
    layout = RunLayout(root, run_id)
    try:
        with run_lock.lock_run(partial.root):  # another start removes partial directories that are not locked
            fill(partial, run_id)
            atomic.fsync_dir(partial.root)
            with atomic.storage_errors(layout.root):
                partial.root.rename(layout.root)
            atomic.fsync_dir(layout.root.parent)
    except BaseException:
        shutil.rmtree(partial.root, ignore_errors=True)
        raise
    return layout


def _protect(directory: Path) -> None:
    """Keep `git add -A` from staging runs: each contains the secret that its verification depends on."""
    ignore_file = directory / ".gitignore"
    if not ignore_file.exists():
        atomic.write_text(ignore_file, "# AutoQEC: a run's secret must never be committed\n*\n")


def _remove_partial(root: Path) -> None:
    for path in runs_dir(root).glob(f"{partial_run_id('*')}"):
        if path.is_dir() and not run_lock.is_locked(path):
            shutil.rmtree(path, ignore_errors=True)


@dataclass(frozen=True)
class DeletedRun:
    """A run of which only the git refs remain, for example after `git clean -fdX`; `refs` maps names to commits."""

    run_id: str
    refs: dict[str, str]

    @property
    def message(self) -> str:
        """Description for the user."""
        branches = sum(ref.startswith("refs/heads/") for ref in self.refs)
        left = f"{branches} branches and {len(self.refs) - branches} pins remain in git"
        return f"the directory runs/{self.run_id} with history and secret was deleted (git clean?); {left}"


def find_deleted_runs(repo: Repo) -> list[DeletedRun]:
    """Return the runs of which only branches and pins remain, oldest first."""
    refs: dict[str, dict[str, str]] = {}
    for prefix in _PREFIXES:
        for ref, sha in repo.refs(prefix).items():
            run_id = ref.removeprefix(prefix).split("/")[0]
            if RUN_ID.match(run_id) and not RunLayout(repo.root, run_id).root.exists():
                refs.setdefault(run_id, {})[ref] = sha
    return [DeletedRun(run_id, refs[run_id]) for run_id in sorted(refs)]


def remove_deleted_run(repo: Repo, run: DeletedRun) -> list[str]:
    """Delete refs and worktrees of a deleted run, except checked-out branches; return the deleted refs."""
    worktrees = RunLayout(repo.root, run.run_id).worktree("any").parent
    prefix = f"exp-{run.run_id}-"
    names = {entry.path.name for entry in repo.worktrees()} | {path.name for path in worktrees.glob(f"{prefix}*")}
    for name in sorted(names):
        if name.startswith(prefix):
            repo.worktree_remove(worktrees / name)
            shutil.rmtree(worktrees / name, ignore_errors=True)
    in_use = {f"refs/heads/{branch}" for branch in repo.checked_out_branches()}
    updates = [RefUpdate(ref, None, sha) for ref, sha in run.refs.items() if ref not in in_use]
    if updates:
        repo.update_refs(updates)
    return [update.ref for update in updates]
