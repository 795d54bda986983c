"""`autoqec init`: a small repository to run in, for those who installed the package."""

from __future__ import annotations

from pathlib import Path

import click

from autoqec import locate
from autoqec.cli.common import Output, options


@click.command("init")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--env", "env_name", default="smoke", show_default=True, help="Builtin env to start from.")
@options
def command(directory: Path, env_name: str, out: Output) -> None:
    """Make DIRECTORY a git repository with a search surface and an env, ready for `autoqec run`."""
    from autoqec.cli.workspace import make_workspace

    commit = make_workspace(directory, locate.env_file(env_name))
    out.say(f"{directory} is ready. Next: cd {directory} && autoqec run env.yaml --profile smoke --rounds 2")
    out.emit({"directory": str(directory.resolve()), "env": "env.yaml", "commit": commit})
