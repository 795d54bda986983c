"""`autoqec report`: write a run as an HTML page, or its charts as files."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import click

from autoqec import locate
from autoqec.cli.common import Output, is_given, options
from autoqec.errors import UsageError
from autoqec.reporting import figures, html, run_report
from autoqec.reporting.serve import ReportServer
from autoqec.store import layout


@click.command("report")
@click.argument("runs", metavar="RUN…", nargs=-1, required=True)
@click.option(
    "--format",
    "form",
    type=click.Choice(["html", "svg", "png"]),
    default="html",
    show_default=True,
    help="html: one page; svg, png: the charts as files.",
)
@click.option(
    "--out",
    "target",
    type=click.Path(path_type=Path),
    help="File of the page, or directory of the charts; default: in the run directory.",
)
@click.option("--serve", is_flag=True, help="Serve a page that follows the run at http://127.0.0.1, until Ctrl-C.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="Port of --serve; default: any free one.")
@options
def command(runs: tuple[str, ...], form: str, target: Path | None, serve: bool, port: int, out: Output) -> None:
    """Write an HTML page with results, charts and rounds of RUN; several runs are compared.

    RUN is the id of a run or its directory. The page is one self-contained file. It is written to the run directory, or
    to runs/ for several runs.
    """
    if is_given("port") and not serve:
        raise UsageError("needs --serve", location="--port", hint="add --serve")
    if serve and (is_given("form") or target):
        hint = "remove --format and --out"
        raise UsageError("cannot be combined with --format or --out", location="--serve", hint=hint)
    chosen = _run_layouts(runs)
    if serve:
        _serve(chosen, port, out)
        return
    shared = chosen[0].root.parent
    if form == "html":
        default = chosen[0].html if len(chosen) == 1 else shared / "report.html"
        written = [html.write(chosen, _require_file(target or default))]
    else:
        default = chosen[0].plots if len(chosen) == 1 else shared / "plots"
        written = figures.save(target or default, form, run_report.load_pages(chosen))
    for path in written:
        out.say(os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path))
        out.emit({"path": str(path), "bytes": path.stat().st_size})
    if not written:
        out.note("no charts: nothing has been measured yet")


def _run_layouts(runs: Sequence[str]) -> list[layout.RunLayout]:
    layouts = {locate.find_run(run).root: locate.find_run(run) for run in runs}
    ids = [item.run_id for item in layouts.values()]
    duplicate = next((item for item in layouts.values() if ids.count(item.run_id) > 1), None)
    if duplicate is not None:
        raise UsageError("another run has the same id", location=str(duplicate.root), hint="write one report per run")
    return list(layouts.values())


def _require_file(path: Path) -> Path:
    if path.is_dir():
        raise UsageError("is a directory", location=str(path), hint="--out report.html")
    return path


def _serve(chosen: list[layout.RunLayout], port: int, out: Output) -> None:
    with ReportServer(chosen, port) as server:
        out.say(f"{server.address}  (stop with Ctrl-C)")
        out.emit({"address": server.address})
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            return
