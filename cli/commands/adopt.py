"""`autoqec adopt`: a round that a crash set aside, brought back through the judge."""

from __future__ import annotations

from pathlib import Path

import click

from autoqec import locate
from autoqec.cli.common import Output, options, trust_option


@click.command("adopt")
@click.argument("run")
@click.argument("number", metavar="ROUND", type=click.IntRange(1))
@trust_option()
@options
def command(run: str, number: int, out: Output) -> None:
    """Have the judge decide about the quarantined ROUND of RUN, and put its branch back."""
    from autoqec.orchestrator.restore_round import restore_round
    from autoqec.reporting.terminal import LiveView, console
    from autoqec.reporting.text import plain
    from autoqec.system.git import Repo

    with LiveView(console(err=True), quiet=out.quiet) as view:
        row = restore_round(locate.run_layout(run), Repo.discover(Path.cwd()), number, view)
    out.say(f"Round {number} is back on {plain(str(row.branch))}: {row.verify_verdict}")
    out.emit(row.dump())
    if row.verify_verdict != "VERIFIED":
        raise click.exceptions.Exit(1)
