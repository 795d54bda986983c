"""`autoqec mcp`: the tools over stdin and stdout, for an assistant that starts them."""

from __future__ import annotations

import click

from autoqec import optional
from autoqec.cli import paths
from autoqec.cli.common import Out, options


@click.command("mcp")
@options
def command(out: Out) -> None:
    """Serve machine_state, query_history, show, propose and verify over stdio, for the repository one stands in."""
    from autoqec.cli.mcp_server import server

    root = paths.lab_root()
    optional.require("mcp", extra="mcp")
    made = server(root)
    out.note(f"serving {root} over stdio; end of input ends it")
    made.run("stdio")
