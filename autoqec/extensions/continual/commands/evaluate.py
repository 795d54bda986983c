"""`autoqec evaluate`: run an agent over a dataset of environments."""

from __future__ import annotations

import io
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, TextIO

import click

from autoqec import optional
from autoqec.cli.common import Output, options
from autoqec.errors import UsageError

if TYPE_CHECKING:
    from autoqec.extensions.continual.runtime.main import Evaluation


@click.command("evaluate")
@click.argument("config")
@click.option(
    "--resume",
    metavar="CHECKPOINT",
    help="Continue from a checkpoint: an ep_… directory, or `latest` in the same place.",
)
@click.option(
    "--against-memoryless", is_flag=True, help="Also run the same agent without memory, and report the difference."
)
@options
def command(config: str, resume: str | None, against_memoryless: bool, out: Output) -> int:
    """Run the evaluation described by CONFIG: a YAML file, or a packaged example such as toy_inmemory.

    Scores, memory, checkpoints and metrics are written to a new directory below its results_dir. Exit status 1: an
    environment or a model call failed; the remaining results are valid.
    """
    from autoqec.extensions.continual.design_rounds import WorkspaceRounds
    from autoqec.extensions.continual.runtime.main import evaluate

    optional.require_installed("tqdm", extra="evaluate")
    console = io.StringIO() if out.quiet else sys.stderr if out.json else sys.stdout  # run.log has all lines
    if against_memoryless:
        if resume is not None:
            message = "cannot be combined with --against-memoryless"
            raise UsageError(message, location="--resume", hint="remove one of them")
        return _run_ablation(config, console, out)
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


def _run_ablation(config: str, console: TextIO, out: Output) -> int:
    from autoqec.extensions.continual.design_rounds import WorkspaceRounds
    from autoqec.extensions.continual.runtime.main import evaluate_ablation

    with WorkspaceRounds(out.note) as round_runner:
        ablation = evaluate_ablation(config, console=console, round_runner=round_runner)
    for result in (ablation.stateful, ablation.memoryless):
        _report_result(result, out)
    gain = ablation.gain
    out.emit({"gain": asdict(gain)})
    if not out.json:
        bounds = f"95% interval [{gain.low:+.4f}, {gain.high:+.4f}]" if gain.low is not None else "no interval"
        out.say(f"gain from memory {gain.mean:+.4f} per step, {bounds}, {gain.n} episodes")
    return ablation.exit_code
