"""`autoqec export`: export a run for other tools."""

from __future__ import annotations

import os
from pathlib import Path

import click

from autoqec import locate
from autoqec.cli.common import Output, options
from autoqec.reporting.export import FORMATS, export


@click.command("export")
@click.argument("run")
@click.option("--format", "form", type=click.Choice(FORMATS), required=True, help="Output format; see above.")
@click.option(
    "--out",
    "target",
    type=click.Path(path_type=Path),
    help="File, or new directory for tensorboard and wandb; default: in exports/ of the run.",
)
@options
def command(run: str, form: str, target: Path | None, out: Output) -> None:
    """Export the results of RUN for other tools.

    \b
    csv          one line per row of the history
    sinter-csv   counts of the verification, for `sinter plot --in FILE`
    tensorboard  event files, for `tensorboard --logdir DIR`
                 (needs `pip install 'autoqec[tensorboard]'`)
    wandb        offline runs, for `wandb sync DIR/offline-run-*`; nothing is
                 uploaded (needs `pip install 'autoqec[wandb]'`)
    """  # noqa: D301 - click needs the character \\b
    path = export(locate.find_run(run), form, target)
    out.say(os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path))
    out.emit({"path": str(path), "format": form})
