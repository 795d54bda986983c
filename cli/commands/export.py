"""`autoqec export`: a run's figures for other tools."""

from __future__ import annotations

import os
from pathlib import Path

import click

from cli import places
from cli.common import Out, options


@click.command("export")
@click.argument("run")
@click.option("--format", "form", type=click.Choice(["csv", "sinter-csv", "tensorboard"]), required=True)
@click.option("--out", "target", type=click.Path(path_type=Path), help="Default: below the run, in exports/.")
@options
def command(run: str, form: str, target: Path | None, out: Out) -> None:
    """Write RUN as CSV (a line a row of history), for `sinter plot` (the judge's counts), or as tensorboard events."""
    from autoqec.report.export import export

    path = export(places.run_layout(run), form, target)
    out.say(os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path))
    out.emit({"path": str(path), "format": form})
