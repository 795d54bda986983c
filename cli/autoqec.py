"""The command `autoqec`: a group that loads one file a command, and `run`, the main job."""

from __future__ import annotations

import importlib
import sys

import click

from cli.common import call

# name -> (module, one line of help): `--help` needs no command's module.
COMMANDS = {
    "run": ("cli.autoqec", "Search for predecoders: rounds, each one a git branch, judged on unseen shots."),
    "run-round": ("cli.commands.run_round", "One Runner round: train and measure one predecoder."),
    "verify": ("cli.commands.verify", "Have the judge decide about one round."),
    "reconcile": ("cli.commands.reconcile", "Bring a run's files and branches back in line after a crash."),
    "show": ("cli.commands.show", "List runs, or show one run's rounds and front."),
    "review-log": ("cli.commands.review_log", "Mechanical findings about how a run searched."),
    "diagnose": ("cli.commands.diagnose", "Why rounds ended as they did, and the config to try instead."),
    "envs": ("cli.commands.envs", "List the envs that can be named without a path."),
    "machine-state": ("cli.commands.machine_state", "What this machine has, and what a run's rounds took."),
    "doctor": ("cli.commands.doctor", "Check what autoqec needs here, and say how to mend what is missing."),
    "init": ("cli.commands.init", "Make a small git repository with a search surface and an env."),
}


class LazyGroup(click.Group):
    """Commands from the table above, imported when called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        if cmd_name == "run":
            return run
        command: click.Command = importlib.import_module(COMMANDS[cmd_name][0]).command
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, help_line) in COMMANDS.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="autoqec", message="%(prog)s %(version)s")
def group() -> None:
    """Discovers neural predecoders for quantum error-correcting codes, unattended, and proves what it found.

    Exit status: 0 done · 1 no round ended ok, or the judge did not verify · 2 wrong input · 3 paused for a person ·
    74 the disk failed · 130 interrupted, resumable.
    """


def main() -> None:
    sys.exit(call(group, sys.argv[1:]))


if __name__ == "__main__":
    main()
