"""`autoqec mcp`: MCP server on stdin and stdout."""

from __future__ import annotations

import click

from autoqec import locate, optional
from autoqec.cli.common import Output, options


@click.command("mcp")
@options
def command(out: Output) -> None:
    """Serve the runs of the current repository to an MCP client, on stdin and stdout.

    Tools: machine_state, query_history, show, propose, verify. Resources: report, log and history of each run.
    """
    root = locate.workspace_root()
    optional.require_installed("mcp", extra="mcp")
    from autoqec.extensions.language_models.mcp_server import server

    mcp = server(root)
    out.note(f"serving {root} on stdin and stdout; close stdin to stop")
    mcp.run("stdio")
