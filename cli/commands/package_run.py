"""`autoqec package-run`: a run in one file, to carry away."""

from __future__ import annotations

from pathlib import Path

import click

from autoqec import locate
from autoqec.cli.common import Output, options


@click.command("package-run")
@click.argument("run")
@click.option("--out", "target", type=click.Path(path_type=Path), help="The archive; RUN.tar here by default.")
@click.option("--shots/--no-shots", default=True, help="Pack the judge's shots of a closed run too (default: yes).")
@options
def command(run: str, target: Path | None, shots: bool, out: Output) -> None:
    """Pack RUN into one archive: all its branches, its directory, and the hash of every file.

    The judge's secret goes along only when the run is closed (`autoqec close RUN`); then anyone can replay it: on shots
    drawn again, or, where another stim draws them otherwise, on those packed here.
    """
    from autoqec.contracts.base import sha256_bytes
    from autoqec.orchestrator.archive import package_run
    from autoqec.system.git import Repo

    layout = locate.run_layout(run)
    target = target or Path(f"{layout.run_id}.tar")
    manifest = package_run(layout, Repo.discover(Path.cwd()), target, shots=shots)
    digest = sha256_bytes(target.read_bytes())
    out.say(f"{target}: {len(manifest.files)} files, {len(manifest.refs)} refs, SHA-256 {digest}")
    if not manifest.closed:
        out.note(f"Its verdicts can't be drawn again elsewhere until `autoqec close {layout.run_id}`")
    out.emit({"archive": str(target), "sha256": digest, "closed": manifest.closed, "files": len(manifest.files)})
