"""`autoqec run`: search for predecoders; each round is trained and verified on its own git branch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from autoqec.cli.common import Output, options, recorded_option, trust_option

PROFILE_NAMES = ("smoke", "dev", "prod")
IDEATORS = ("tpe", "random", "evolve", "policy", "llm", "hybrid", "replay")
RENAMED_OPTIONS = {"open-surface": "open-modules", "no-open-surface": "no-open-modules"}


def _current_option_name(name: str) -> str:
    """Accept option names of earlier versions."""
    return RENAMED_OPTIONS.get(name, name)


@click.command("run", context_settings={"token_normalize_func": _current_option_name})
@click.argument("env_name", metavar="[ENV]", required=False)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    help="Number of finished rounds, including those before --resume; default: 3 if no --budget is given.",
)
@click.option(
    "--profile", type=click.Choice(PROFILE_NAMES), default="dev", show_default=True,
    help="Training and verification effort per round: seconds (to try it out), minutes or hours.",
)  # fmt: skip
@click.option(
    "--scale", type=click.FloatRange(0.01, 1000),
    help="Factor on the profile's training and verification; default: 1, in `dev` up to 5 for large matching graphs.",
)  # fmt: skip
@click.option(
    "--seed",
    type=click.IntRange(0, 2**31 - 1),
    default=1,
    show_default=True,
    help="Random seed of the proposals and of training.",
)
@click.option(
    "--secret-file",
    type=click.Path(path_type=Path),
    help="File with the secret of the verification shots; for tests only.",
)
@click.option("--resume", metavar="RUN", help="Continue RUN with its stored settings; options given here replace them.")
@recorded_option
@click.option(
    "--ideator", type=click.Choice(IDEATORS), default="tpe", show_default=True, help="Method that proposes the rounds."
)
@click.option(
    "--pin",
    metavar="KEY=VALUE",
    multiple=True,
    help="Fix a key of the config in every proposal, e.g. type=gnn or training.loop=async. Repeatable.",
)
@click.option("--no-llm", is_flag=True, help="Fail if the chosen ideator calls a language model.")
@click.option("--model", help="Language model for --ideator llm and hybrid.")
@click.option(
    "--price",
    metavar="in=X,out=Y",
    help="Price of the language model in US dollars per million tokens (cache_read=Z for cached ones), for a model "
    "whose price --budget usd does not know.",
)
@click.option(
    "--effort",
    type=click.Choice(["low", "medium", "high", "xhigh", "max"]),
    help="Reasoning effort of the language model; default: that of the model.",
)
@click.option(
    "--cassette",
    type=click.Path(path_type=Path),
    help="Replay recorded answers from this file instead of calling a model.",
)
@click.option("--replay-of", metavar="RUN", help="Earlier run whose proposals --ideator replay repeats.")
@click.option(
    "--ideator-memory",
    metavar="CHECKPOINT",
    type=click.Path(path_type=Path),
    help="Checkpoint of `autoqec evaluate` whose agent proposes, with its memory; for llm and hybrid.",
)
@click.option(
    "--analyst-memory",
    metavar="CHECKPOINT",
    type=click.Path(path_type=Path),
    help="Checkpoint of `autoqec evaluate` whose agent nominates, with its memory; for llm and hybrid.",
)
@click.option(
    "--memory",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="File with rounds of earlier runs: shown to the language model; this run adds its rounds at the end.",
)
@click.option(
    "--open-modules/--no-open-modules",
    help="Let the language model edit the code of the editable modules, not only the config; for llm.",
)
@click.option(
    "--parallel",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of rounds trained at the same time.",
)
@click.option(
    "--threads",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of CPU threads, shared by parallel rounds.",
)
@click.option(
    "--executor",
    type=click.Choice(["local", "slurm"]),
    default="local",
    show_default=True,
    help="Where rounds are trained; slurm submits one job per round.",
)
@click.option(
    "--slurm",
    metavar="KEY=VALUE",
    multiple=True,
    help="Option of the SLURM jobs: time, cpus, mem, partition, … Repeatable.",
)
@click.option(
    "--detach/--no-detach",
    help="Run the search in a SLURM job too, so that no process stays here; needs --executor slurm.",
)
@click.option(
    "--detach-slurm",
    metavar="KEY=VALUE",
    multiple=True,
    help="Option of the job of --detach; default: time=60, cpus=1, mem=4G, and partition, account and qos of --slurm.",
)
@click.option(
    "--container",
    metavar="IMAGE",
    type=click.Path(path_type=Path),
    help="Apptainer image in which the SLURM jobs run; the manifests of rounds record its digest.",
)
@click.option(
    "--budget",
    metavar="KEY=NUMBER,…",
    default="",
    help="Limits; the run stops at the first one reached. hours: elapsed time from this start, or from the start of a "
    "detached run, including its time in the queue; compute_hours, cpu_hours, gpu_hours: training and validation; "
    "plateau: rounds without a change of the Pareto front; usd, tokens: language models; rounds.",
)
@click.option("--dry-run", is_flag=True, help="Check everything and show the plan; write nothing.")
@trust_option()
@options
@click.pass_context
def command(context: click.Context, /, env_name: str | None, out: Output, **chosen: Any) -> None:
    """Search for predecoders for ENV: a packaged env (see `autoqec envs`) or an env file.

    Press Ctrl-C once to stop after the current rounds, twice to stop now. Continue with --resume.
    """
    from autoqec.cli import run_command
    from autoqec.extensions.slurm import detached
    from autoqec.launch.options import parse_run_options

    explicit = {name for name in chosen if context.get_parameter_source(name) is not click.core.ParameterSource.DEFAULT}
    if detached.is_own_job(chosen["resume"]):
        code = run_command.continue_detached(
            chosen["resume"], lambda: parse_run_options(env_name, explicit, **chosen), out
        )
        raise click.exceptions.Exit(code)
    run_options = parse_run_options(env_name, explicit, **chosen)
    if chosen["dry_run"]:
        run_command.show_plan(run_options, out)
    elif run_options.orchestrator is not None:
        run_command.detach_run(run_options, out)
    else:
        raise click.exceptions.Exit(run_command.execute_run(run_options, out))
