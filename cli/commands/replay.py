"""`autoqec replay`: an archive restored and verified again, offline."""

from __future__ import annotations

from pathlib import Path

import click

from autoqec.cli.common import Out, options, trust_option


@click.command("replay")
@click.argument("archive", type=click.Path(path_type=Path))
@click.option("--into", type=click.Path(path_type=Path), help="Where to restore it; a new directory here by default.")
@trust_option(registered=False)
@options
def command(archive: Path, into: Path | None, out: Out) -> None:
    """Restore ARCHIVE into a new repository and verify it again: files, branches, views and, of a closed run, verdicts.

    Exit 0 where everything is as it was packed, 1 where a verdict comes out differently, 2 where a file was changed.
    """
    from autoqec.orchestrator.archive import replay_archive

    into = into or Path(archive.name.removesuffix(".tar") + "-replayed")
    found = replay_archive(archive, into, on_event=lambda kind, payload: None)
    for number, words in sorted(found.verdicts.items()):
        out.say(f"Round {number}: {words}")
        out.emit({"round": number, "found": words})
    out.say(f"Restored in {into}. Look at it: cd {into} && autoqec show {found.layout.run_id}")
    if not found.agrees:
        raise click.exceptions.Exit(1)
