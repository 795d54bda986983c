"""`autoqec evaluate`: an agent over a dataset of environments, from one YAML file."""

from __future__ import annotations

import io
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, TextIO

import click

from autoqec import optional
from autoqec.cli.common import Output, options

if TYPE_CHECKING:
    from autoqec.continual.runtime.main import Evaluation


@click.command("evaluate")
@click.argument("config")
@click.option("--resume", metavar="CHECKPOINT", help="Go on from an ep_… directory, or `latest` beside it.")
@click.option("--against-memoryless", is_flag=True, help="Run the twin without a memory too: what is it worth?")
@options
def command(config: str, resume: str | None, against_memoryless: bool, out: Output) -> int:
    """Run the evaluation that CONFIG describes: a YAML file, or an example that comes with autoqec (toy_inmemory).

    Scores, memory, checkpoints and metrics go into a new folder of its results_dir. Exit status 1 where an environment,
    a row or a model's answer failed on the way; everything else was still measured.
    """
    from autoqec.cli.design_rounds import WorkspaceRounds
    from autoqec.continual.runtime.main import evaluate

    optional.require_installed("tqdm", extra="evaluate")
    console = io.StringIO() if out.quiet else sys.stderr if out.json else sys.stdout  # run.log has the lines anyway
    if against_memoryless:
        if resume is not None:
            raise click.UsageError("--resume and --against-memoryless don't go together")
        return _twins(config, console, out)
    with WorkspaceRounds(out.note) as round_runner:
        return _report_result(evaluate(config, console=console, resume_from=resume, round_runner=round_runner), out)


def _report_result(result: Evaluation, out: Output) -> int:
    summary = {key: value for key, value in result.metrics.items() if key != "episodes"}
    out.emit({"results_dir": str(result.results_dir), **summary})
    if not out.json:
        metrics = result.metrics
        out.say(
            f"mean score {metrics['mean_score']:.4f} over {metrics['train_steps']} steps of "
            f"{metrics['train_episodes']} episodes"
        )
        for error in metrics.get("errors", []):
            out.note(f"failed: {error}")
        out.say(str(result.results_dir))
    return result.exit_code


def _twins(config: str, console: TextIO, out: Output) -> int:
    from autoqec.cli.design_rounds import WorkspaceRounds
    from autoqec.continual.runtime.ablation import evaluate_ablation

    with WorkspaceRounds(out.note) as round_runner:
        twins = evaluate_ablation(config, console=console, round_runner=round_runner)
    for result in (twins.stateful, twins.memoryless):
        _report_result(result, out)
    gain = twins.gain
    out.emit({"gain": asdict(gain)})
    if not out.json:
        bounds = f"95% interval [{gain.low:+.4f}, {gain.high:+.4f}]" if gain.low is not None else "no interval"
        out.say(f"gain of the memory {gain.mean:+.4f} a step, {bounds}, {gain.n} episodes")
    return twins.exit_code
