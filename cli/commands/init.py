"""`autoqec init`: create a workspace."""

from __future__ import annotations

from pathlib import Path

import click

from autoqec import locate
from autoqec.cli.common import Output, options
from autoqec.cli.workspace import make_workspace


@click.command("init")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option(
    "--env", "env_name", default="smoke", show_default=True, help="Packaged env, or env file, to copy to env.yaml."
)
@options
def command(directory: Path, env_name: str, out: Output) -> None:
    """Create a git repository in DIRECTORY with editable modules and an env, ready for `autoqec run`.

    Also writes skills, agents and an MCP configuration for coding assistants (.claude/, .mcp.json).
    """
    commit = make_workspace(directory, locate.env_file(env_name))
    out.say(f"{directory} is ready. Next: cd {directory} && autoqec run env.yaml --profile smoke --rounds 2")
    out.emit({"directory": str(directory.resolve()), "env": "env.yaml", "commit": commit})
