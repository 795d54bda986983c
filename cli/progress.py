"""Progress of long commands: shown on the terminal, and printed as JSON objects with --json."""

from __future__ import annotations

from autoqec.cli.common import Output
from autoqec.contracts.events import Event, OnEvent
from autoqec.reporting.terminal import LiveView


def broadcast(view: LiveView, out: Output) -> OnEvent:
    """Return a callback that shows each event in `view` and prints it with --json."""

    def on_event(event: Event) -> None:
        view(event)
        out.emit({"event": event.kind, **event.payload()})

    return on_event
