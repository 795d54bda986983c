"""The directory of a run's recorded shots, which an archive does not hold."""

from __future__ import annotations

from pathlib import Path

from autoqec.contracts.env import EnvSpec
from autoqec.errors import UsageError
from autoqec.store import atomic, files
from autoqec.store.layout import RunLayout
from autoqec.store.recorded_layout import recorded_location

HINT = "restore the files of the recording, or give their directory with --recorded"


def check_place(env: EnvSpec, directory: Path, location: str) -> Path:
    """Compare the files in a directory with the hashes in the env of a run; write nothing.

    Args:
        env: The run's env.
        directory: Directory of the files.
        location: Names the run in messages.

    Returns:
        The absolute path of the directory.

    Raises:
        UsageError: The env samples its shots, or the directory or a file is missing or differs.
    """
    if env.recorded is None:
        raise UsageError("the run has no recorded shots", location=location, hint="leave out --recorded")
    if not directory.is_dir():
        raise UsageError("the recorded shots are not here: not a directory", location=str(directory), hint=HINT)
    from autoqec.qec.recorded.env import open_checked

    return open_checked(env, directory.resolve(), hint=HINT).directory


def note_place(layout: RunLayout, directory: Path) -> None:
    """Note a checked directory in the run, where verifications look for it."""
    atomic.write_text(recorded_location(layout.round(1).dir), f"{directory}\n")


def move_place(layout: RunLayout, directory: Path) -> None:
    """Check the directory of a run's recorded shots, and note it in the run.

    Raises:
        UsageError: As `check_place`.
    """
    note_place(layout, check_place(files.load_env(layout.env)[0], directory, str(layout.root)))
