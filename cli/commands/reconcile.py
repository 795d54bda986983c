"""`autoqec reconcile`: repair a run after a crash or manual changes."""

from __future__ import annotations

from pathlib import Path

import click

from autoqec import locate
from autoqec.cli.common import Output, options
from autoqec.orchestrator.recovery.apply import reconcile
from autoqec.orchestrator.recovery.inspect import moved_branches
from autoqec.reporting.text import plain
from autoqec.system.git import Repo


@click.command("reconcile")
@click.argument("run")
@click.option("--dry-run", is_flag=True, help="Show what would be done; write nothing.")
@options
def command(run: str, dry_run: bool, out: Output) -> None:
    """Make files and branches of RUN consistent with its history, and rebuild its views.

    `autoqec run --resume` does this automatically.
    """
    repo = Repo.discover(Path.cwd())
    layout = locate.run_layout(run, root=repo.root)
    actions = reconcile(layout, repo, dry_run=dry_run)
    for action in actions:
        what = action.branch or (str(action.path) if action.path else "")
        out.say(" ".join(filter(None, [action.kind, plain(what), "·", plain(action.why)])))
        out.emit(action.dump())
    if not actions:
        out.note(f"run {layout.run_id} is consistent: nothing to do")
    for branch in moved_branches(repo, layout) if not dry_run else ():
        out.note(f"{branch} was moved by hand; later rounds fork from its recorded commit, which stays pinned")
