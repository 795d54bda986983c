"""Finds what a run left and no longer needs, and removes what the user agrees to; safe to run concurrently.

Never touched: whatever a round of the verified front or of its ancestry left, a parent whose weights a recorded round
started from, and everything of a run that another process holds. Of a run that is not closed, weights that are
not verified are listed separately (`unverified`): a later verification or round may need them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from autoqec.contracts.base import sha256_bytes
from autoqec.contracts.provenance import ManifestArtifact
from autoqec.contracts.round import ForkFrom, parent_branches
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
    """One thing that can be removed. name: a directory, a branch, a file below the run's directory, or a run id."""

    kind: Kind
    name: str
    why: str
    bytes: int = 0
    attempt_id: str | None = None

    def dump(self) -> dict[str, Any]:
        """Return the item as JSON values."""
        return {"kind": self.kind, "name": self.name, "why": self.why, "bytes": self.bytes}


def find_removable(layout: RunLayout, repo: Repo, memory: RunMemory | None = None) -> list[RemovableItem]:
    """Return what can be removed, without touching anything.

    Call it while no process holds the run: whatever is unfinished is then left over.

    Raises ManualInterventionRequired where the run's truth is damaged.
    """
    memory = memory or RunMemory(layout.root)
    state = inspect.inspect_run(repo, layout, memory)
    leftover_worktrees = [path for path in state.worktrees if path not in paths_in_use(state)]
    found = [RemovableItem("worktree", str(path), "its round is over", _size(path)) for path in leftover_worktrees]
    standing = memory.state.rounds
    forked = {branch for one in standing.values() for branch in parent_branches(one.row.fork_from)}
    for one in standing.values():
        branch = one.row.branch
        if branch is None or not branch.startswith("quarantine/") or branch in forked:
            continue
        if branch in state.checked_out:
            continue
        if branch in state.branches or one.attempt_id in state.pins:
            why = f"round {one.row.round} was refused, {one.row.status}: nothing stands on it"
            if one.row.status == "orphaned_branch":
                why = f"round {one.row.round} was lost to a crash; `autoqec adopt` could still bring it back"
            found.append(RemovableItem("quarantine", branch, why, attempt_id=one.attempt_id))
    return [*found, *_removable_checkpoints(layout, memory)]


def remove(layout: RunLayout, repo: Repo, confirmed: Collection[RemovableItem]) -> list[RemovableItem]:
    """Remove what was agreed to and is garbage still; returns what was removed.

    The run is held meanwhile; where a worktree goes it is recovered, for that is what takes one away: edits that were
    not committed are salvaged, and its round gets its row. Raises UsageError where another process holds the run,
    ManualInterventionRequired as recovery does.
    """
    names = {(one.kind, one.name) for one in confirmed}
    with hold_run(layout):
        memory = RunMemory(layout.root)
        to_remove = [one for one in find_removable(layout, repo, memory) if (one.kind, one.name) in names]
        if any(one.kind == "worktree" for one in to_remove):
            recover(layout, repo, memory=memory)
        _drop_branches(layout, repo, memory, [one for one in to_remove if one.kind == "quarantine"])
        for one in to_remove:
            if one.kind in ("checkpoint", "unverified"):
                _remove_file(layout, one)
        return to_remove


def removed_files(layout: RunLayout) -> dict[str, str]:
    """Files of the run that were removed on purpose: name below the run's directory -> SHA-256 of what it held."""
    return {line["name"]: line["sha256"] for line in jsonl.read(layout.removed_files)}


def _drop_branches(layout: RunLayout, repo: Repo, memory: RunMemory, to_remove: list[RemovableItem]) -> None:
    """The rows first: a branch that is still there is then garbage again, and none is ever missed without a row."""
    if not to_remove:
        return
    standing = memory.state.rounds
    for one in to_remove:
        quarantined_round = standing[str(one.attempt_id)]
        if not quarantined_round.gone:
            memory.append_round(
                round_recorder.deleted_row(
                    quarantined_round.row, quarantined_round.attempt_id, why="was removed by `autoqec gc`"
                )
            )
            failpoint("garbage_row_appended")
    refs = repo.refs(f"refs/heads/quarantine/{layout.run_id}") | repo.refs(layout.pin_prefix)
    names = {f"refs/heads/{one.name}" for one in to_remove} | {layout.pin(str(one.attempt_id)) for one in to_remove}
    updates = [RefUpdate(ref, None, sha) for ref, sha in refs.items() if ref in names]
    if updates:
        repo.update_refs(updates)
        failpoint("garbage_refs_dropped")
    memory.rebuild_views()


def _removable_checkpoints(layout: RunLayout, memory: RunMemory) -> Iterator[RemovableItem]:
    needed, is_open = _needed_attempts(layout, memory), not is_closed(layout)
    for one in memory.state.rounds.values():
        adoptable = one.row.status == "orphaned_branch" and one.branch is not None
        if one.attempt_id in needed or adoptable:
            continue
        round_layout = layout.round(one.row.round)
        for path in [round_layout.checkpoint, *sorted(round_layout.train_dir.glob("*.pt"))]:
            if path.is_file() and not path.is_symlink():
                name = path.relative_to(layout.root).as_posix()
                why = f"round {one.row.round} ({one.row.verify_verdict or one.row.status}) is not on the verified front"
                may_be_needed = is_open and one.row.status == "ok" and path == round_layout.checkpoint
                if may_be_needed:
                    why += "; the run is open, so `autoqec verify` or a later round may want it"
                yield RemovableItem("unverified" if may_be_needed else "checkpoint", name, why, _size(path))


def _needed_attempts(layout: RunLayout, memory: RunMemory) -> set[str]:
    """Attempts whose weights stay. Of a run that may go on, every verified round's: it may yet be forked or joined."""
    standing = memory.state.rounds
    by_branch = {one.row.branch: one for one in standing.values()}

    def parents(fork_from: ForkFrom) -> list[RoundState]:
        return [by_branch[name] for name in parent_branches(fork_from) if name in by_branch]

    queue = [standing[entry.round_attempt_id] for entry in memory.state.front]
    if not is_closed(layout):
        queue += [one for one in standing.values() if one.row.verify_verdict == "VERIFIED"]
    # A round without a row may be a cluster's job, which has yet to read the weights that it starts from.
    open_plans = [
        one.planned for one in memory.attempt_state.attempts.values() if one.planned and one.id not in standing
    ]
    starting_points = [(plan_line.dsl_config, plan_line.fork_from) for plan_line in open_plans]
    starting_points += [(one.row.dsl_config or {}, one.row.fork_from) for one in standing.values()]
    for config, fork_from in starting_points:
        if (config.get("training") or {}).get("init") == "parent":
            queue += parents(fork_from)[:1]
    found: set[str] = set()
    while queue:
        one = queue.pop()
        if one.attempt_id not in found:
            found.add(one.attempt_id)
            queue += parents(one.row.fork_from)
    return found


def _remove_file(layout: RunLayout, one: RemovableItem) -> None:
    """What goes is on record first, with its hash: a file that is missing without a line here was lost, not removed."""
    path = layout.root / one.name
    with atomic.storage_errors(path):
        data = path.read_bytes()
    line = ManifestArtifact(name=one.name, bytes=len(data), sha256=sha256_bytes(data))
    if removed_files(layout).get(one.name) != line.sha256:
        jsonl.append(layout.removed_files, line.dump(), salvage=layout.salvage)
        failpoint("garbage_recorded")
    with atomic.storage_errors(path):
        path.unlink(missing_ok=True)
    atomic.fsync_dir(path.parent)


def _size(path: Path) -> int:
    """Bytes of a file, or of the files below a directory; what vanishes meanwhile counts nothing."""
    total = 0
    for found in [path, *path.rglob("*")] if path.is_dir() else [path]:
        try:
            total += found.lstat().st_size if not found.is_dir() else 0
        except OSError:
            continue
    return total
