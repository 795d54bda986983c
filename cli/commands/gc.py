"""`autoqec gc`: list and remove leftovers of runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autoqec import locate
from autoqec.cli.common import Output, options
from autoqec.errors import AutoqecError
from autoqec.locate import find_deleted_runs
from autoqec.orchestrator import gc
from autoqec.orchestrator.gc import RemovableItem, remove_deleted_run
from autoqec.reporting.text import plain
from autoqec.store.layout import RunLayout
from autoqec.system import run_lock
from autoqec.system.git import Repo

if TYPE_CHECKING:
    from autoqec.orchestrator.gc import RemovableItem
    from autoqec.system.git import Repo

KIND_LABELS = {
    "worktree": ("worktree of an aborted round", "worktrees of aborted rounds"),
    "quarantine": ("quarantined branch", "quarantined branches"),
    "checkpoint": ("unneeded checkpoint", "unneeded checkpoints"),
    "unverified": ("unverified checkpoint of an open run", "unverified checkpoints of open runs"),
    "deleted_run": ("set of branches and pins of a deleted run", "sets of branches and pins of deleted runs"),
}
# removed only if named by --only: the run may continue, and the branches may be all that is left of a result
OPT_IN_KINDS = ("unverified", "deleted_run")


@click.command("gc")
@click.argument("run", required=False)
@click.option(
    "--only", type=click.Choice(list(KIND_LABELS)), multiple=True, help="Consider only this kind. Repeatable."
)
@click.option("--dry-run", is_flag=True, help="List only; remove nothing.")
@click.option("--yes", is_flag=True, help="Remove without asking; `unverified` and `deleted_run` only with --only.")
@options
def command(run: str | None, only: tuple[str, ...], dry_run: bool, yes: bool, out: Output) -> None:
    """List leftovers of RUN, or of all runs, and remove them after confirmation.

    \b
    worktree     worktree of an aborted round; uncommitted edits are kept in
                 salvage/ of the run
    quarantine   quarantined branch
    checkpoint   checkpoint that no verified Pareto front depends on
    unverified   checkpoint of an open run that a later verification or round
                 may need
    deleted_run  branches and pins of a run whose directory was deleted

    Runs that are in use are skipped.
    """  # noqa: D301 - click needs the character \\b
    repo = Repo.discover(Path.cwd())
    n_listed, removed = _deleted_runs(repo, run, only, dry_run, yes, out)
    layouts = [RunLayout(repo.root, name) for name in locate.run_ids(repo.root)]
    if run is not None:
        layouts = [] if n_listed else [locate.run_layout(run)]
    for layout in layouts:
        try:
            removable = _list_items(layout, repo, only, out)
            n_listed += len(removable)
            selected = [item for item in removable if item.kind not in OPT_IN_KINDS or item.kind in only]
            confirmed = [] if dry_run else selected if yes else _confirm(removable)
            removed += _remove_items(layout, repo, confirmed, out)
        except AutoqecError as error:
            if run is not None:
                raise
            out.note(f"run {layout.run_id} is skipped: {error}")
    if not n_listed:
        out.note("nothing to remove")
    elif not removed and not dry_run:
        kinds = ", ".join(f"{kind} with --only {kind}" for kind in OPT_IN_KINDS)
        out.note(f"nothing was removed; --yes removes the listed items without asking: {kinds}")


def _deleted_runs(
    repo: Repo, run: str | None, only: Sequence[str], dry_run: bool, yes: bool, out: Output
) -> tuple[int, int]:
    """List and remove branches and pins of deleted runs; return how many were listed and removed."""
    listed = removed = 0
    for deleted in find_deleted_runs(repo):
        if run not in (None, deleted.run_id) or (only and "deleted_run" not in only):
            continue
        item = RemovableItem("deleted_run", deleted.run_id, deleted.message)
        out.say(f"{deleted.run_id}  {item.kind}  {item.why}")
        out.emit({"run_id": deleted.run_id, "removed": False, **item.dump()})
        listed += 1
        if not dry_run and ("deleted_run" in only if yes else _confirm([item])):
            refs = remove_deleted_run(repo, deleted)
            out.say(f"removed {len(refs)} branches and pins of {deleted.run_id}")
            out.emit({"run_id": deleted.run_id, "removed": True, **item.dump()})
            removed += 1
    return listed, removed


def _list_items(layout: RunLayout, repo: Repo, only: Sequence[str], out: Output) -> list[RemovableItem]:
    run_lock.require_unlocked(layout.root)
    removable = [item for item in gc.find_removable(layout, repo) if not only or item.kind in only]
    for item in removable:
        size = f"  {_bytes(item.bytes)}" if item.bytes else ""
        out.say(f"{layout.run_id}  {item.kind}  {plain(item.name)}{size}  {plain(item.why)}")
        out.emit({"run_id": layout.run_id, "removed": False, **item.dump()})
    return removable


def _confirm(removable: Sequence[RemovableItem]) -> list[RemovableItem]:
    """Ask once per kind whether to remove its items; without a terminal nothing is confirmed."""
    confirmed: list[RemovableItem] = []
    for kind, (singular, plural) in KIND_LABELS.items():
        items_of_kind = [item for item in removable if item.kind == kind]
        size = sum(item.bytes for item in items_of_kind)
        label = singular if len(items_of_kind) == 1 else plural
        question = f"Remove {len(items_of_kind)} {label}{f' ({_bytes(size)})' if size else ''}?"
        try:
            if items_of_kind and click.confirm(question, err=True):
                confirmed += items_of_kind
        except click.Abort:
            return []
    return confirmed


def _remove_items(layout: RunLayout, repo: Repo, confirmed: Sequence[RemovableItem], out: Output) -> int:
    removed_items = gc.remove(layout, repo, confirmed) if confirmed else []
    for item in removed_items:
        out.say(f"removed {item.kind} {plain(item.name)}")
        out.emit({"run_id": layout.run_id, "removed": True, **item.dump()})
    return len(removed_items)


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
