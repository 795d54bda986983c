"""`autoqec show`: the runs of this repository, or one of them."""

from __future__ import annotations

from pathlib import Path

import click

from autoqec.errors import AutoqecError
from cli import places
from cli.common import Out, options


@click.command("show")
@click.argument("run", required=False)
@options
def command(run: str | None, out: Out) -> None:
    """List the runs here; with RUN its rounds, its verified front and what the best decoder gains."""
    if run is None:
        _list(places.lab_root(), out)
        return
    from autoqec.report import run_view
    from autoqec.report.summary import print_summary
    from autoqec.report.terminal import console

    view = run_view.load(places.run_layout(run))
    print_summary(console(err=out.json), view)
    out.emit(view.dump())


def _list(root: Path, out: Out) -> None:
    from autoqec.report import run_view
    from autoqec.report.text import plain
    from autoqec.store.layout import RunLayout

    ids = places.run_ids(root)
    if not ids:
        out.say("No runs here yet. Start one: autoqec run smoke --profile smoke --rounds 2")
    for run_id in ids:
        try:
            view = run_view.load(RunLayout(root, run_id))
        except AutoqecError as error:
            out.say(f"{run_id}  {plain(str(error))}")
            out.emit({"run_id": run_id, **error.to_json()})
            continue
        info = view.info
        out.say(
            f"{run_id}  {plain(info.env_name)}  profile {info.profile}  seed {info.seed}  "
            f"{len(view.rows)} rows, {view.verified} verified, {len(view.front)} on the front"
        )
        out.emit(
            {
                "run_id": run_id,
                "env": info.env_name,
                "profile": info.profile,
                "seed": info.seed,
                "rows": len(view.rows),
                "verified": view.verified,
                "front": len(view.front),
            }
        )
