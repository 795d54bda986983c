"""`autoqec verify`: the judge, asked by a person."""

from __future__ import annotations

from pathlib import Path

import click

from autoqec.cli import paths
from autoqec.cli.common import Out, options, trust_option


@click.command("verify")
@click.argument("round_dir", type=click.Path(path_type=Path))
@click.option("--replay", is_flag=True, help="Only make the standing judgement again, and compare.")
@trust_option()
@options
def command(round_dir: Path, replay: bool, out: Out) -> None:
    """Judge the round in ROUND_DIR on shots that nobody has seen; a judgement that stands is replayed and compared.

    Exit 0 where the judge says VERIFIED, 1 where it says FAILED or SUSPICIOUS. With --replay: 0 where shots, counts and
    verdict come out as they stand in the report, 1 where they do not.
    """
    if replay:
        _replay(round_dir, out)
        return
    from autoqec.orchestrator.verify_round import judge_again
    from autoqec.reporting.terminal import LiveView, console
    from autoqec.reporting.text import effect_line, plain
    from autoqec.system.git import Repo

    layout, number = paths.round_of(round_dir)
    with LiveView(console(err=True), quiet=out.quiet) as view:
        report = judge_again(layout, Repo.discover(layout.repo_root), number, view)
    out.say(f"{report.verdict}: {plain('; '.join(report.reasons), 2000)}")
    for member in report.panel:
        out.say("  " + effect_line(plain(member.name), member.against))
    out.say(f"Report: {layout.round(number).report_md}")
    out.emit(report.dump())
    if report.verdict != "VERIFIED":
        raise click.exceptions.Exit(1)


def _replay(round_dir: Path, out: Out) -> None:
    from autoqec.orchestrator.verify_round import replay
    from autoqec.reporting.terminal import LiveView, console
    from autoqec.reporting.text import plain
    from autoqec.system.git import Repo

    layout, number = paths.round_of(round_dir)
    with LiveView(console(err=True), quiet=out.quiet) as view:
        found = replay(layout, Repo.discover(layout.repo_root), number, view)
    verdict = found.report.verdict
    if found.agrees:
        out.say(f"The replay agrees: {verdict}, on the same shots ({found.source})")
    else:
        out.say(f"The replay disagrees: {plain(found.differences[0], 2000)}")
    chunks = {"redrawn": found.redrawn, "from_archive": found.kept}
    out.emit({"agrees": found.agrees, "verdict": verdict, "chunks": chunks, "differences": list(found.differences)})
    if not found.agrees:
        raise click.exceptions.Exit(1)
