"""Turns what a person types into places: an env's name into its file, a run's id into its layout."""

from __future__ import annotations

from pathlib import Path

import autoqec
from autoqec.errors import InputError
from autoqec.store import layout

BUILTIN = Path(autoqec.__file__).parent / "envs" / "builtin"


def builtin_envs() -> dict[str, Path]:
    """Envs that come with the package, by the name they may be called without a path."""
    return {path.stem: path for path in sorted(BUILTIN.glob("*.yaml"))}


def env_file(name: str) -> Path:
    """The file that `name` means: a builtin env's name, or a path. InputError where there is neither."""
    known = builtin_envs()
    if name in known:
        return known[name]
    path = Path(name)
    if not path.exists():
        what = f"there is no such env file, and no builtin env of that name (known: {', '.join(known)})"
        raise InputError(what, where=name, mend="autoqec envs")
    return path


def lab_root() -> Path:
    """Top of the git repository one stands in; InputError where there is none."""
    from autoqec.system.git import Repo

    return Path(Repo.discover(Path.cwd()).root)


def run_layout(run: str, *, root: Path | None = None) -> layout.RunLayout:
    """The run that `run` names: an id, or the path of its directory. InputError where there is none."""
    root = root or lab_root()
    run_id = Path(run).name
    found = layout.RunLayout(root, run_id)
    if not layout.RUN_ID.match(run_id) or not found.run_info.is_file():
        raise InputError("there is no such run here", where=f"run {run}", mend="autoqec show")
    return found


def any_run(run: str) -> layout.RunLayout:
    """A run to look at: its directory, in whichever repository, or an id of this one. InputError if there is none."""
    directory = Path(run)
    if directory.name != run and directory.is_dir():
        directory = directory.resolve()
        found = layout.RunLayout(directory.parent.parent, directory.name)
        if found.root == directory and layout.RUN_ID.match(directory.name) and found.run_info.is_file():
            return found
        raise InputError("holds no run", where=run, mend="name a directory …/runs/RUN with a run.json in it")
    return run_layout(run)


def run_ids(root: Path) -> list[str]:
    """Runs of the repository, oldest first."""
    runs = layout.runs_dir(root)
    if not runs.is_dir():
        return []
    return sorted(entry.name for entry in runs.iterdir() if layout.RUN_ID.match(entry.name))


def round_of(round_dir: Path) -> tuple[layout.RunLayout, int]:
    """The run and the number of a round's directory, wherever the run's repository lies. InputError for any other."""
    directory = round_dir.resolve()
    number = directory.name.removeprefix("round_")
    root = directory.parent.parent.parent
    mend = "name runs/RUN/round_N; `autoqec show` lists the runs"
    if not number.isdecimal() or not directory.is_dir():
        raise InputError("is no round's directory", where=str(round_dir), mend=mend)
    found = run_layout(directory.parent.name, root=root)
    if found.round(int(number)).dir != directory:
        raise InputError("is no round's directory", where=str(round_dir), mend=mend)
    return found, int(number)
