"""The directory of a run's recorded shots, which an archive does not hold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autoqec.contracts.env import EnvSpec
from autoqec.contracts.events import OnEvent, ignore
from autoqec.errors import UsageError
from autoqec.store import atomic, files
from autoqec.store.layout import RunLayout, recorded_location

if TYPE_CHECKING:
    from autoqec.extensions.recorded.shots import RecordedShots

HINT = "restore the files of the recording, or give their directory with --recorded"


def check_place(env: EnvSpec, directory: Path, location: str, on_event: OnEvent = ignore) -> RecordedShots:
    """Compare the files in a directory with the hashes in the env of a run.

    Nothing is written.

    Args:
        env: The run's env.
        directory: Directory of the files.
        location: Names the run in messages.
        on_event: Receives the progress of the hashing.

    Returns:
        The shots, with the absolute path of the directory.

    Raises:
        UsageError: The env samples its shots, or the directory or a file is missing or differs.
    """
    if env.recorded is None:
        raise UsageError("the run has no recorded shots", location=location, hint="leave out --recorded")
    if not directory.is_dir():
        raise UsageError("the recorded shots are not here: not a directory", location=str(directory), hint=HINT)
    from autoqec.extensions.recorded.env import open_checked
    from autoqec.extensions.recorded.shots import Progress

    directory = directory.resolve()
    return open_checked(env, directory, HINT, Progress(on_event))


def check_resumed(
    env: EnvSpec, layout: RunLayout, directory: Path | None, on_event: OnEvent = ignore
) -> RecordedShots | None:
    """Check that a run which is resumed has its recorded shots; see `check_place` for what is written.

    Args:
        env: The run's env.
        layout: The run.
        directory: Directory of the files, if the user gave one.
        on_event: Receives the progress of hashing these files.

    Returns:
        The shots in `directory`; None if there is none, and none is needed.

    Raises:
        UsageError: As `check_place`, or a run without `directory` lacks its recorded shots.
    """
    if directory is not None:
        return check_place(env, directory, str(layout.root), on_event)
    if env.recorded is None:
        return None
    from autoqec.runner.shot_source import has_copies

    first = layout.round(1).dir
    known, hint = recorded_location(first), f"autoqec run --resume {layout.run_id} --recorded DIR"
    if not known.is_file() or not has_copies(env, first):
        message = "the run has no recorded shots here: it was restored from an archive, or its files were removed"
        raise UsageError(message, location=str(layout.root), hint=hint)
    place = Path(files.read_text(known).strip())
    if not place.is_dir():
        raise UsageError("the recorded shots are not here: not a directory", location=str(place), hint=hint)
    return None


def note_place(layout: RunLayout, directory: Path) -> None:
    """Note a checked directory in the run, where verifications look for it."""
    atomic.write_text(recorded_location(layout.round(1).dir), f"{directory}\n")


def move_place(layout: RunLayout, directory: Path, on_event: OnEvent = ignore) -> None:
    """Check the directory of a run's recorded shots, and note it in the run; `on_event` receives the progress.

    Raises:
        UsageError: As `check_place`.
    """
    env = files.load_env(layout.env)[0]
    note_place(layout, check_place(env, directory, str(layout.root), on_event).directory)
