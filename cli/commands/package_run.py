"""`autoqec package-run`: pack a run into one archive."""

from __future__ import annotations

from pathlib import Path

import click

from autoqec import locate
from autoqec.cli.common import Output, options


@click.command("package-run")
@click.argument("run")
@click.option(
    "--out", "target", type=click.Path(path_type=Path), help="Archive; default: RUN.tar in the current directory."
)
@click.option("--shots/--no-shots", default=True, help="Include the verification shots of a closed run (default: yes).")
@options
def command(run: str, target: Path | None, shots: bool, out: Output) -> None:
    """Pack RUN into one archive: its branches, its directory, and the hash of every file.

    The secret is included only if the run is closed (`autoqec close RUN`). Then `autoqec replay` can repeat its
    verification: on shots sampled again, or on the included ones if another version of stim samples differently.
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
        out.note(
            f"The run is open: its verification cannot be replayed elsewhere until `autoqec close {layout.run_id}`"
        )
    out.emit({"archive": str(target), "sha256": digest, "closed": manifest.closed, "files": len(manifest.files)})
