"""`autoqec review-log`: findings about the course of a run."""

from __future__ import annotations

import click

from autoqec import locate
from autoqec.cli import llm_summary
from autoqec.cli.common import Output, options
from autoqec.reporting.review_log import review
from autoqec.reporting.text import plain


@click.command("review-log")
@click.argument("run")
@llm_summary.model_option
@options
def command(run: str, model: str | None, out: Output) -> None:
    """Review the course of RUN: repeated configs, missing progress, losses without effect, use of the budget."""
    llm_summary.check_model(model)
    findings = review(locate.run_layout(run))
    for number, finding in enumerate(findings, start=1):
        out.emit(finding.dump())
        out.say(f"{number}. [{finding.weight}] {plain(finding.what, 600)}.")
        if finding.advice:
            out.say(f"   Try: {plain(finding.advice)}")
        if finding.see:
            out.say(f"   See: {plain(', '.join(finding.see))}")
    llm_summary.summarize_findings(model, [finding.dump() for finding in findings], "how a run searched", out)
