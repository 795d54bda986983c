"""The command `autoqec`: a group that loads one file a command, and `run`, the main job."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import click

from autoqec import __version__
from autoqec.cli.common import Output, options, run_cli, trust_option

# name -> (module, one line of help): `--help` needs no command's module.
COMMANDS = {
    "run": ("autoqec.cli.autoqec", "Search for predecoders; each round is trained and verified on its own git branch."),
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
    "report": ("autoqec.cli.commands.report", "Write a run as one HTML page, or its charts as files."),
    "decode": ("autoqec.cli.commands.decode", "Decode shots with a checkpoint."),
    "export": ("autoqec.cli.commands.export", "Export the figures of a run as CSV, for sinter, TensorBoard or W&B."),
    "review-log": ("autoqec.cli.commands.review_log", "Review how a run searched."),
    "diagnose": ("autoqec.cli.commands.diagnose", "Explain why rounds failed or gained nothing, and suggest a config."),
    "evaluate": ("autoqec.cli.commands.evaluate", "Run an agent over a dataset of environments."),
    "search-designs": ("autoqec.cli.commands.search_designs", "Search predecoder designs in batches, without a run."),
    "bench-ideators": ("autoqec.cli.commands.bench_ideators", "Compare ideators on a table of measured configs."),
    "memory": ("autoqec.cli.commands.memory", "Show or extend a file with the rounds of several runs."),
    "mcp": ("autoqec.cli.commands.mcp", "Serve the runs of a repository over the Model Context Protocol."),
    "add-env": ("autoqec.cli.commands.add_env", "Create an env file interactively and check it by decoding shots."),
    "envs": ("autoqec.cli.commands.envs", "List the packaged envs."),
    "machine-state": ("autoqec.cli.commands.machine_state", "Show the resources of this machine and what rounds used."),
    "doctor": ("autoqec.cli.commands.doctor", "Check what AutoQEC needs on this machine, with hints."),
    "init": ("autoqec.cli.commands.init", "Create a small git repository with editable modules and an env."),
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
@click.version_option(__version__, prog_name="autoqec", message="%(prog)s %(version)s")
def group() -> None:
    """Search for neural predecoders of quantum error-correcting codes and verify each gain.

    Exit status: 0 success · 1 no round succeeded, or not verified · 2 invalid input · 3 paused, the user has to
    decide · 74 storage error · 130 interrupted, resumable.
    """


PROFILE_NAMES = ("smoke", "dev", "prod")
IDEATORS = ("tpe", "random", "evolve", "policy", "llm", "hybrid", "replay")


@group.command("run")
@click.argument("env_name", metavar="[ENV]", required=False)
@click.option("--rounds", type=click.IntRange(1), help="Finished rounds in all; 3 where nothing else limits.")
@click.option(
    "--profile", type=click.Choice(PROFILE_NAMES), default="dev", show_default=True,
    help="What a round trains and the judge draws: seconds to try it out, minutes, or hours.",
)  # fmt: skip
@click.option(
    "--seed", type=click.IntRange(0, 2**31 - 1), default=1, show_default=True, help="Same seed, same proposals."
)
@click.option("--secret-file", type=click.Path(path_type=Path), help="The judge's secret; for tests and replays only.")
@click.option(
    "--resume", metavar="RUN", help="Resume a run with the settings it has; an option named here replaces its setting."
)
@click.option("--ideator", type=click.Choice(IDEATORS), default="tpe", show_default=True, help="Who proposes.")
@click.option(
    "--pin",
    metavar="KEY=VALUE",
    multiple=True,
    help="Hold a knob of the config in every proposal, whoever proposes: training.loop=async, type=gnn, …",
)
@click.option("--no-llm", is_flag=True, help="Refuse an ideator that would ask a language model.")
@click.option("--model", help="Language model of the roles that one takes.")
@click.option(
    "--effort",
    type=click.Choice(["low", "medium", "high", "xhigh", "max"]),
    help="How much the language models think before they answer; the model's default where it is left out.",
)
@click.option("--cassette", type=click.Path(path_type=Path), help="Play this recording instead of asking a model.")
@click.option("--replay-of", metavar="RUN", help="The older run whose proposals `--ideator replay` repeats.")
@click.option(
    "--ideator-memory",
    metavar="CHECKPOINT",
    type=click.Path(path_type=Path),
    help="With llm or hybrid: the agent that RunTime saved there proposes, with its memory.",
)
@click.option(
    "--analyst-memory",
    metavar="CHECKPOINT",
    type=click.Path(path_type=Path),
    help="With llm or hybrid: the agent that RunTime saved there nominates, with its memory.",
)
@click.option(
    "--memory",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="What earlier runs learned: a model reads it, every run adds its rounds.",
)
@click.option("--open-surface/--no-open-surface", help="Let the language model edit code as well as the config.")
@click.option("--parallel", type=click.IntRange(1), default=1, show_default=True, help="Rounds measured at once.")
@click.option(
    "--threads", type=click.IntRange(1), default=1, show_default=True, help="Shared out among the rounds at once."
)
@click.option(
    "--executor",
    type=click.Choice(["local", "slurm"]),
    default="local",
    show_default=True,
    help="slurm: a job a round.",
)
@click.option("--slurm", metavar="KEY=VALUE", multiple=True, help="Of the jobs: time, cpus, mem, partition, …")
@click.option(
    "--budget",
    metavar="KEY=NUMBER,…",
    default="",
    help="What ends it, whichever comes first: rounds, hours (of this start), compute_hours, cpu_hours, gpu_hours (of "
    "training and measuring), plateau (rounds that leave the front as it is), usd, tokens (of models).",
)
@click.option("--dry-run", is_flag=True, help="Check everything, show the plan, write nothing.")
@trust_option()
@options
@click.pass_context
def run(context: click.Context, /, env_name: str | None, out: Output, **chosen: Any) -> None:
    """Search for predecoders of ENV: the name of a builtin env, or the path of an env file.

    Ctrl-C once: rounds being measured are finished. Twice: now. Either way `--resume` goes on.
    """
    from autoqec.cli import run_command
    from autoqec.launch.options import parse_run_options

    explicit = {name for name in chosen if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT}
    run_options = parse_run_options(env_name, explicit, **chosen)
    if chosen["dry_run"]:
        run_command.show_plan(run_options, out)
    else:
        raise click.exceptions.Exit(run_command.execute_run(run_options, out))


def main() -> None:
    sys.exit(run_cli(group, sys.argv[1:]))


if __name__ == "__main__":
    main()
