"""`autoqec replay`: an archive restored and verified again, offline."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import TYPE_CHECKING

import click

from autoqec.cli.common import Output, options, trust_option
from autoqec.contracts.events import ignore
from autoqec.reporting.text import plain, pluralize

if TYPE_CHECKING:
    from autoqec.orchestrator.archive import Plan


@click.command("replay")
@click.argument("archive", type=click.Path(path_type=Path))
@click.option("--into", type=click.Path(path_type=Path), help="Where to restore it; a new directory here by default.")
@trust_option(registered=False)
@options
def command(archive: Path, into: Path | None, out: Output) -> None:
    """Restore ARCHIVE into a new repository and verify it again: files, branches, views and, of a closed run, verdicts.

    Exit 0 where everything is as it was packed, 1 where a verdict comes out differently, 2 where a file was changed.
    """
    from autoqec.orchestrator.archive import replay_archive

    into = into or Path(archive.name.removesuffix(".tar") + "-replayed")
    restored = replay_archive(archive, into, on_event=ignore, on_plan=functools.partial(_show, out))
    for number, outcome in sorted(restored.verdicts.items()):
        out.say(f"Round {number}: {plain(outcome)}")
        out.emit({"round": number, "found": outcome})
    out.say(f"Restored in {into}. Look at it: cd {into} && autoqec show {restored.layout.run_id}")
    if not restored.agrees:
        raise click.exceptions.Exit(1)


def _show(out: Output, plan: Plan) -> None:
    """Say what the archive is about to do here, before it does."""
    told = plan.manifest
    size = sum(entry.bytes for entry in told.files)
    out.note(f"Archive of run {told.run_id}: {pluralize(len(told.files), 'file')}, {size} bytes.")
    out.note("Its hashes match. They show damage, not who wrote it: see docs/contracts/archive.md.")
    branch = plain(told.baseline_ref or "main")
    out.note(f"Checking out {told.baseline_sha} as branch {branch} in {plan.into}, without links, hooks or filters.")
    runs = f"branch code runs in the sandbox ({plan.sandbox})" if plan.sandbox else "no branch code is run"
    out.note(
        f"Verifying {pluralize(plan.rounds, 'round')}, repeating {pluralize(plan.verifications, 'judgement')}: {runs}."
    )
    out.emit(
        {
            "plan": {
                "run_id": told.run_id,
                "baseline_sha": told.baseline_sha,
                "baseline_ref": told.baseline_ref,
                "into": str(plan.into),
                "files": len(told.files),
                "bytes": size,
                "rounds": plan.rounds,
                "judgements": plan.verifications,
                "sandbox": plan.sandbox,
            }
        }
    )
