"""`autoqec stop`: end a run after its rounds in progress."""

from __future__ import annotations

import click

from autoqec import locate
from autoqec.cli.common import Output, options
from autoqec.errors import UsageError


@click.command("stop")
@click.argument("run")
@options
def command(run: str, out: Output) -> None:
    """End RUN after its rounds in progress, from any machine that shares the run directory."""
    from autoqec.store import run_control
    from autoqec.system import run_lock

    layout = locate.find_run(run)
    hint = f"autoqec run --resume {layout.run_id}"
    if (chain := run_control.read_detached(layout)) is not None:
        from autoqec.launch import detached

        ends_later = detached.stop(layout, chain)
        at_once = "now: none of its jobs runs, and a queued one is cancelled"
        when = "after its rounds in progress" if ends_later else at_once
        out.say(f"Run {layout.run_id} ends {when}. Continue it: {hint}")
        out.emit({"run_id": layout.run_id})
        return
    # A lock that does not reach other hosts says nothing about a process there; the next start withdraws the request.
    if not run_lock.is_locked(layout.root) and run_lock.unreliable_lock(layout.root) is None:
        raise UsageError("the run is not in progress", location=f"run {layout.run_id}", hint=hint)
    run_control.request_stop(layout)
    out.say(f"Run {layout.run_id} ends after its rounds in progress. Continue it: {hint}")
    out.emit({"run_id": layout.run_id})
