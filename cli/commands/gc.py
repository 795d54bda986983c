"""`autoqec gc`: what runs left that nobody needs any more."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autoqec.cli import paths
from autoqec.cli.common import Out, options
from autoqec.errors import AutoqecError
from autoqec.store.layout import RunLayout

if TYPE_CHECKING:
    from autoqec.orchestrator.gc import Garbage
    from autoqec.system.git import Repo

WORDS = {
    "worktree": ("worktree of a round that died", "worktrees of rounds that died"),
    "quarantine": ("quarantined branch", "quarantined branches"),
    "checkpoint": ("checkpoint that no front needs", "checkpoints that no front needs"),
    "unverified": ("unverified checkpoint of an open run", "unverified checkpoints of open runs"),
}
KEPT = "unverified"  # goes only by name: the run may go on


@click.command("gc")
@click.argument("run", required=False)
@click.option("--only", type=click.Choice(list(WORDS)), multiple=True, help="Only this kind; may be repeated.")
@click.option("--dry-run", is_flag=True, help="List, ask nothing and remove nothing.")
@click.option("--yes", is_flag=True, help="Remove all that is listed; `unverified` only where --only names it.")
@options
def command(run: str | None, only: tuple[str, ...], dry_run: bool, yes: bool, out: Out) -> None:
    """List what RUN (or every run here) left that nobody needs, and remove what you agree to.

    Worktrees of rounds that died (edits that were not committed are kept under salvage/), quarantined branches, and
    checkpoints that neither the verified front nor anything it stands on needs. Unverified checkpoints of a run that
    is not closed stay unless you say so: a later judgement or round may want them. A run at work is left alone.
    """
    from autoqec.system.git import Repo

    repo = Repo.discover(Path.cwd())
    layouts = [paths.run_layout(run)] if run else [RunLayout(repo.root, name) for name in paths.run_ids(repo.root)]
    found = removed = 0
    for layout in layouts:
        try:
            listed = _listed(layout, repo, only, out)
            found += len(listed)
            every = [one for one in listed if one.kind != KEPT or KEPT in only]
            agreed = [] if dry_run else every if yes else _asked(listed)
            removed += _remove(layout, repo, agreed, out)
        except AutoqecError as error:
            if run is not None:
                raise
            out.note(f"run {layout.run_id} is left alone: {error}")
    if not found:
        out.note("nothing to remove")
    elif not removed and not dry_run:
        out.note(f"nothing was removed; --yes removes all that is listed, {KEPT} ones with --only {KEPT}")


def _listed(layout: RunLayout, repo: Repo, only: Sequence[str], out: Out) -> list[Garbage]:
    from autoqec.errors import InputError
    from autoqec.orchestrator import gc
    from autoqec.reporting.text import plain
    from autoqec.system import run_lock

    if run_lock.is_held(layout.root):
        who = run_lock.read(layout.root)
        what = f"the run is at work: process {who.get('pid', '?')} on {who.get('host', '?')} holds it"
        raise InputError(what, where=f"run {layout.run_id}", mend="wait until it ends")
    listed = [one for one in gc.find(layout, repo) if not only or one.kind in only]
    for one in listed:
        size = f"  {_bytes(one.bytes)}" if one.bytes else ""
        out.say(f"{layout.run_id}  {one.kind}  {plain(one.name)}{size}  {plain(one.why)}")
        out.emit({"run_id": layout.run_id, "removed": False, **one.dump()})
    return listed


def _asked(listed: Sequence[Garbage]) -> list[Garbage]:
    """What the person at the terminal agrees to, one question a kind; nobody there agrees to nothing."""
    agreed: list[Garbage] = []
    for kind, (one, many) in WORDS.items():
        these = [thing for thing in listed if thing.kind == kind]
        size = sum(thing.bytes for thing in these)
        words = f"Remove {len(these)} {one if len(these) == 1 else many}{f' ({_bytes(size)})' if size else ''}?"
        try:
            if these and click.confirm(words, err=True):
                agreed += these
        except click.Abort:
            return []
    return agreed


def _remove(layout: RunLayout, repo: Repo, agreed: Sequence[Garbage], out: Out) -> int:
    from autoqec.orchestrator import gc
    from autoqec.reporting.text import plain

    gone = gc.remove(layout, repo, agreed) if agreed else []
    for one in gone:
        out.say(f"removed {one.kind} {plain(one.name)}")
        out.emit({"run_id": layout.run_id, "removed": True, **one.dump()})
    return len(gone)


def _bytes(size: float) -> str:
    for unit in ("B", "kB", "MB", "GB"):
        if size < 999.5:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
