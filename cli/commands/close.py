"""`autoqec close`: no further round; the judge's secret is published."""

from __future__ import annotations

from pathlib import Path

import click

from autoqec.cli import paths
from autoqec.cli.common import Out, options


@click.command("close")
@click.argument("run")
@options
def command(run: str, out: Out) -> None:
    """Publish the secret of RUN, so that anyone can draw the judge's shots again. A closed run cannot be resumed."""
    from autoqec.orchestrator.publish_secret import close_run
    from autoqec.system.git import Repo

    layout = paths.run_layout(run)
    secret = close_run(layout, Repo.discover(Path.cwd()))
    out.say(f"Run {layout.run_id} is closed. Secret: {secret} (in {layout.published})")
    out.note("`autoqec verify` on its judged rounds draws the same shots again.")
    out.emit({"run_id": layout.run_id, "secret": secret})
