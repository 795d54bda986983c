"""`autoqec watch`: the live screen of a run, from any terminal."""

from __future__ import annotations

import click

from autoqec import locate
from autoqec.cli.common import Output, options


@click.command("watch")
@click.argument("run")
@options
def command(run: str, out: Output) -> None:
    """Follow RUN until nobody runs it any more, then show what it came to. Ctrl-C leaves; the run goes on."""
    from autoqec.reporting.terminal import console
    from autoqec.reporting.watch import watch

    try:
        view = watch(locate.find_run(run), console(err=out.json), quiet=out.quiet)
    except KeyboardInterrupt:
        return
    out.note(f"Nobody is running {view.info.run_id} now.")
    out.emit(view.dump())
