"""`autoqec stop`: end a run after its rounds in progress."""

from __future__ import annotations

import click

from autoqec import locate
from autoqec.cli.common import Output, options
from autoqec.errors import UsageError
from autoqec.store import run_control
from autoqec.store.layout import RunLayout
from autoqec.system import run_lock


@click.command("stop")
@click.argument("run")
@options
def command(run: str, out: Output) -> None:
    """End RUN after its rounds in progress, from any machine that shares the run directory."""
    layout, when = locate.find_run(run), None
    if layout.detached.exists():
        from autoqec.orchestrator.plugin_protocols import executor_plugins

        when = next(filter(None, (plugin.stop(layout) for plugin in executor_plugins())), None)
    when = when or _stop_process(layout)
    out.say(f"Run {layout.run_id} ends {when}. Continue it: {_resume(layout)}")
    out.emit({"run_id": layout.run_id})


def _stop_process(layout: RunLayout) -> str:
    """Ask the process that runs rounds to end; return when it does."""
    owner, location = run_lock.read(layout.root), f"run {layout.run_id}"
    if run_lock.is_locked(layout.root):
        if owner.get("command", "run") != "run":
            holder = f"`autoqec {owner['command']}`, process {owner.get('pid', '?')} on {owner.get('host', '?')}"
            message = f"no rounds are in progress: {holder}, holds the run"
            raise UsageError(message, location=location, hint="wait for it; there is no other process to stop")
        run_control.request_stop(layout)
        return "after its rounds in progress"
    if run_lock.unreliable_lock(layout.root) is None:
        raise UsageError("the run is not in progress", location=location, hint=_resume(layout))
    # A lock that does not reach other hosts says nothing about a process there; the next start withdraws the request.
    run_control.request_stop(layout)
    host = owner.get("host", "another machine")
    return f"after its rounds in progress, if it runs on {host}, whose lock is not visible on this machine"


def _resume(layout: RunLayout) -> str:
    return f"autoqec run --resume {layout.run_id}"
