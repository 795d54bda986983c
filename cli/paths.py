"""Turns what a person types into places: an env's name into its file, a run's id into its layout."""

from __future__ import annotations

import os
from pathlib import Path

import autoqec
from autoqec.errors import UsageError
from autoqec.store import layout

BUILTIN = Path(autoqec.__file__).parent / "envs" / "builtin"


def builtin_envs() -> dict[str, Path]:
    """Envs that come with the package, by the name they may be called without a path."""
    return {path.stem: path for path in sorted(BUILTIN.glob("*.yaml"))}


def env_file(name: str) -> Path:
    """The file that `name` means: a builtin env's name, or a path. UsageError where there is neither."""
    known = builtin_envs()
    if name in known:
        return known[name]
    path = Path(name)
    if not path.exists():
        message = f"there is no such env file, and no builtin env of that name (known: {', '.join(known)})"
        raise UsageError(message, location=name, hint="autoqec envs")
    return path


def workspace_root() -> Path:
    """Top of the git repository one stands in; UsageError where there is none."""
    from autoqec.system.git import Repo

    return Path(Repo.discover(Path.cwd()).root)


def run_layout(run: str, *, root: Path | None = None) -> layout.RunLayout:
    """The run that `run` names: an id, or the path of its directory. UsageError where there is none."""
    root = root or workspace_root()
    run_id = Path(run).name
    candidate = layout.RunLayout(root, run_id)
    if not layout.RUN_ID.match(run_id) or not candidate.run_info.is_file():
        _explain_deleted_run(root, run_id)
        raise UsageError("there is no such run here", location=f"run {run}", hint="autoqec show")
    return candidate


def _explain_deleted_run(root: Path, run_id: str) -> None:
    """Raise UsageError if git still has the branches and pins of a run whose directory is gone."""
    from autoqec.orchestrator.run_directory import find_deleted_runs
    from autoqec.system.git import Repo

    for deleted in find_deleted_runs(Repo.discover(root)):
        if deleted.run_id == run_id:
            hint = f"autoqec gc {run_id} removes what is left"
            raise UsageError(deleted.message, location=f"run {run_id}", hint=hint)


def find_run(run: str) -> layout.RunLayout:
    """A run to look at: its directory, in whichever repository, or an id of this one. UsageError if there is none."""
    directory = Path(run)
    if directory.name != run and directory.is_dir():
        directory = Path(os.path.abspath(directory))
        candidate = layout.RunLayout(directory.parent.parent, directory.name)
        if candidate.root == directory and layout.RUN_ID.match(directory.name) and candidate.run_info.is_file():
            return candidate
        raise UsageError("holds no run", location=run, hint="name a directory …/runs/RUN with a run.json in it")
    return run_layout(run)


def run_ids(root: Path) -> list[str]:
    """Runs of the repository, oldest first."""
    runs = layout.runs_dir(root)
    if not runs.is_dir():
        return []
    return sorted(entry.name for entry in runs.iterdir() if layout.RUN_ID.match(entry.name))


def parse_round_dir(round_dir: Path) -> tuple[layout.RunLayout, int]:
    """The run and the number of a round's directory, wherever the run's repository lies. UsageError for any other."""
    directory = Path(os.path.abspath(round_dir))
    number = directory.name.removeprefix("round_")
    root = directory.parent.parent.parent
    hint = "name runs/RUN/round_N; `autoqec show` lists the runs"
    if not number.isdecimal() or not directory.is_dir():
        raise UsageError("is no round's directory", location=str(round_dir), hint=hint)
    candidate = run_layout(directory.parent.name, root=root)
    if candidate.round(int(number)).dir != directory:
        raise UsageError("is no round's directory", location=str(round_dir), hint=hint)
    return candidate, int(number)
