"""`autoqec show`: list runs, or show one."""

from __future__ import annotations

from pathlib import Path

import click
from rich.text import Text

from autoqec import locate
from autoqec.cli.common import Output, options
from autoqec.errors import AutoqecError, UsageError
from autoqec.locate import find_deleted_runs
from autoqec.orchestrator import fork_graph
from autoqec.orchestrator.memory import RunMemory
from autoqec.reporting import run_report
from autoqec.reporting.summary import VERDICT_STYLE, print_summary
from autoqec.reporting.terminal import console
from autoqec.reporting.text import plain, pluralize
from autoqec.reporting.watch import describe_job
from autoqec.store.layout import RunLayout
from autoqec.system.git import Repo


@click.command("show")
@click.argument("run", required=False)
@click.option("--graph", is_flag=True, help="Show the fork graph; * marks rounds on the Pareto front.")
@click.option("--dot", is_flag=True, help="Print the fork graph for Graphviz: autoqec show RUN --dot | dot -Tsvg.")
@options
def command(run: str | None, graph: bool, dot: bool, out: Output) -> None:
    """List the runs of this repository; with RUN, show its rounds, Pareto front and best verified gain."""
    if graph and dot:
        raise UsageError("cannot be combined with --dot", location="--graph", hint="remove one of them")
    if (graph or dot) and run is None:
        raise UsageError(
            "is required with --graph and --dot", location="RUN", hint="autoqec show; then autoqec show RUN --graph"
        )
    if run is None:
        _list(locate.workspace_root(), out)
        return
    if graph or dot:
        _graph(locate.run_layout(run), dot, out)
        return

    view = run_report.load(locate.run_layout(run))
    print_summary(console(err=out.json), view)
    if (job := describe_job(view.layout)) is not None:
        out.say(job)
    out.emit(view.dump())


def _graph(layout: RunLayout, dot: bool, out: Output) -> None:
    """Print the fork graph, computed from the history and not read from a view, which may be outdated."""
    value = RunMemory(layout.root).graph()
    if dot:
        out.say(fork_graph.dot(value).rstrip())
    else:
        target = console(err=out.json)
        for line, kind in fork_graph.draw(value):
            target.print(Text(plain(line, 2000), style=VERDICT_STYLE.get(kind, "")), soft_wrap=True)
    out.emit(value)


def _list(root: Path, out: Output) -> None:
    ids = locate.run_ids(root)
    for deleted in find_deleted_runs(Repo.discover(root)):
        out.say(f"{deleted.run_id}  {deleted.message}; `autoqec gc {deleted.run_id}` removes them")
        out.emit({"run_id": deleted.run_id, "deleted": True, "what": deleted.message})
    if not ids:
        out.say("No runs yet. Start one: autoqec run smoke --profile smoke --rounds 2")
    for run_id in ids:
        try:
            view = run_report.load(RunLayout(root, run_id))
        except AutoqecError as error:
            out.say(f"{run_id}  {plain(str(error))}")
            out.emit({"run_id": run_id, **error.to_json()})
            continue
        info = view.info
        out.say(
            f"{run_id}  {plain(info.env_name)}  profile {info.profile}  seed {info.seed}  "
            f"{pluralize(len(view.latest_rows), 'round')}, {view.n_verified} verified, {len(view.front)} on the front"
        )
        out.emit(
            {
                "run_id": run_id,
                "env": info.env_name,
                "profile": info.profile,
                "seed": info.seed,
                "rows": len(view.rows),
                "verified": view.n_verified,
                "front": len(view.front),
            }
        )
