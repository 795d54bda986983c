"""`autoqec export`: a run's figures for other tools."""

from __future__ import annotations

import os
from pathlib import Path

import click

from autoqec import locate
from autoqec.cli.common import Output, options
from autoqec.reporting.export import FORMATS, export


@click.command("export")
@click.argument("run")
@click.option("--format", "form", type=click.Choice(FORMATS), required=True)
@click.option(
    "--out",
    "target",
    type=click.Path(path_type=Path),
    help="The file, or for tensorboard and wandb the new directory; below the run, in exports/, by default.",
)
@options
def command(run: str, form: str, target: Path | None, out: Output) -> None:
    """Write the figures of RUN for another tool.

    csv: a line a row of history. sinter-csv: the judge's counts, for `sinter plot --in FILE`. tensorboard: event
    files, for `tensorboard --logdir DIR`. wandb: offline runs, for `wandb sync DIR/offline-run-*`; nothing is sent.
    The last two need an extra: `pip install 'autoqec[tensorboard]'`, `pip install 'autoqec[wandb]'`.
    """
    path = export(locate.find_run(run), form, target)
    out.say(os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path))
    out.emit({"path": str(path), "format": form})
