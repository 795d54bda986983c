"""`autoqec watch`: follow a run from any terminal."""

from __future__ import annotations

import click

from autoqec import locate
from autoqec.cli.common import Output, options
from autoqec.reporting.terminal import console
from autoqec.reporting.watch import watch


@click.command("watch")
@click.argument("run")
@options
def command(run: str, out: Output) -> None:
    """Follow RUN until it stops, then show its results. Ctrl-C stops watching, not the run."""
    try:
        view = watch(locate.find_run(run), console(err=out.json), quiet=out.quiet)
    except KeyboardInterrupt:
        return
    out.note(f"Run {view.info.run_id} has stopped.")
    out.emit(view.dump())
