"""`autoqec replay`: restore an archive and verify it again, offline."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autoqec.cli.common import Output, options, recorded_option, trust_option
from autoqec.orchestrator.archive import replay_archive
from autoqec.reporting.terminal import LiveView, console
from autoqec.reporting.text import plain, pluralize

if TYPE_CHECKING:
    from autoqec.orchestrator.archive import ReplayPlan


@click.command("replay")
@click.argument("archive", type=click.Path(path_type=Path))
@click.option(
    "--into", type=click.Path(path_type=Path), help="New directory for the repository; default: ARCHIVE-replayed."
)
@recorded_option
@trust_option(registered=False)
@options
def command(archive: Path, into: Path | None, recorded: Path | None, out: Output) -> None:
    """Restore ARCHIVE in a new repository and verify it again: files, branches, views and, if closed, verdicts.

    Exit status: 0 everything agrees, 1 a verdict differs, 2 a file was changed.
    """
    into = into or Path(archive.name.removesuffix(".tar") + "-replayed")
    on_plan = functools.partial(_show, out)
    with LiveView(console(err=True), quiet=out.quiet) as view:
        restored = replay_archive(archive, into, on_event=view, on_plan=on_plan, recorded=recorded)
    for number, outcome in sorted(restored.verdicts.items()):
        out.say(f"Round {number}: {plain(outcome)}")
        out.emit({"round": number, "found": outcome})
    out.say(f"Restored in {into}. Next: cd {into} && autoqec show {restored.layout.run_id}")
    if not restored.agrees:
        raise click.exceptions.Exit(1)


def _show(out: Output, plan: ReplayPlan) -> None:
    """Print what the replay will do, before it does."""
    manifest = plan.manifest
    size = sum(entry.bytes for entry in manifest.files)
    out.note(f"Archive of run {manifest.run_id}: {pluralize(len(manifest.files), 'file')}, {size} bytes.")
    out.note("Its hashes match. They detect damage, not forgery: an archive is not signed.")
    branch = plain(manifest.baseline_ref or "main")
    out.note(
        f"Checking out {manifest.baseline_sha} as branch {branch} in {plan.into}, without links, hooks or filters."
    )
    runs = f"branch code runs in the sandbox ({plan.sandbox})" if plan.sandbox else "no branch code is run"
    repeated = pluralize(plan.verifications, "verification")
    out.note(f"Checking {pluralize(plan.rounds, 'round')}, repeating {repeated}: {runs}.")
    out.emit(
        {
            "plan": {
                "run_id": manifest.run_id,
                "baseline_sha": manifest.baseline_sha,
                "baseline_ref": manifest.baseline_ref,
                "into": str(plan.into),
                "files": len(manifest.files),
                "bytes": size,
                "rounds": plan.rounds,
                "verifications": plan.verifications,
                "sandbox": plan.sandbox,
            }
        }
    )
