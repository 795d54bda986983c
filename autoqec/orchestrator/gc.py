"""Garbage collection of a run: finds files and branches that are no longer needed, and removes what the user confirms.

Never removed: files of rounds on the verified Pareto front and of their ancestors, weights that a recorded round
started from, and anything of a run that another process holds. Weights of an open run that are not verified are listed
separately (`unverified`), since a later verification or round may need them.
"""

from __future__ import annotations

import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.provenance import ManifestArtifact
from autoqec.contracts.round import ForkFrom, parent_branches
from autoqec.locate import DeletedRun
from autoqec.orchestrator import round_recorder
from autoqec.orchestrator.failpoint import failpoint
from autoqec.orchestrator.hold import hold_run
from autoqec.orchestrator.memory import RunMemory
from autoqec.orchestrator.recovery import inspect
from autoqec.orchestrator.recovery.apply import recover
from autoqec.orchestrator.recovery.plan import paths_in_use
from autoqec.orchestrator.secret import is_closed
from autoqec.store import atomic, jsonl
from autoqec.store.layout import RunLayout
from autoqec.store.run_state import RoundState
from autoqec.system.git import RefUpdate, Repo

Kind = Literal["worktree", "quarantine", "checkpoint", "unverified", "deleted_run"]


@dataclass(frozen=True)
class RemovableItem:
    """An item that can be removed. `name` is a directory, a branch, a file of the run directory, or a run id."""

    kind: Kind
    name: str
    why: str
    bytes: int = 0
    attempt_id: str | None = None

    def dump(self) -> dict[str, Any]:
        """Return the item as JSON values."""
        return {"kind": self.kind, "name": self.name, "why": self.why, "bytes": self.bytes}


def find_removable(layout: RunLayout, repo: Repo, memory: RunMemory | None = None) -> list[RemovableItem]:
    """Return the items that can be removed, without changing anything.

    Call it while no other process holds the run: unfinished work is then left over from a dead process.

    Raises:
        ManualInterventionRequired: A file of the run is damaged.
    """
    memory = memory or RunMemory(layout.root)
    state = inspect.inspect_run(repo, layout, memory)
    leftover_worktrees = [path for path in state.worktrees if path not in paths_in_use(state)]
    items = [RemovableItem("worktree", str(path), "its round has ended", _size(path)) for path in leftover_worktrees]
    rounds = memory.state.rounds
    forked = {branch for round_state in rounds.values() for branch in parent_branches(round_state.row.fork_from)}
    for attempt_id, round_state in rounds.items():
        row, branch = round_state.row, round_state.row.branch
        if branch is None or not branch.startswith("quarantine/") or branch in forked:
            continue
        if branch in state.checked_out:
            continue
        if branch in state.branches or attempt_id in state.pins:
            why = f"round {row.round} was rejected ({row.status}), and no round was forked from it"
            if row.status == "orphaned_branch":
                why = f"round {row.round} was aborted by a crash; `autoqec adopt` can still restore it"
            items.append(RemovableItem("quarantine", branch, why, attempt_id=attempt_id))
    return [*items, *_removable_checkpoints(layout, memory)]


def remove(layout: RunLayout, repo: Repo, confirmed: Collection[RemovableItem]) -> list[RemovableItem]:
    """Remove the confirmed items that are still removable, while holding the run.

    Worktrees are removed by recovery: uncommitted edits are salvaged, and the round gets its row.

    Returns:
        The removed items.

    Raises:
        UsageError: Another process holds the run.
        ManualInterventionRequired: Recovery needs a decision of the user.
    """
    names = {(item.kind, item.name) for item in confirmed}
    with hold_run(layout, "gc"):
        memory = RunMemory(layout.root)
        to_remove = [item for item in find_removable(layout, repo, memory) if (item.kind, item.name) in names]
        if any(item.kind == "worktree" for item in to_remove):
            recover(layout, repo, memory=memory)
        _drop_branches(layout, repo, memory, [item for item in to_remove if item.kind == "quarantine"])
        for item in to_remove:
            if item.kind in ("checkpoint", "unverified"):
                _remove_file(layout, item)
        return to_remove


def removed_files(layout: RunLayout) -> dict[str, str]:
    """Return the files that `autoqec gc` removed: path in the run directory -> SHA-256 of the content."""
    return {line["name"]: line["sha256"] for line in jsonl.read(layout.removed_files)}


def _drop_branches(layout: RunLayout, repo: Repo, memory: RunMemory, to_remove: list[RemovableItem]) -> None:
    """Append the rows, then delete the refs: if interrupted, the branch is removable again and never lacks its row."""
    if not to_remove:
        return
    rounds = memory.state.rounds
    for item in to_remove:
        quarantined = rounds[str(item.attempt_id)]
        if not quarantined.gone:
            why = "was removed by `autoqec gc`"
            memory.append_round(round_recorder.deleted_row(quarantined.row, quarantined.attempt_id, why=why))
            failpoint("gc_row_appended")
    refs = repo.refs(f"refs/heads/quarantine/{layout.run_id}", layout.pin_prefix)
    names = {f"refs/heads/{item.name}" for item in to_remove} | {layout.pin(str(item.attempt_id)) for item in to_remove}
    updates = [RefUpdate(ref, None, sha) for ref, sha in refs.items() if ref in names]
    if updates:
        repo.update_refs(updates)
        failpoint("gc_refs_dropped")
    memory.rebuild_views()


def _removable_checkpoints(layout: RunLayout, memory: RunMemory) -> Iterator[RemovableItem]:
    needed, is_open = _needed_attempts(layout, memory), not is_closed(layout)
    for round_state in memory.state.rounds.values():
        row = round_state.row
        restorable = row.status == "orphaned_branch" and round_state.branch is not None
        if round_state.attempt_id in needed or restorable:
            continue
        round_layout = layout.round(row.round)
        for path in [round_layout.checkpoint, *sorted(round_layout.train_dir.glob("*.pt"))]:
            if path.is_file() and not path.is_symlink():
                name = path.relative_to(layout.root).as_posix()
                why = f"round {row.round} ({row.verify_verdict or row.status}) is not on the verified front"
                may_be_needed = is_open and row.status == "ok" and path == round_layout.checkpoint
                if may_be_needed:
                    why += "; the run is open, so `autoqec verify` or a later round may need it"
                yield RemovableItem("unverified" if may_be_needed else "checkpoint", name, why, _size(path))


def _needed_attempts(layout: RunLayout, memory: RunMemory) -> set[str]:
    """Return the attempts whose weights are needed; in an open run, every VERIFIED round may still be forked."""
    rounds = memory.state.rounds
    by_branch = {round_state.row.branch: round_state for round_state in rounds.values()}

    def parents(fork_from: ForkFrom) -> list[RoundState]:
        return [by_branch[name] for name in parent_branches(fork_from) if name in by_branch]

    queue = [rounds[entry.round_attempt_id] for entry in memory.state.front]
    if not is_closed(layout):
        queue += [round_state for round_state in rounds.values() if round_state.row.verify_verdict == "VERIFIED"]
    # A round without a row may be a job of a cluster that has not read the weights it starts from yet.
    attempts = memory.attempt_state.attempts.values()
    open_plans = [attempt.planned for attempt in attempts if attempt.planned and attempt.id not in rounds]
    starting_points = [(plan.dsl_config, plan.fork_from) for plan in open_plans]
    starting_points += [(known.row.dsl_config or {}, known.row.fork_from) for known in rounds.values()]
    for config, fork_from in starting_points:
        if (config.get("training") or {}).get("init") == "parent":
            queue += parents(fork_from)[:1]
    needed: set[str] = set()
    while queue:
        round_state = queue.pop()
        if round_state.attempt_id not in needed:
            needed.add(round_state.attempt_id)
            queue += parents(round_state.row.fork_from)
    return needed


def _remove_file(layout: RunLayout, item: RemovableItem) -> None:
    """Record the file with its hash, then delete it: a missing file without such a record was lost, not removed."""
    path = layout.root / item.name
    with atomic.storage_errors(path):
        data = path.read_bytes()
    line = ManifestArtifact(name=item.name, bytes=len(data), sha256=sha256_bytes(data))
    if removed_files(layout).get(item.name) != line.sha256:
        jsonl.append(layout.removed_files, line.dump(), salvage=layout.salvage)
        failpoint("gc_recorded")
    with atomic.storage_errors(path):
        path.unlink(missing_ok=True)
    atomic.fsync_dir(path.parent)


def _size(path: Path) -> int:
    """Return the bytes of a file or of the files below a directory; files that vanish meanwhile are not counted."""
    total = 0
    for found in [path, *path.rglob("*")] if path.is_dir() else [path]:
        try:
            total += found.lstat().st_size if not found.is_dir() else 0
        except OSError:
            continue
    return total


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
