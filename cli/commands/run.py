"""`autoqec run`: search for predecoders; each round is trained and verified on its own git branch."""

from __future__ import annotations

from typing import Any

import click

from autoqec.cli.common import Output, is_given, options, trust_option
from autoqec.cli.run_options import run_options


@click.command("run")
@click.argument("env_name", metavar="[ENV]", required=False)
@click.option("--resume", metavar="RUN", help="Continue RUN with its stored settings; options given here replace them.")
@run_options
@click.option("--dry-run", is_flag=True, help="Check everything and show the plan; write nothing.")
@trust_option()
@options
def command(env_name: str | None, resume: str | None, dry_run: bool, out: Output, **chosen: Any) -> None:
    """Search for predecoders for ENV: a packaged env (see `autoqec envs`) or an env file.

    Press Ctrl-C once to stop after the current rounds, twice to stop now. Continue with --resume.
    """
    from autoqec.cli.run_command import RunCommand

    given = {name: value for name, value in chosen.items() if is_given(name)}
    run = RunCommand(env_name, given, resume, out)
    if dry_run:
        run.show_plan()
    else:
        raise click.exceptions.Exit(run.carry_out())
