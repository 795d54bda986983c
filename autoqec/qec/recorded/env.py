"""Env of recorded shots: the model as a circuit or DEM file, and the manifest of the shots."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from autoqec.contracts.recorded import RecordedManifest
from autoqec.errors import UsageError
from autoqec.qec.recorded.shots import RecordedShots
from autoqec.store.files import load_yaml


def code_of(recorded: RecordedShots, env_dir: Path) -> dict[str, Any]:
    """Return the field `code` of an env in `env_dir` for the model of recorded shots."""
    path = recorded.directory / recorded.layout.model
    kind = "stim_file" if path.suffix == ".stim" else "dem_file"
    return {"kind": kind, "path": os.path.relpath(path, env_dir), "rounds": recorded.layout.rounds}


def manifest_of(recorded: RecordedShots, shots: tuple[int, ...], manifest_dir: Path) -> RecordedManifest:
    """Hash all files and return the manifest of recorded shots, to be stored in `manifest_dir`."""
    return RecordedManifest(
        directory=os.path.relpath(recorded.directory, manifest_dir),
        layout=recorded.layout,
        shots=shots,
        files=recorded.files(),
    )


def check_manifest(recorded: RecordedShots, path: Path) -> None:
    """Compare the files with the manifest that `add-env --recorded` wrote.

    Raises:
        UsageError: The manifest cannot be read, or a file differs from it.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot be read: {error}", location=str(path), hint="check the path") from error
    manifest = RecordedManifest.read(load_yaml(text, location=str(path)), location=str(path))
    stored = {file.path: file.sha256 for file in manifest.files}
    for file in recorded.files():
        if stored.get(file.path) != file.sha256:
            raise UsageError(
                "is not the file of the manifest",
                location=str(recorded.directory / file.path),
                hint=f"restore the file, or create {path.name} again with `autoqec add-env --recorded`",
            )
