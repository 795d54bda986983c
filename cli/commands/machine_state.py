"""`autoqec machine-state`: resources of this machine, and what rounds used."""

from __future__ import annotations

import json

import click

from autoqec import locate
from autoqec.cli.common import Output, options
from autoqec.reporting.machine_state import machine_state


@click.command("machine-state")
@click.argument("run", required=False)
@options
def command(run: str | None, out: Output) -> None:
    """Show cores, memory, disk and GPUs; with RUN also the resources that its rounds used."""
    state = machine_state(locate.run_layout(run) if run else None)
    out.emit(state)
    if not out.json:
        out.say(json.dumps(state, indent=2, ensure_ascii=False))
