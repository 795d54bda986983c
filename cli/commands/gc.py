"""`autoqec gc`: what runs left that nobody needs any more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autoqec import locate
from autoqec.cli.common import Output, options
from autoqec.errors import AutoqecError
from autoqec.store.layout import RunLayout

if TYPE_CHECKING:
    from autoqec.orchestrator.gc import RemovableItem
    from autoqec.system.git import Repo

KIND_LABELS = {
    "worktree": ("worktree of a round that died", "worktrees of rounds that died"),
    "quarantine": ("quarantined branch", "quarantined branches"),
    "checkpoint": ("checkpoint that no front needs", "checkpoints that no front needs"),
    "unverified": ("unverified checkpoint of an open run", "unverified checkpoints of open runs"),
    "deleted_run": ("deleted run's branches and pins", "deleted runs' branches and pins"),
}
# Removed only by name: the run may continue, and branches may be all that is left of a result.
OPT_IN_KINDS = ("unverified", "deleted_run")


@click.command("gc")
@click.argument("run", required=False)
@click.option("--only", type=click.Choice(list(KIND_LABELS)), multiple=True, help="Only this kind; may be repeated.")
@click.option("--dry-run", is_flag=True, help="List, ask nothing and remove nothing.")
@click.option(
    "--yes", is_flag=True, help="Remove all that is listed; `unverified` and `deleted_run` only if --only names them."
)
@options
def command(run: str | None, only: tuple[str, ...], dry_run: bool, yes: bool, out: Output) -> None:
    """List what RUN (or every run here) left that nobody needs, and remove what you agree to.

    Worktrees of rounds that died (edits that were not committed are kept under salvage/), quarantined branches, and
    checkpoints that neither the verified front nor anything it stands on needs. Unverified checkpoints of a run that
    is not closed stay unless you say so: a later verification or round may need them. So do branches and pins of a run
    whose directory was deleted. A run that another process holds is left alone.
    """
    from autoqec.system.git import Repo

    repo = Repo.discover(Path.cwd())
    n_listed, removed = _deleted_runs(repo, run, only, dry_run, yes, out)
    layouts = [RunLayout(repo.root, name) for name in locate.run_ids(repo.root)]
    if run is not None:
        layouts = [] if n_listed else [locate.run_layout(run)]
    for layout in layouts:
        try:
            removable = _list_items(layout, repo, only, out)
            n_listed += len(removable)
            selected = [one for one in removable if one.kind not in OPT_IN_KINDS or one.kind in only]
            confirmed = [] if dry_run else selected if yes else _confirm(removable)
            removed += _remove_items(layout, repo, confirmed, out)
        except AutoqecError as error:
            if run is not None:
                raise
            out.note(f"run {layout.run_id} is left alone: {error}")
    if not n_listed:
        out.note("nothing to remove")
    elif not removed and not dry_run:
        kinds = ", ".join(f"{kind} with --only {kind}" for kind in OPT_IN_KINDS)
        out.note(f"nothing was removed; --yes removes all that is listed; {kinds}")


def _deleted_runs(
    repo: Repo, run: str | None, only: Sequence[str], dry_run: bool, yes: bool, out: Output
) -> tuple[int, int]:
    """List what is left of runs whose directory is gone, and remove it; how many were listed and removed."""
    from autoqec.orchestrator.gc import RemovableItem
    from autoqec.orchestrator.run_directory import find_deleted_runs, remove_deleted_run

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
    from autoqec.errors import UsageError
    from autoqec.orchestrator import gc
    from autoqec.reporting.text import plain
    from autoqec.system import run_lock

    if run_lock.is_locked(layout.root):
        run_owner = run_lock.read(layout.root)
        message = f"the run is at work: process {run_owner.get('pid', '?')} on {run_owner.get('host', '?')} holds it"
        raise UsageError(message, location=f"run {layout.run_id}", hint="wait until it ends")
    removable = [one for one in gc.find_removable(layout, repo) if not only or one.kind in only]
    for one in removable:
        size = f"  {_bytes(one.bytes)}" if one.bytes else ""
        out.say(f"{layout.run_id}  {one.kind}  {plain(one.name)}{size}  {plain(one.why)}")
        out.emit({"run_id": layout.run_id, "removed": False, **one.dump()})
    return removable


def _confirm(removable: Sequence[RemovableItem]) -> list[RemovableItem]:
    """What the person at the terminal agrees to, one question a kind; nobody there agrees to nothing."""
    confirmed: list[RemovableItem] = []
    for kind, (one, many) in KIND_LABELS.items():
        items_of_kind = [item for item in removable if item.kind == kind]
        size = sum(item.bytes for item in items_of_kind)
        words = (
            f"Remove {len(items_of_kind)} "
            f"{one if len(items_of_kind) == 1 else many}{f' ({_bytes(size)})' if size else ''}?"
        )
        try:
            if items_of_kind and click.confirm(words, err=True):
                confirmed += items_of_kind
        except click.Abort:
            return []
    return confirmed


def _remove_items(layout: RunLayout, repo: Repo, confirmed: Sequence[RemovableItem], out: Output) -> int:
    from autoqec.orchestrator import gc
    from autoqec.reporting.text import plain

    removed_items = gc.remove(layout, repo, confirmed) if confirmed else []
    for one in removed_items:
        out.say(f"removed {one.kind} {plain(one.name)}")
        out.emit({"run_id": layout.run_id, "removed": True, **one.dump()})
    return len(removed_items)


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
