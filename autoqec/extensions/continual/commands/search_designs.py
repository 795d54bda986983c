"""`autoqec search-designs`: search predecoder designs in batches, without a run."""

from __future__ import annotations

import math
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from autoqec import locate, optional
from autoqec.cli.common import Output, is_given, options
from autoqec.errors import UsageError

if TYPE_CHECKING:
    from autoqec.extensions.continual.environments.design_search import SearchProblem
    from autoqec.extensions.continual.environments.multi import AbstractMultiEnvironments


@click.command("search-designs")
@click.argument("env_name", metavar="ENV")
@click.option(
    "--table",
    type=click.Path(path_type=Path),
    help="Table of measured configs (JSON lines) to look results up in, instead of training.",
)
@click.option("--strategy", type=click.Choice(["random", "evolution", "policy"]), default="policy", show_default=True,
              help="Search method.")  # fmt: skip
@click.option("--designs", "budget", type=click.IntRange(1), default=32, show_default=True, help="Designs to evaluate.")
@click.option("--batch", "batch_size", type=click.IntRange(1), default=8, show_default=True, help="Designs per batch.")
@click.option(
    "--workers",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Number of processes (1: SerialEnvironments; more: ParallelEnvironments).",
)
@click.option("--hall-of-fame", type=click.IntRange(1), default=4, show_default=True, help="Best designs to keep.")
@click.option("--seed", type=click.IntRange(0, 2**31 - 1), default=1, show_default=True, help="Random seed.")
@click.option("--train-shots", type=click.IntRange(1), default=60_000, show_default=True, help="Training shots.")
@click.option("--finetune-shots", type=click.IntRange(0), default=1_000, show_default=True, help="Fine-tuning shots.")
@click.option("--val-shots", type=click.IntRange(1), default=10_000, show_default=True, help="Validation shots.")
@click.option(
    "--task",
    "tasks",
    multiple=True,
    type=click.Choice(["transients", "gain", "cost"]),
    default=("transients", "gain", "cost"),
    show_default=True,
    help="Plot of the best designs. Repeatable.",
)
@click.option("--no-figures", is_flag=True, help="Write no plots.")
@click.option(
    "--out", "directory", type=click.Path(path_type=Path), required=True, help="New directory for the result."
)
@options
def command(env_name: str, directory: Path, budget: int, tasks: tuple[str, ...], out: Output, **chosen: Any) -> int:
    """Search predecoder designs for ENV in batches and keep the best ones.

    Designs are trained briefly with the modules of the package, or looked up with --table. Nothing is verified: use the
    configs in DIR/designs with `autoqec run-round`, or as a starting point of a run. Exit status 1: no design could be
    evaluated.
    """
    from autoqec.extensions.continual.environments.design_search import STRATEGIES, SearchOutput, run_search

    _check_options(chosen)
    tasks = () if chosen["no_figures"] else tuple(dict.fromkeys(tasks))
    if tasks:
        optional.require_installed("matplotlib", extra="report")
    problem = _problem(env_name, chosen)
    (template,) = problem.environments(1)
    strategy = STRATEGIES[chosen["strategy"]](problem.action_space, template, chosen["seed"])
    output = SearchOutput(directory)
    with ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", RuntimeWarning)  # the failures are reported below
        batch = _batch(problem, min(chosen["batch_size"], budget), chosen, stack)
        infos: list[dict[str, Any]] = []

        def on_batch(envs: Any, losses: Any) -> None:
            output.record(envs, losses)
            infos.extend(batch.task_infos)
            best = batch.hall_of_fame.losses[0] if batch.hall_of_fame else math.inf
            out.emit({"event": "batch", "evaluated": len(infos), "best_loss": best if math.isfinite(best) else None})

        losses = run_search(strategy, batch, problem.routine, budget, on_batch)
        entries = output.write_best(batch, tasks)
    _report(entries, losses, infos, directory, out)
    return 0 if entries else 1


def _check_options(chosen: dict[str, Any]) -> None:
    if chosen["no_figures"] and is_given("tasks"):
        raise UsageError("cannot be combined with --no-figures", location="--task", hint="remove one of them")
    unused = [name for name in ("train_shots", "finetune_shots", "val_shots") if is_given(name)]
    if chosen["table"] is not None and unused:
        option = f"--{unused[0].replace('_', '-')}"
        raise UsageError("does not apply to --table, which trains nothing", location=option, hint=f"remove {option}")


def _problem(env_name: str, chosen: dict[str, Any]) -> SearchProblem:
    from autoqec.extensions.continual.environments.design_search import SearchProblem
    from autoqec.extensions.continual.environments.routines import ScreenRoutine
    from autoqec.store.files import load_env

    env, text = load_env(locate.env_file(env_name))
    if chosen["table"] is not None:
        return SearchProblem.tabular(env, chosen["table"])
    names = ("train_shots", "finetune_shots", "val_shots", "seed")
    return SearchProblem.screen(env, ScreenRoutine(text, **{name: chosen[name] for name in names}))


def _batch(problem: SearchProblem, size: int, chosen: dict[str, Any], stack: ExitStack) -> AbstractMultiEnvironments:
    from autoqec.extensions.continual.environments import ParallelEnvironments, SerialEnvironments

    envs = problem.environments(size)
    if chosen["workers"] == 1:
        return SerialEnvironments(envs, chosen["hall_of_fame"])
    batch = ParallelEnvironments(envs, chosen["hall_of_fame"], n_workers=chosen["workers"])
    return stack.enter_context(batch)


def _report(
    entries: list[dict[str, Any]], losses: list[float], infos: list[dict[str, Any]], directory: Path, out: Output
) -> None:
    """Print the best designs, and how many could not be evaluated and why."""
    failed = [info for loss, info in zip(losses, infos, strict=True) if not math.isfinite(loss)]
    reasons = [info.get("error") or info.get("status_reason") or str(info.get("status")) for info in failed]
    out.emit({"event": "search_finished", "evaluated": len(losses), "failed": len(failed), "best": entries})
    for entry in entries:
        gain = f"gain {entry['relative']:+.4f}, at least {entry['relative_low']:+.4f}"
        out.say(
            f"{entry['rank']:>3}  {entry['dsl_config']['type']:<9} loss {entry['loss']:+.4f}  {gain}  "
            f"{entry['n_params']:,} parameters, {entry['flops_per_syndrome']:,} FLOPs"
        )
    if failed:
        out.note(f"{len(failed)} of {len(losses)} designs could not be evaluated; first reason: {reasons[0]}")
    out.say(str(directory))
