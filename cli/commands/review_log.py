"""`autoqec review-log`: what a run's files say about how it searched."""

from __future__ import annotations

import click

from autoqec.cli import llm_summary, paths
from autoqec.cli.common import Out, options


@click.command("review-log")
@click.argument("run")
@llm_summary.model_option
@options
def command(run: str, model: str | None, out: Out) -> None:
    """Mechanical findings about RUN: repeats, stuck neighbourhoods, losses without effect, where the budget went."""
    from autoqec.reporting.review_log import review
    from autoqec.reporting.text import plain

    llm_summary.checked(model)
    found = review(paths.run_layout(run))
    for number, finding in enumerate(found, start=1):
        out.emit(finding.dump())
        out.say(f"{number}. [{finding.weight}] {plain(finding.what, 600)}.")
        if finding.advice:
            out.say(f"   Try: {plain(finding.advice)}")
        if finding.see:
            out.say(f"   See: {plain(', '.join(finding.see))}")
    llm_summary.tell(model, [one.dump() for one in found], "how a run searched", out)
