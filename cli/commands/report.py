"""`autoqec report`: a run as one page to open in a browser, or its charts as files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from autoqec import locate
from autoqec.cli.common import Output, options
from autoqec.errors import UsageError
from autoqec.store import layout


@click.command("report")
@click.argument("runs", metavar="RUN…", nargs=-1, required=True)
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", "svg", "png"]),
    default="html",
    show_default=True,
    help="The page, or the charts as pictures.",
)
@click.option("--out", "target", type=click.Path(path_type=Path), help="The page's file, or the charts' directory.")
@click.option("--serve", is_flag=True, help="Follow the run on this machine's loopback, until Ctrl-C.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of --serve; 0 takes a free one.")
@options
def command(runs: tuple[str, ...], form: str, target: Path | None, serve: bool, port: int, out: Output) -> None:
    """One page about each RUN (an id, or the path of its directory), several side by side: claim, charts, every round.

    The page is one file that fetches nothing; mail it, or open it in any browser. It goes into the run's directory;
    of several runs, into runs/. With --format svg or png, the charts alone, as files.
    """
    chosen = _run_layouts(runs)
    if serve:
        if form != "html" or target:
            raise UsageError("--serve writes no file", location="--serve", hint="leave out --format and --out")
        _serve(chosen, port, out)
        return
    shared = chosen[0].root.parent
    if form == "html":
        from autoqec.reporting import html

        default = chosen[0].html if len(chosen) == 1 else shared / "report.html"
        written = [html.write(chosen, _require_file(target or default))]
    else:
        from autoqec.reporting import figures, run_report

        default = chosen[0].plots if len(chosen) == 1 else shared / "plots"
        written = figures.save(target or default, form, run_report.load_pages(chosen))
    for path in written:
        out.say(os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path))
        out.emit({"path": str(path), "bytes": path.stat().st_size})
    if not written:
        out.note("nothing has been measured yet, so there is nothing to draw")


def _run_layouts(runs: Sequence[str]) -> list[layout.RunLayout]:
    layouts = {locate.find_run(run).root: locate.find_run(run) for run in runs}
    ids = [item.run_id for item in layouts.values()]
    duplicate = next((item for item in layouts.values() if ids.count(item.run_id) > 1), None)
    if duplicate is not None:
        raise UsageError(
            "another run of the same id is named, too", location=str(duplicate.root), hint="report them apart"
        )
    return list(layouts.values())


def _require_file(path: Path) -> Path:
    if path.is_dir():
        raise UsageError("is a directory", location=str(path), hint="name a file: --out report.html")
    return path


def _serve(chosen: list[layout.RunLayout], port: int, out: Output) -> None:
    from autoqec.reporting.serve import ReportServer

    with ReportServer(chosen, port) as server:
        out.say(f"{server.address}  (Ctrl-C ends it)")
        out.emit({"address": server.address})
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
