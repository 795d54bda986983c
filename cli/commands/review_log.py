"""`autoqec review-log`: what a run's files say about how it searched."""

from __future__ import annotations

import click

from cli import places
from cli.common import Out, options


@click.command("review-log")
@click.argument("run")
@options
def command(run: str, out: Out) -> None:
    """Mechanical findings about RUN: repeats, stuck neighbourhoods, losses without effect, where the budget went."""
    from autoqec.report.text import plain
    from autoqec.tools.review_log import review

    for number, finding in enumerate(review(places.run_layout(run)), start=1):
        out.emit(finding.dump())
        out.say(f"{number}. [{finding.weight}] {plain(finding.what, 600)}.")
        if finding.advice:
            out.say(f"   Try: {plain(finding.advice)}")
        if finding.see:
            out.say(f"   See: {plain(', '.join(finding.see))}")
