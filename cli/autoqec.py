"""Command `autoqec`: the group, which imports each command when it is called."""

from __future__ import annotations

import importlib
import sys

import click

from autoqec import plugins
from autoqec.cli.common import run_cli
from autoqec.errors import UsageError
from autoqec.installation import __version__

# name -> (module, one line of help): `--help` needs no command's module.
COMMANDS = {
    "run": (
        "autoqec.cli.commands.run",
        "Search for predecoders; each round is trained and verified on its own git branch.",
    ),
    "run-round": ("autoqec.cli.commands.run_round", "Train and measure one predecoder, without a run."),
    "verify": ("autoqec.cli.commands.verify", "Verify one round on fresh shots, or replay its report."),
    "adopt": ("autoqec.cli.commands.adopt", "Restore a quarantined round and verify it."),
    "close": ("autoqec.cli.commands.close", "End a run and publish its secret, so that others can replay it."),
    "package-run": ("autoqec.cli.commands.package_run", "Pack a run into one archive: branches, files, hashes."),
    "replay": ("autoqec.cli.commands.replay", "Restore an archive in a new directory and verify it again, offline."),
    "reconcile": ("autoqec.cli.commands.reconcile", "Repair files and branches of a run after a crash."),
    "gc": ("autoqec.cli.commands.gc", "List and remove leftovers of runs."),
    "show": ("autoqec.cli.commands.show", "List runs, or show rounds and Pareto front of one run."),
    "watch": ("autoqec.cli.commands.watch", "Follow a run live, from any terminal."),
    "stop": ("autoqec.cli.commands.stop", "End a run after its rounds in progress, from any machine."),
    "report": ("autoqec.cli.commands.report", "Write a run as one HTML page, or its charts as files."),
    "decode": ("autoqec.cli.commands.decode", "Decode shots with a checkpoint."),
    "measure": ("autoqec.cli.commands.measure", "Compare a checkpoint with matching on several circuits of a family."),
    "export": ("autoqec.cli.commands.export", "Export the figures of a run as CSV, for sinter, TensorBoard or W&B."),
    "review-log": ("autoqec.cli.commands.review_log", "Review how a run searched."),
    "diagnose": ("autoqec.cli.commands.diagnose", "Explain why rounds failed or gained nothing, and suggest a config."),
    "models": ("autoqec.cli.commands.models", "List, show, verify and locate the verified models in the package."),
    "add-env": ("autoqec.cli.commands.add_env", "Create an env file interactively and check it by decoding shots."),
    "envs": ("autoqec.cli.commands.envs", "List the packaged envs."),
    "machine-state": ("autoqec.cli.commands.machine_state", "Show the resources of this machine and what rounds used."),
    "doctor": ("autoqec.cli.commands.doctor", "Check what AutoQEC needs on this machine, with hints."),
    "init": ("autoqec.cli.commands.init", "Create a small git repository with editable modules and an env."),
}


class LazyGroup(click.Group):
    """Click group that imports a command of `COMMANDS` when it is called, and finds those of extensions."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all commands: those of `COMMANDS` in their order, then those of extensions."""
        return [*COMMANDS, *(name for name in plugins.names("autoqec.commands") if name not in COMMANDS)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; None for an unknown name."""
        if cmd_name in COMMANDS:
            command: click.Command = importlib.import_module(COMMANDS[cmd_name][0]).command
        elif cmd_name in plugins.names("autoqec.commands"):
            command = plugins.load("autoqec.commands", cmd_name)
        else:
            return None
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands; of these, only those of extensions are imported."""
        rows = {name: COMMANDS[name][1] if name in COMMANDS else _help_line(name) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            formatter.write_dl(list(rows.items()))


def _help_line(name: str) -> str:
    """Return the first line of the help of an extension's command, or why it cannot be used."""
    try:
        command: click.Command = plugins.load("autoqec.commands", name)
    except UsageError:
        return "(cannot be used: autoqec doctor)"
    return command.get_short_help_str(200)


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="autoqec", message="%(prog)s %(version)s")
def group() -> None:
    """Search for neural predecoders of quantum error-correcting codes and verify each gain.

    Exit status: 0 success · 1 no round succeeded, or not verified · 2 invalid input · 3 paused, the user has to
    decide · 74 storage error · 75 killed from outside, try again · 130 interrupted, resumable.
    """


def main() -> None:
    """Entry point of the `autoqec` script."""
    sys.exit(run_cli(group, sys.argv[1:]))


if __name__ == "__main__":
    main()
