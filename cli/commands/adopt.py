"""`autoqec adopt`: restore a quarantined round and verify it."""

from __future__ import annotations

from pathlib import Path

import click

from autoqec import locate
from autoqec.cli.common import Output, options, trust_option
from autoqec.cli.progress import broadcast
from autoqec.orchestrator.restore_round import restore_round
from autoqec.reporting.terminal import LiveView, console
from autoqec.reporting.text import plain
from autoqec.system.git import Repo


@click.command("adopt")
@click.argument("run")
@click.argument("number", metavar="ROUND", type=click.IntRange(1))
@trust_option()
@options
def command(run: str, number: int, out: Output) -> None:
    """Restore the branch of the quarantined round number ROUND of RUN, and verify the round.

    Exit status: 0 VERIFIED, 1 any other verdict.
    """
    with LiveView(console(err=True), quiet=out.quiet) as view:
        row = restore_round(locate.run_layout(run), Repo.discover(Path.cwd()), number, broadcast(view, out))
    out.say(f"Round {number} restored on {plain(str(row.branch))}: {row.verify_verdict}")
    out.emit(row.dump())
    if row.verify_verdict != "VERIFIED":
        raise click.exceptions.Exit(1)
