"""`autoqec close`: end a run and publish its secret."""

from __future__ import annotations

from pathlib import Path

import click

from autoqec import locate
from autoqec.cli.common import Output, options
from autoqec.orchestrator.archive import publish_secret
from autoqec.system.git import Repo


@click.command("close")
@click.argument("run")
@options
def command(run: str, out: Output) -> None:
    """End RUN and publish its secret, so that others can repeat its verification.

    A closed run cannot be resumed.
    """
    layout = locate.run_layout(run)
    secret = publish_secret(layout, Repo.discover(Path.cwd()))
    out.say(f"Run {layout.run_id} is closed. Secret: {secret} (in {layout.secret_hex})")
    out.note("`autoqec verify ROUND_DIR --replay` repeats a verification with the same shots.")
    out.emit({"run_id": layout.run_id, "secret": secret})
