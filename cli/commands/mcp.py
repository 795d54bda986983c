"""`autoqec mcp`: the tools over stdin and stdout, for an assistant that starts them."""

from __future__ import annotations

import click

from autoqec import locate, optional
from autoqec.cli.common import Output, options


@click.command("mcp")
@options
def command(out: Output) -> None:
    """Serve machine_state, query_history, show, propose and verify over stdio, for the repository one stands in."""
    from autoqec.cli.mcp_server import server

    root = locate.workspace_root()
    optional.require_installed("mcp", extra="mcp")
    mcp = server(root)
    out.note(f"serving {root} over stdio; end of input ends it")
    mcp.run("stdio")
