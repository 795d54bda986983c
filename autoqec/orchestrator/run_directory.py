"""Creates run directories atomically."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from autoqec.store import atomic
from autoqec.store.layout import RunLayout, partial_run_id, runs_dir
from autoqec.system import run_lock


def create_run_directory(root: Path, fill: Callable[[RunLayout, str], None]) -> RunLayout:
    """Create the directory of a new run under `runs/` atomically.

    Args:
        root: The repository's top level.
        fill: Writes the first files of the run; its arguments are the layout under a temporary name and the run id.

    Returns:
        The layout of the directory. The run id is the UTC time, with `-2`, `-3`, … for runs of the same second.

    Raises:
        StorageError: A file cannot be written; no part of the run remains.
    """
    atomic.make_dir(runs_dir(root))
    _protect(runs_dir(root))
    _remove_partial(root)
    stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
    number = 1
    while True:
        run_id = stamp if number == 1 else f"{stamp}-{number}"
        number += 1
        if RunLayout(root, run_id).root.exists():
            continue
        partial = RunLayout(root, partial_run_id(run_id))
        with suppress(FileExistsError):
            atomic.make_dir(partial.root, exclusive=True)
            return _fill(root, run_id, partial, fill)


def _fill(root: Path, run_id: str, partial: RunLayout, fill: Callable[[RunLayout, str], None]) -> RunLayout:
    layout = RunLayout(root, run_id)
    try:
        with run_lock.lock_run(partial.root):  # another start removes partial directories that are not locked
            fill(partial, run_id)
            atomic.fsync_dir(partial.root)
            with atomic.storage_errors(layout.root):
                partial.root.rename(layout.root)
            atomic.fsync_dir(layout.root.parent)
    except BaseException:
        shutil.rmtree(partial.root, ignore_errors=True)
        raise
    return layout


def _protect(directory: Path) -> None:
    """Keep `git add -A` from staging runs: each contains the secret that its verification depends on."""
    ignore_file = directory / ".gitignore"
    if not ignore_file.exists():
        atomic.write_text(ignore_file, "# AutoQEC: a run's secret must never be committed\n*\n")


def _remove_partial(root: Path) -> None:
    for path in runs_dir(root).glob(f"{partial_run_id('*')}"):
        if path.is_dir() and not run_lock.is_locked(path):
            shutil.rmtree(path, ignore_errors=True)
