"""`autoqec verify`: verify a round, or replay its report."""

from __future__ import annotations

from pathlib import Path

import click

from autoqec import locate
from autoqec.cli.common import Output, options, recorded_option, trust_option
from autoqec.cli.progress import broadcast
from autoqec.orchestrator.verify_round import note_moved_shots, replay, verify_or_replay
from autoqec.reporting.terminal import LiveView, console
from autoqec.reporting.text import effect_line, plain
from autoqec.system.git import Repo


@click.command("verify")
@click.argument("round_dir", type=click.Path(path_type=Path))
@click.option("--replay", is_flag=True, help="Repeat the verification and compare it with the report; write no result.")
@recorded_option
@trust_option()
@options
def command(round_dir: Path, replay: bool, recorded: Path | None, out: Output) -> None:
    """Verify the round in ROUND_DIR on fresh shots from a secret seed; an existing report is replayed and compared.

    Exit status: 0 VERIFIED, 1 INCONCLUSIVE, SUSPICIOUS or FAILED. With --replay: 0 the report is reproduced, 1 not.
    """
    if recorded is not None:
        _move(round_dir, recorded, out)
    if replay:
        _replay(round_dir, out)
        return

    layout, number = locate.parse_round_dir(round_dir)
    with LiveView(console(err=True), quiet=out.quiet) as view:
        report = verify_or_replay(layout, Repo.discover(layout.repo_root), number, broadcast(view, out))
    out.say(f"{report.verdict}: {plain('; '.join(report.reasons), 2000)}")
    for member in report.panel:
        out.say("  " + effect_line(plain(member.name), member.against))
    out.say(f"Report: {layout.round(number).report_md}")
    out.emit(report.dump())
    if report.verdict != "VERIFIED":
        raise click.exceptions.Exit(1)


def _move(round_dir: Path, recorded: Path, out: Output) -> None:
    with LiveView(console(err=True), quiet=out.quiet) as view:
        note_moved_shots(locate.parse_round_dir(round_dir)[0], recorded, broadcast(view, out))


def _replay(round_dir: Path, out: Output) -> None:
    layout, number = locate.parse_round_dir(round_dir)
    with LiveView(console(err=True), quiet=out.quiet) as view:
        replayed = replay(layout, Repo.discover(layout.repo_root), number, broadcast(view, out))
    verdict = replayed.report.verdict
    if replayed.agrees:
        out.say(f"The replay agrees: {verdict}, on the same shots ({replayed.source})")
    else:
        out.say("The replay disagrees:")
        for difference in replayed.differences:
            out.say(f"  {plain(difference, 2000)}")
        if replayed.likely_cause:
            out.say(f"Likely cause: {plain(replayed.likely_cause)}")
    chunks = {"redrawn": replayed.n_redrawn, "from_archive": replayed.n_from_cache}
    out.emit(
        {"agrees": replayed.agrees, "verdict": verdict, "chunks": chunks, "differences": list(replayed.differences)}
    )
    if not replayed.agrees:
        raise click.exceptions.Exit(1)
