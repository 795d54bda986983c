"""`autoqec evaluate`: an agent over a dataset of environments, from one YAML file."""

from __future__ import annotations

import sys

import click

from cli.common import Out, options


@click.command("evaluate")
@click.argument("config")
@click.option("--resume", metavar="CHECKPOINT", help="Go on from an ep_… directory, or `latest` beside it.")
@options
def command(config: str, resume: str | None, out: Out) -> int:
    """Run the evaluation that CONFIG.yaml describes.

    Scores, memory, checkpoints and metrics go into a new folder of its results_dir. Exit status 1 where an environment,
    a row or a model's answer failed on the way; everything else was still measured.
    """
    from autoqec.runtime.main import evaluate

    console = sys.stderr if out.json or out.quiet else sys.stdout
    result = evaluate(config, console=console, resume_from=resume)
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
